"""Profiles for tests: measured on the fake engine, or written from a table of published speeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from selector.acceptance import sampling_kind
from selector.engines.base import Acceptance, Generation
from selector.engines.fake import FakeEngine
from selector.profile import (
    ClassInfo,
    ConfirmedCell,
    EngineInfo,
    Hardware,
    ModelInfo,
    PrefillCost,
    Profile,
    Provenance,
    Recording,
    Replay,
    Run,
    StepCost,
)
from selector.strategy import PLAIN, Method, Strategy
from selector.walks import encode, looping
from selector.workload import Request

HARDWARE = Hardware(
    processor="fake",
    cores=1,
    memory_bytes=1,
    read_bandwidth_bytes_per_second=1.0,
    matmul_flop_per_second=1.0,
    platform="fake",
)
PROVENANCE = Provenance(
    selector_version="0",
    command="fake",
    started="2026-01-01",
    seconds_by_stage={},
    seed=0,
    budget_seconds=None,
    complete=True,
)
NGRAM = Strategy(method="ngram", num_speculative_tokens=6, lookup_min=2, lookup_max=4)
EAGLE = Strategy(method="eagle3", drafter="fake-head", num_speculative_tokens=6)
DRAFT = Strategy(method="draft_model", drafter="fake-draft", num_speculative_tokens=6)


def fake_requests(tasks: Sequence[str], prompts: int = 20, temperature: float = 0.0) -> list[Request]:
    return [
        Request.model_validate(
            {"prompt": f"{task} number {i}", "class": task, "temperature": temperature, "max_tokens": 256}
        )
        for task in tasks
        for i in range(prompts)
    ]


def fake_profile(
    engine: FakeEngine,
    requests: Sequence[Request],
    *,
    families: Sequence[Strategy] = (NGRAM, EAGLE, DRAFT),
    loads: Sequence[int] = (1, 2, 4, 8),
    confirm: Sequence[tuple[str, Strategy]] = (),
    confirm_prompts: int = 8,
    repeats: int = 3,
    aa_noise: float = 0.02,
) -> Profile:
    """Measure everything `recommend` needs, as `selector profile` would."""
    groups: dict[str, list[Request]] = {}
    for r in requests:
        groups.setdefault(r.request_class, []).append(r)
    recordings, replays = [], []
    for name, members in groups.items():
        for r in members:
            g = engine.generate(r, PLAIN, seed=0)
            recordings.append(
                Recording(
                    id=r.digest,
                    request_class=name,
                    prompt_tokens=len(g.prompt_ids),
                    output_tokens=len(g.output_ids),
                    finish=g.finish,
                    looping=looping(g.output_ids[:-1]),
                )
            )
            replays += [_replay(r.digest, name, f, engine.replay(g, f)) for f in families]
    kinds = {sampling_kind(r.temperature, r.top_p) for r in requests}
    k_max = max((f.k for f in families), default=1)
    strategies = [PLAIN, *(f.with_k(k) for f in families for k in range(1, f.k + 1))]
    steps = [
        StepCost(
            method=s.method,
            drafter=s.drafter,
            drafted=s.k,
            batch=b,
            context=c,
            sampling=kind,
            step_seconds=tuple(engine.step_seconds(s, batch=b, context=c, sampling=kind, repeats=repeats)),
        )
        for s in strategies
        for b in loads
        for kind in sorted(kinds)
        for c in ((128, 512) if s == PLAIN else (128,))
    ]
    prefills = [
        PrefillCost(
            method=s.method,
            drafter=s.drafter,
            prompt_tokens=n,
            prefill_seconds=tuple(engine.prefill_seconds(s, prompt_tokens=n, repeats=repeats)),
        )
        for s in (PLAIN, *families)
        for n in (16, 128, 512)
    ]
    cells = list(dict.fromkeys([*((c, PLAIN) for c, _ in confirm), *confirm]))
    return Profile(
        hardware=HARDWARE,
        engine=engine.info,
        target=engine.target,
        drafters=dict(engine.drafters),
        workload="fake",
        workload_sha256="0" * 64,
        classes=tuple(_class_info(name, members) for name, members in groups.items()),
        k_max=k_max,
        loads=tuple(loads),
        recordings=tuple(recordings),
        replays=tuple(replays),
        step_costs=tuple(steps),
        prefill_costs=tuple(prefills),
        aa_noise=aa_noise,
        provenance=PROVENANCE,
        confirmed=tuple(_confirm(engine, c, s, groups[c][:confirm_prompts], repeats) for c, s in cells),
    )


def _class_info(name: str, members: Sequence[Request]) -> ClassInfo:
    r = members[0]
    return ClassInfo(
        name=name,
        task=r.task,
        temperature=r.temperature,
        top_p=r.top_p,
        prompts=len(members),
        prompts_available=len(members),
    )


def _replay(digest: str, name: str, family: Strategy, seen: Acceptance) -> Replay:
    return Replay(
        id=digest,
        request_class=name,
        family=family.family,
        k_max=family.k,
        accepted=encode(seen.accepted),
        proposed=None if seen.proposed is None else encode(seen.proposed),
    )


def _confirm(
    engine: FakeEngine, name: str, strategy: Strategy, members: Sequence[Request], repeats: int
) -> ConfirmedCell:
    runs = [(r, n, engine.generate(r, strategy, seed=0)) for r in members for n in range(repeats)]
    return ConfirmedCell(request_class=name, strategy=strategy, load=1, runs=tuple(_run(r, n, g) for r, n, g in runs))


def _run(r: Request, repeat: int, g: Generation) -> Run:
    return Run(
        id=r.digest,
        repeat=repeat,
        output_tokens=len(g.output_ids),
        decode_steps=g.decode_steps,
        drafted=g.drafted,
        accepted=g.accepted,
        prefill_seconds=g.prefill_seconds,
        decode_seconds=g.decode_seconds,
    )


def table_profile(
    speeds: Mapping[str, Mapping[str, Mapping[int, float]]],
    *,
    aa_noise: float = 0.01,
    prompts: int = 12,
    tau: Mapping[str, float] | None = None,
    repeats: Sequence[float] = (0.99, 1.0, 1.01),
) -> Profile:
    """A profile that composes to published speeds: `speeds[class][arm][load]` in tokens/s of the server.

    An arm is `none` or `METHOD k=K` (drafter named after the method). Every step of an arm emits `tau[arm]` tokens
    (default k + 1, a whole number). Classes get a sampling kind each, so that each has its own step costs.
    """
    kinds = ("greedy", "temperature", "top_p")
    sampling = {"greedy": (0.0, 1.0), "temperature": (1.0, 1.0), "top_p": (1.0, 0.9)}
    classes, recordings, replays, steps, drafters = [], [], [], [], {}
    for (name, arms), kind in zip(speeds.items(), kinds, strict=False):
        temperature, top_p = sampling[kind]
        classes.append(
            ClassInfo(
                name=name,
                task=name,
                temperature=temperature,
                top_p=top_p,
                prompts=prompts,
                prompts_available=prompts,
            )
        )
        emitted = 840  # a multiple of 1..8 and 21, so that whole k + 1 leave no rest
        recordings += [
            Recording(
                id=f"{i:016x}",
                request_class=name,
                prompt_tokens=16,
                output_tokens=emitted + 1,
                finish="length",
                looping=False,
            )
            for i in range(prompts)
        ]
        families: dict[tuple[Method, str], int] = {}
        for arm, by_load in arms.items():
            s = table_strategy(arm)
            per_step = (tau or {}).get(arm, s.k + 1.0)
            steps += [
                StepCost(
                    method=s.method,
                    drafter=s.drafter,
                    drafted=s.k,
                    batch=b,
                    context=16 + 420,
                    sampling=kind,  # type: ignore[arg-type]
                    step_seconds=tuple(b * per_step / speed * r for r in repeats),
                )
                for b, speed in by_load.items()
            ]
            if s.drafter:
                families[(s.method, s.drafter)] = max(s.k, families.get((s.method, s.drafter), 0))
        for (method, drafter), k_max in families.items():
            drafters[drafter] = method
            wanted = (tau or {}).get(f"{method} k={k_max}")
            accepted = [k_max] * emitted if wanted is None else _accepted(emitted, wanted)
            replays += [
                Replay(
                    id=f"{i:016x}",
                    request_class=name,
                    family=f"{method} {drafter}",
                    k_max=k_max,
                    accepted=encode(accepted),
                )
                for i in range(prompts)
            ]
    engine = FakeEngine(methods=())
    return Profile(
        hardware=HARDWARE,
        engine=EngineInfo(name="table", version="1", dtype="x", device="x", threads=1),
        target=engine.target,
        drafters={
            d: FakeEngine(methods=("eagle3",))
            .drafters["fake-head"]
            .model_copy(update={"name": d, "path": d, "method": m})
            for d, m in drafters.items()
        },
        workload="table",
        workload_sha256="0" * 64,
        classes=tuple(classes),
        k_max=max((r.k_max for r in replays), default=1),
        loads=tuple(sorted({b for arms in speeds.values() for by_load in arms.values() for b in by_load})),
        recordings=tuple(recordings),
        replays=tuple(replays),
        step_costs=tuple(steps),
        prefill_costs=(PrefillCost(method="none", prompt_tokens=16, prefill_seconds=(1e-9,)),),
        confirmed=(),
        aa_noise=aa_noise,
        provenance=PROVENANCE,
    )


def table_strategy(arm: str) -> Strategy:
    method, _, k = arm.partition(" k=")
    if method == "none":
        return PLAIN
    return Strategy.model_validate({"method": method, "drafter": f"d-{method}", "num_speculative_tokens": int(k)})


def _accepted(emitted: int, tau: float) -> list[int]:
    """Per-position acceptance whose walk emits `tau` tokens per step on average."""
    out, at, owed = [0] * emitted, 0, 0.0
    while at < emitted:
        owed += tau
        took = max(1, round(owed))
        owed -= took
        out[at] = took - 1
        at += took
    return out


def model_info() -> ModelInfo:
    return FakeEngine().target
