"""From the journal of a served measurement to a profile."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any

from selector.adapters.ngram import replay_ngram
from selector.engines.served.base import Servers
from selector.measure.assemble import aa_noise, classes_of, recordings_of
from selector.measure.journal import Journal
from selector.measure.stepfit import StepFit, StepPoint
from selector.profile import (
    ConfirmedCell,
    EngineInfo,
    Hardware,
    LiveWalk,
    PrefillCost,
    Profile,
    Provenance,
    Replay,
    Run,
    Skipped,
    StepCost,
)  # fmt: skip
from selector.strategy import LOOKUP_METHODS, PLAIN, Strategy
from selector.walks import encode
from selector.workload import Workload

_UNKNOWN = EngineInfo(name="vllm", version="unknown", dtype="auto", device="unknown", threads=0)


def served_profile(
    journal: Journal, servers: Servers, workload: Workload, *, k_max: int, loads: tuple[int, ...], seed: int,
    provenance: Provenance, valid_k: dict[str, tuple[int, ...]] | None = None,
) -> Profile:  # fmt: skip
    """Everything measured so far as one profile."""
    recordings = recordings_of(journal)
    cells = confirmed_cells(journal)
    return Profile(
        hardware=Hardware.model_validate(journal["hardware"]),
        engine=_engine(journal),
        target=servers.target,
        drafters=dict(servers.drafters),
        workload=workload.source,
        workload_sha256=workload.digest,
        temperature_bands=workload.temperature_bands,
        classes=tuple(classes_of(workload, recordings)),
        k_max=k_max,
        valid_k=valid_k or {},
        loads=loads,
        recordings=tuple(recordings),
        replays=tuple(_ngram_replays(journal)),
        live=tuple(LiveWalk.model_validate(e) for e in journal.under("live")),
        step_costs=tuple(step_costs(journal, k_max, loads, seed)),
        prefill_costs=tuple(_prefill_costs(journal)),
        confirmed=tuple(cells),
        aa_noise=max(aa_noise(cells), _between_launches(cells)),
        skipped=tuple(Skipped.model_validate(e) for e in journal.under("skipped")),
        provenance=provenance,
    )


def _engine(journal: Journal) -> EngineInfo:
    """The plain launch's engine; a launch that ran on another runner is named beside it."""
    launches = list(journal.under("launch"))
    if not launches:
        return _UNKNOWN
    info = EngineInfo.model_validate(launches[0]["engine"])
    others = {
        f"runner of {e['name']}": str(e["engine"]["runner"]) for e in launches if e["engine"]["runner"] != info.runner
    }
    return info.model_copy(update={"packages": info.packages | others})


def _ngram_replays(journal: Journal) -> list[Replay]:
    """Every kept window over every plain recording: lookup needs the tokens alone."""
    if "windows" not in journal:
        return []
    out = []
    for s in map(Strategy.model_validate, journal["windows"]["windows"]):
        for e in journal.under("recording"):
            if "output" not in e:
                continue
            accepted, proposed = replay_ngram(e["prompt"], e["output"], s.lookup_min or 1, s.lookup_max or 1, s.k)
            out.append(Replay(
                id=e["id"], request_class=e["class"], family=s.family, k_max=s.k, accepted=encode(accepted),
                proposed=encode(proposed),
            ))  # fmt: skip
    return out


