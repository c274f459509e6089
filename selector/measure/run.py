"""Profiling: every stage in order, each measurement into the journal, then the profile."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from selector.engines.base import Engine, Generation
from selector.errors import MeasurementFailed, SelectorError
from selector.measure.assemble import build_profile, generation_entry, generation_of
from selector.measure.confirm import Confirmation, confirm_queue
from selector.measure.hardware import sample_hardware
from selector.measure.journal import Journal
from selector.measure.plan import (
    BATCH_RECORDED,
    PREFILL_LENGTHS,
    PREFILL_REPEATS,
    SHARE_OF_CONFIRMATION,
    Plan,
    Speed,
    StepCell,
    contexts,
    families,
    make_plan,
    pick_prompts,
    replayed,
    step_cells,
)
from selector.measure.progress import Progress, Silent
from selector.measure.windows import search_windows
from selector.profile import Profile, Provenance
from selector.strategy import PLAIN, Strategy
from selector.walks import encode
from selector.workload import Request, Workload


@dataclass(frozen=True)
class Settings:
    """What the user asked for. `prompts_per_class` overrides what the budget would give."""

    budget_seconds: float = 300.0
    k_max: int = 8
    loads: tuple[int, ...] = (1, 2, 4, 8)
    seed: int = 0
    prompts_per_class: int | None = None
    confirm: bool = True
    command: str = ""


class Measurement:
    """One profiling run over an engine; `run` may be called again on the same journal after an interruption."""

    def __init__(
        self, engine: Engine, workload: Workload, settings: Settings, progress: Progress | None = None
    ) -> None:
        self.engine, self.workload, self.settings = engine, workload, settings
        self.progress: Progress = progress or Silent()
        self.near = contexts(engine, workload)[0]
        self.cells = step_cells(engine, workload, settings.k_max, settings.loads)
        self.started = datetime.now(UTC).isoformat(timespec="seconds")
        self.stages: dict[str, float] = {}

    def header(self) -> dict[str, Any]:
        """What a journal must agree on to be continued."""
        s = self.settings
        return {
            "workload": self.workload.digest, "target": self.engine.target.config_sha256,
            "drafters": {n: [d.config_sha256, changed(d.path)] for n, d in self.engine.drafters.items()},
            "engine": self.engine.info.model_dump(mode="json"), "budget_seconds": s.budget_seconds, "k_max": s.k_max,
            "loads": list(s.loads), "seed": s.seed, "prompts_per_class": s.prompts_per_class, "confirm": s.confirm,
        }  # fmt: skip

    def plan(self, journal: Journal | None = None) -> Plan:
        """Time two steps and plan; a resumed run keeps the plan it began with."""
        if journal is not None and "plan" in journal:
            return Plan(**journal["plan"])
        speed, settings = Speed.of(self.engine), self.settings
        plan = make_plan(
            self.workload,
            self.cells,
            len(self.engine.drafters),
            speed,
            settings.budget_seconds,
            settings.prompts_per_class,
        )
        if journal is not None:
            journal.add("plan", dict(plan.__dict__))
        return plan

    def run(self, journal: Journal) -> Profile:
        """Measure what the journal lacks; raises `MeasurementFailed` when plain decoding itself fails."""
        plan = self.plan(journal)
        self.progress.begin(plan.total_seconds)
        if "started" not in journal:
            journal.add("started", {"at": self.started})
        if "hardware" not in journal:
            journal.add("hardware", sample_hardware().model_dump())
        prompts = {
            name: pick_prompts(rs, plan.prompts_per_class, self.settings.seed)
            for name, rs in self.workload.by_class().items()
        }
        with self._stage("recording plain outputs", journal):
            self._record(journal, prompts, plan)
        with self._stage("acceptance", journal):
            self._replay(journal, plan)
        with self._stage("step cost", journal):
            self._step_costs(journal, plan)
        with self._stage("prefill cost", journal):
            self._prefill_costs(journal, plan)
        if self.settings.confirm:
            with self._stage("confirmation", journal):
                unchecked = self._profile(journal, complete=False)
                queue = confirm_queue(unchecked, self.settings.seed, rivals=plan.confirm_rivals)
                confirmation = Confirmation(self.engine, journal, plan, prompts, self.settings.seed)
                confirmation.run(queue, self._seconds_to_confirm(journal), self.progress)
        return self._profile(journal, complete=True)

    @contextmanager
    def _stage(self, name: str, journal: Journal) -> Iterator[None]:
        self.progress.stage(name)
        start = time.monotonic()
        try:
            yield
        finally:  # an interrupted stage has cost its time too
            count = sum(1 for _ in journal.under(f"stage/{name}"))
            journal.add(f"stage/{name}/{count}", {"name": name, "seconds": time.monotonic() - start})

    def _seconds_to_confirm(self, journal: Journal) -> float:
        """What the budget has left, and at least its share for confirmation, whatever the stages before took."""
        spent: float = sum(e["seconds"] for e in journal.under("stage"))
        budget = self.settings.budget_seconds
        return max(SHARE_OF_CONFIRMATION * budget, budget - spent)

    def _record(self, journal: Journal, prompts: dict[str, list[Request]], plan: Plan) -> None:
        """Batches run across classes, prompts of like length together: little padding, no small last batches."""
        wanted = [(name, r) for name, requests in prompts.items() for r in requests]
        todo = [(name, r) for name, r in wanted if f"recording/{name}/{r.digest}" not in journal]
        todo.sort(key=lambda item: (item[1].max_tokens, self.engine.prompt_tokens(item[1])))
        each = plan.record_seconds / max(1, len(wanted))
        self.progress.skip(each * (len(wanted) - len(todo)))
        for group in _groups(todo, BATCH_RECORDED):
            self.progress.stage(f"recording plain outputs: {', '.join(dict.fromkeys(name for name, _ in group))}")
            try:
                recorded = self.engine.record([r for _, r in group], seed=self.settings.seed)
            except SelectorError as error:
                classes = ", ".join(sorted({repr(name) for name, _ in group}))
                raise MeasurementFailed(f"plain decoding of class {classes} failed: {error}") from error
            for (name, r), g in zip(group, recorded, strict=True):
                journal.add(f"recording/{name}/{r.digest}", generation_entry(name, r.digest, g))
            self.progress.advance(each * len(group))

    def _replay(self, journal: Journal, plan: Plan) -> None:
        recordings = list(journal.under("recording"))
        if "windows" not in journal:
            self.progress.stage("n-gram windows")
            by_class: dict[str, list[Generation]] = {}
            for e in recordings:
                by_class.setdefault(e["class"], []).append(generation_of(e))
            found = search_windows(by_class, self.settings.k_max, self.settings.seed, lambda: None)
            journal.add("windows", {"windows": [s.model_dump() for s in found]})
        chosen = [Strategy.model_validate(s) for s in journal["windows"]["windows"]]
        each = plan.replay_seconds / max(1, len(recordings))
        requests = {name: rs[0] for name, rs in self.workload.by_class().items()}
        for e in recordings:
            self.progress.stage(f"acceptance by replay: {e['class']}")
            r = requests[e["class"]]
            keys = {
                f"replay/{e['class']}/{s.family}/{e['id']}": s
                for s in (*replayed(self.engine, self.settings.k_max, r.temperature), *chosen)
            }
            done = self.progress.skip if all(k in journal for k in keys) else self.progress.advance
            for key, strategy in keys.items():
                if key not in journal:
                    seed = self.settings.seed + int(e["id"][:8], 16) + 1_000_003  # not the recording's own stream
                    a = self.engine.replay(
                        generation_of(e), strategy, temperature=r.temperature, top_p=r.top_p, seed=seed
                    )
                    journal.add(key, {
                        "id": e["id"], "request_class": e["class"], "family": strategy.family, "k_max": strategy.k,
                        "accepted": encode(a.accepted), "proposed": None if a.proposed is None else encode(a.proposed),
                    })  # fmt: skip
            done(each)

    def _step_costs(self, journal: Journal, plan: Plan) -> None:
        """Repeats are the outer loop, cells shuffled inside: a slow minute then hits all cells alike."""
        each = plan.step_cost_seconds / (plan.step_repeats * len(self.cells))
        for repeat in range(plan.step_repeats):
            order = list(self.cells)
            random.Random(self.settings.seed + repeat).shuffle(order)
            for cell in order:
                if f"{cell.key}/{repeat}" in journal:
                    self.progress.skip(each)
                    continue
                self.progress.stage(f"step cost: {cell.strategy.method} k={cell.strategy.k} batch {cell.batch}")
                journal.add(f"{cell.key}/{repeat}", self._time_step(cell))
                self.progress.advance(each)

    def _anchor(self, batch: int) -> float:
        """A plain step right before a timing: what the machine gives at this minute."""
        return self.engine.step_seconds(PLAIN, batch=batch, context=self.near, sampling="greedy", repeats=1)[0]

    def _time_step(self, cell: StepCell) -> dict[str, Any]:
        s, anchor = cell.strategy, self._anchor(cell.batch)
        seconds = self.engine.step_seconds(s, batch=cell.batch, context=cell.context, sampling=cell.sampling, repeats=1)
        return {
            "method": s.method, "drafter": s.drafter, "drafted": s.k, "batch": cell.batch, "context": cell.context,
            "sampling": cell.sampling, "draft_sample_method": s.draft_sample_method, "anchor": anchor,
            "seconds": seconds[0],
        }  # fmt: skip

    def _prefill_costs(self, journal: Journal, plan: Plan) -> None:
        """The n-gram lookup has no prefill of its own: plain's stands for it."""
        strategies = (PLAIN, *families(self.engine, 1))
        each = plan.prefill_seconds / (len(strategies) * len(PREFILL_LENGTHS) * PREFILL_REPEATS)
        for repeat in range(PREFILL_REPEATS):
            for s in strategies:
                for length in PREFILL_LENGTHS:
                    key = f"prefill/{s.family}/{length}/{repeat}"
                    if key in journal:
                        self.progress.skip(each)
                        continue
                    anchor = self._anchor(1)
                    seconds = self.engine.prefill_seconds(s, prompt_tokens=length, repeats=1)[0]
                    journal.add(key, {
                        "method": s.method, "drafter": s.drafter, "prompt_tokens": length, "anchor": anchor,
                        "seconds": seconds,
                    })  # fmt: skip
                    self.progress.advance(each)

    def _profile(self, journal: Journal, *, complete: bool) -> Profile:
        from selector import __version__

        seconds: dict[str, float] = {}
        for e in journal.under("stage"):
            seconds[e["name"]] = round(seconds.get(e["name"], 0.0) + e["seconds"], 3)
        provenance = Provenance(
            selector_version=__version__,
            command=self.settings.command or " ".join(sys.argv),
            started=journal["started"]["at"],
            seconds_by_stage=seconds,
            seed=self.settings.seed,
            budget_seconds=self.settings.budget_seconds,
            complete=complete,
            interruptions=sum(1 for _ in journal.under("resumed")),
        )
        return build_profile(
            journal,
            self.engine,
            self.workload,
            k_max=self.settings.k_max,
            loads=self.settings.loads,
            provenance=provenance,
        )