def step_costs(journal: Journal, k_max: int, loads: Sequence[int], seed: int) -> list[StepCost]:
    """Timed steps as rows, and for every method the widths and batches between them by its fit, marked inferred."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for e in journal.under("step"):
        groups[e["method"], e["drafter"]].append(e)
    plain_entries = groups.pop(("none", None), [])
    if not plain_entries:
        return []
    rows = [_row(cell, 0, times) for cell, times in _timed(plain_entries)]
    near = _near(plain_entries)
    floor = {c["batch"]: t for c, t in _timed(plain_entries) if c["sampling"] == "greedy" and c["context"] == near}
    for entries in groups.values():
        rows += _method_rows(entries, floor, near, k_max, seed)
    return rows


def _method_rows(
    entries: list[dict[str, Any]], floor: dict[int, tuple[float, ...]], near: int, k_max: int, seed: int
) -> list[StepCost]:
    timed = _timed(entries)
    greedy = [(c, t) for c, t in timed if c["sampling"] == "greedy" and c["context"] == near]
    if not greedy:
        return []
    fit = StepFit([StepPoint(c["drafted"], c["batch"], t) for c, t in greedy], floor, seed)
    head = greedy[0][0]
    known = {(c["batch"], c["drafted"]): t for c, t in greedy if float(c["drafted"]).is_integer()}
    rows = []
    widths = sorted({k for k in (1, 2, 4, 8, 16) if k < k_max} | {k_max, *(int(d) for _, d in known)} - {0})
    looked_up = head["method"] in LOOKUP_METHODS
    if looked_up:  # a step for which nothing was found: not a plain one, the engine around it is another
        widths = [0, *widths]
    for batch in sorted(floor):
        if not looked_up and sum(b == batch for b, _ in known) > 1 and (batch, k_max) in known:
            widths_here = [w for w in widths if (batch, w) in known]  # `recommend` interpolates between them
        else:
            widths_here = widths
        for width in widths_here:
            times = known.get((batch, width))
            cell = head | {"batch": batch, "drafted": width, "context": near, "sampling": "greedy"}
            rows.append(_row(cell, width, times or fit.seconds(width, batch), inferred=times is None))
    for cell, times in timed:
        if cell["sampling"] == "greedy":
            continue
        timed_width = max(1, round(cell["drafted"]))  # lookup fills a step as it can; the fit moves it to a whole width
        for width in (0, timed_width) if looked_up else (timed_width,):
            moved = fit.point(width, cell["batch"]) - fit.point(cell["drafted"], cell["batch"])
            rows.append(_row(cell, width, tuple(max(1e-6, t + moved) for t in times), inferred=width == 0))
    return rows


def _timed(entries: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], tuple[float, ...]]]:
    """Repeats of one probe joined: its cell, with the mean of drafted tokens, and its seconds."""
    cells: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for e in entries:
        cells[e["k"], e["batch"], e["context"], e["sampling"], e.get("repetitive", False)].append(e)
    return [
        (es[0] | {"drafted": sum(e["drafted"] for e in es) / len(es)}, tuple(e["seconds"] for e in es))
        for es in cells.values()
    ]


def _row(cell: dict[str, Any], drafted: int, times: Sequence[float], *, inferred: bool = False) -> StepCost:
    return StepCost(
        method=cell["method"], drafter=cell["drafter"], drafted=drafted, batch=cell["batch"], context=cell["context"],
        sampling=cell["sampling"], step_seconds=tuple(times), inferred=inferred,
    )  # fmt: skip


def _near(entries: Sequence[dict[str, Any]]) -> int:
    """The context that most probes stand at."""
    contexts = [int(e["context"]) for e in entries]
    return max(set(contexts), key=lambda c: (contexts.count(c), -c))


def _prefill_costs(journal: Journal) -> list[PrefillCost]:
    cells: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for e in journal.under("prefill"):
        cells[e["method"], e["drafter"], e["prompt_tokens"]].append(e["seconds"])
    return [
        PrefillCost(method=m, drafter=d, prompt_tokens=n, prefill_seconds=tuple(times))
        for (m, d, n), times in cells.items()
    ]


def confirmed_cells(journal: Journal) -> list[ConfirmedCell]:
    """Every end-to-end run."""
    return [
        ConfirmedCell(
            request_class=e["class"], strategy=Strategy.model_validate(e["strategy"]), load=e["load"], arm=e["arm"],
            runs=tuple(Run.model_validate(r) for r in e["runs"]), max_running=e["max_running"],
            max_waiting=e["max_waiting"],
        )
        for e in journal.under("confirm")
    ]  # fmt: skip


def _between_launches(cells: Sequence[ConfirmedCell]) -> float:
    """How far the two plain launches lie apart, as the log ratio of their seconds per token; 0 without two.

    A launch moves all its runs alike (where its memory landed, who else used the machine), which pairs of runs inside
    one launch cannot show.
    """
    totals: dict[str, list[float]] = {"main": [], "aa": []}
    known = {(c.request_class, c.load, c.arm): _per_token(c) for c in cells if c.strategy == PLAIN}
    for name, load, arm in known:
        if arm == "aa" and (name, load, "main") in known:
            totals["aa"].append(known[name, load, "aa"])
            totals["main"].append(known[name, load, "main"])
    return abs(math.log(sum(totals["aa"]) / sum(totals["main"]))) if totals["aa"] else 0.0


def _per_token(cell: ConfirmedCell) -> float:
    return median((r.prefill_seconds + r.decode_seconds) / r.output_tokens for r in cell.runs)