def measure(
    engine: Engine,
    workload: Workload,
    journal_path: Path,
    settings: Settings | None = None,
    *,
    progress: Progress | None = None,
    resume: bool = False,
    fresh: bool = False,
) -> Profile:
    """Profile an engine on a workload. The journal stays beside the profile until the caller discards it.

    An unfinished journal is refused unless it is to be continued (`resume`) or thrown away (`fresh`).
    """
    run = Measurement(engine, workload, settings or Settings(), progress)
    return journalled(run, journal_path, resume=resume, fresh=fresh)


class Runnable(Protocol):
    """A measurement that goes through a journal."""

    started: str

    def header(self) -> dict[str, Any]:
        """What a journal must agree on to be continued."""

    def run(self, journal: Journal) -> Profile:
        """Measure what the journal lacks."""


def journalled(run: Runnable, journal_path: Path, *, resume: bool, fresh: bool) -> Profile:
    """Run a measurement with its journal open; the file stays until the caller discards it."""
    with Journal(journal_path, run.header(), resume=resume, fresh=fresh) as journal:
        journal.note_resumption(run.started)
        return run.run(journal)


def changed(folder: str) -> int:
    """When a drafter's files last changed (ns): weights trained again must not join the old ones in one profile."""
    files = Path(folder).glob("*") if Path(folder).is_dir() else ()
    return max((f.stat().st_mtime_ns for f in files), default=0)


def _groups(items: Sequence[tuple[str, Request]], size: int) -> Iterator[Sequence[tuple[str, Request]]]:
    for i in range(0, len(items), size):
        yield items[i : i + size]
