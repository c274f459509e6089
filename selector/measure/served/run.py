"""Profiling engines that serve: one launch after the other, each measurement into the journal."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from selector.engines.served.base import OpenServer, Servers
from selector.engines.served.failures import RequestFailed
from selector.errors import MeasurementFailed, ServerFailed
from selector.measure.assemble import generation_of
from selector.measure.hardware import sample_hardware
from selector.measure.journal import Journal
from selector.measure.progress import Progress, Silent
from selector.measure.run import changed, journalled
from selector.measure.served.clock import Clock
from selector.measure.served.confirm import Config, confirming
from selector.measure.served.launches import Launch, fixed_launch
from selector.measure.served.plan import ServedPlan, ServedSpeed
from selector.measure.served.profile import served_profile
from selector.measure.served.settings import Scope, ServedSettings
from selector.measure.served.stages import Stages, speed_of
from selector.measure.windows import search_windows
from selector.profile import Profile, Provenance
from selector.strategy import PLAIN
from selector.workload import Workload

#: A launch that dies is started once more: a second death is its answer.
ATTEMPTS = 2
_FAILURES = (ServerFailed, RequestFailed, MeasurementFailed)


class ServedMeasurement:
    """One profiling run over servers; `run` may be called again on the same journal after an interruption."""

    clock: Clock  # set where `run` begins

    def __init__(
        self, servers: Servers, workload: Workload, settings: ServedSettings, progress: Progress | None = None
    ) -> None:
        self.servers, self.workload, self.settings = servers, workload, settings
        self.scope = Scope(servers, workload, settings)
        self.progress: Progress = progress or Silent()
        self.started = datetime.now(UTC).isoformat(timespec="seconds")

    def header(self) -> dict[str, Any]:
        """What a journal must agree on to be continued."""
        s = self.settings
        return {
            "workload": self.workload.digest, "target": self.servers.target.config_sha256,
            "drafters": {n: [d.config_sha256, changed(d.path)] for n, d in self.servers.drafters.items()},
            "engine": dict(self.servers.settings), "budget_seconds": s.budget_seconds, "k_max": s.k_max,
            "loads": list(s.loads), "seed": s.seed, "prompts_per_class": s.prompts_per_class, "confirm": s.confirm,
            "methods": s.methods and list(s.methods),
        }  # fmt: skip

    def plan(self, speed: ServedSpeed | None = None) -> ServedPlan:
        """What fits the budget; see `Scope.plan`."""
        return self.scope.plan(speed)

    def run(self, journal: Journal) -> Profile:
        """Measure what the journal lacks. Raises `MeasurementFailed` when plain decoding itself cannot be measured."""
        if "started" not in journal:
            journal.add("started", {"at": self.started})
        if "hardware" not in journal:
            journal.add("hardware", sample_hardware().model_dump())
        asked = self.settings.prompts_per_class is not None  # a number of prompts asked for is kept to
        self.clock = Clock(math.inf if asked else self.settings.budget_seconds, journal)
        self.progress.begin((_planned(journal) or self.plan()).total_seconds)
        for what, reason in self.scope.unavailable.items():
            self._lacks(journal, what, reason)
        with self._stage(self.scope.launches[0].name, journal):
            self._first(journal)
        for launch in self.scope.launches:
            if launch.strategy != PLAIN:
                with self._stage(launch.name, journal):
                    self._method(journal, launch)
        self._windows(journal)
        if self.settings.confirm:
            with self._stage("confirmation", journal):
                self._confirm(journal)
        return self._profile(journal, complete=True)

    def _first(self, journal: Journal) -> None:
        """Recordings, steps, prefill and end-to-end runs of plain decoding: the floor of everything.

        Among servers that run already there may be none that decodes plainly; then the first one writes the outputs.
        """
        launch = self.scope.launches[0]
        if "done/first" in journal:
            return
        if launch.strategy != PLAIN:
            self._lacks(
                journal, "plain decoding", "no server decodes plainly (--base-url none=URL): no speedup is known"
            )

        def measure(server: OpenServer) -> None:
            if "plan" not in journal:
                self._make_plan(journal, server)
            stages = self._stages(journal, server)
            stages.record()
            if launch.strategy == PLAIN:
                self._costs(journal, stages, launch)
            if self.settings.confirm:
                stages.cells(launch.strategy, list(stages.prompts), "main")

        try:
            self._on(journal, launch, measure)
        except (ServerFailed, RequestFailed, MeasurementFailed) as error:
            raise MeasurementFailed(f"plain decoding cannot be measured: {error}") from error
        journal.add("done/first", {})

    def _costs(self, journal: Journal, stages: Stages, launch: Launch) -> None:
        """Step and prefill cost; a server that runs already may not let them be timed, which is named."""
        try:
            stages.steps(launch)
            stages.prefill(launch)  # of lookup too: vLLM's was seen to take longer, though nothing is drafted then
        except (MeasurementFailed, RequestFailed) as error:
            if self.servers.running is None:
                raise
            self._lacks(journal, f"step cost of {launch.name}", str(error))

    def _lacks(self, journal: Journal, what: str, reason: str) -> None:
        if f"skipped/{what}" not in journal:
            journal.add(f"skipped/{what}", {"what": what, "reason": reason})
            self.progress.say(f"{what}: {reason}")

    def _make_plan(self, journal: Journal, server: OpenServer) -> None:
        self.progress.stage("plain decoding: first timings")
        try:
            plan = self.plan(speed_of(server, self.settings.loads, self.settings.seed))
        except RequestFailed:
            if self.servers.running is None:
                raise
            plan = self.plan()  # it takes no token ids: nothing can be timed beforehand
        journal.add("plan", plan.as_dict())
        self.progress.begin(plan.total_seconds)  # until now it was a guess
        if plan.total_seconds > 1.1 * self.settings.budget_seconds:
            self.progress.say(
                f"this takes about {plan.total_seconds / 60:.0f} minutes at least: fewer --method, loads or "
                "--prompts-per-class would shorten it"
            )

    def _method(self, journal: Journal, launch: Launch) -> None:
        """A launch of a method: acceptance (model drafters), step costs, prefill."""
        name = launch.name

        def measure(server: OpenServer) -> None:
            stages = self._stages(journal, server)
            if launch.live:
                stages.live(launch, self._live_over(stages.plan, launch))
            self._costs(journal, stages, launch)
            stages.check_speculation(launch.strategy.method)

        self._or_skipped(journal, name, lambda: self._on(journal, launch, measure))

    def _live_over(self, plan: ServedPlan, launch: Launch) -> Callable[[], bool]:
        """Whether acceptance on this server has had its share of the budget."""
        later = self.scope.launches[self.scope.launches.index(launch) + 1 :]
        step_seconds = plan.step_seconds / len(self.scope.launches)
        return self.clock.deadline(self.clock.for_acceptance(plan, launch, later, step_seconds))

    def _or_skipped(self, journal: Journal, name: str, work: Callable[[], None]) -> None:
        """Do it, or write down why not: the run goes on either way."""
        if f"done/{name}" in journal or f"skipped/{name}" in journal:
            return
        try:
            work()
            journal.add(f"done/{name}", {})
        except _FAILURES as error:
            journal.add(f"skipped/{name}", {"what": name, "reason": str(error)})
            self.progress.say(f"{name}: {error}")

    def _on(self, journal: Journal, launch: Launch, work: Callable[[OpenServer], None]) -> None:
        """Work on a server of this launch. One that came up and then died is started once more, which is written down;
        what does not come up would not the next time.
        """
        for attempt in range(ATTEMPTS):
            came_up = False
            try:
                with self._server(journal, launch) as server:
                    came_up = True
                    work(server)
                return
            except _FAILURES as error:
                if not came_up or attempt + 1 == ATTEMPTS:
                    raise
                what = f"{launch.name} (then started again)"
                journal.add(f"skipped/again/{launch.name}", {"what": what, "reason": str(error)})
                self.progress.say(f"{what}: {error}")

    def _windows(self, journal: Journal) -> None:
        """N-gram windows by replay of the plain server's token ids."""
        if "windows" in journal or not any(s.method == "ngram" for s in self.scope.strategies()):
            return
        by_class: dict[str, list[Any]] = {}
        for e in journal.under("recording"):
            if "output" in e:
                by_class.setdefault(e["class"], []).append(generation_of(e))
        if not by_class:
            return
        found = search_windows(by_class, self.settings.k_max, self.settings.seed, lambda: None)
        journal.add("windows", {"windows": [s.model_dump() for s in found]})

    def _confirm(self, journal: Journal) -> None:
        """The likeliest winners as real servers, then the plain one again: a slow drift meets both ends."""
        plan = _planned(journal)
        assert plan is not None  # `_plain` wrote it
        everything = tuple(self.scope.prompts(plan))
        if "queue" not in journal:
            journal.add("queue", {"configs": [c.as_dict() for c in self._queue(journal, plan, everything)]})
        arms = [(config, "main") for config in map(Config.of, journal["queue"]["configs"])]
        if self.scope.launches[0].strategy == PLAIN:
            arms.append((Config(PLAIN, everything), "aa"))
        for done, (config, arm) in enumerate(arms):
            self._confirm_one(journal, config, arm, self.clock.share(plan, len(arms) - done))

    def _queue(self, journal: Journal, plan: ServedPlan, classes: tuple[str, ...]) -> list[Config]:
        """What is confirmed; of servers that run already, each but the first."""
        if self.servers.running is not None:
            return [Config(launch.strategy, classes) for launch in self.scope.launches[1:]]
        unchecked = self._profile(journal, complete=False)
        return confirming(unchecked, self.clock.arms(plan), self.settings.loads, self.settings.seed)

    def _confirm_one(self, journal: Journal, config: Config, arm: str, seconds: float) -> None:
        """End-to-end cells of one configuration, in so many seconds with its start."""
        name = f"confirm {config.strategy.label}" + (" again" if arm == "aa" else "")
        launch = fixed_launch(config.strategy, self.settings.loads, name)
        over = self.clock.deadline(seconds)

        def measure(server: OpenServer) -> None:
            self._stages(journal, server).cells(config.strategy, config.classes, arm, over)

        self._or_skipped(journal, name, lambda: self._on(journal, launch, measure))

    def _stages(self, journal: Journal, server: OpenServer) -> Stages:
        plan = _planned(journal)
        assert plan is not None
        return Stages(server, journal, self.scope, plan, self.progress)

    @contextmanager
    def _server(self, journal: Journal, launch: Launch) -> Iterator[OpenServer]:
        self.progress.stage(f"starting {launch.name}")
        with self.servers.open(launch.strategy, schedule=launch.schedule, max_batch=launch.max_batch) as server:
            count = sum(1 for _ in journal.under("launch"))
            journal.add(f"launch/{count}", {
                "name": launch.name, "seconds": server.start_seconds, "engine": server.info.model_dump(mode="json"),
            })  # fmt: skip
            self.progress.advance(server.start_seconds)
            yield server

    @contextmanager
    def _stage(self, name: str, journal: Journal) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:  # an interrupted stage has cost its time too
            count = sum(1 for _ in journal.under(f"stage/{name}"))
            journal.add(f"stage/{name}/{count}", {"name": name, "seconds": time.monotonic() - start})

    def _profile(self, journal: Journal, *, complete: bool) -> Profile:
        from selector import __version__

        seconds: dict[str, float] = {}
        for e in journal.under("stage"):
            seconds[e["name"]] = round(seconds.get(e["name"], 0.0) + e["seconds"], 3)
        s = self.settings
        provenance = Provenance(
            selector_version=__version__, command=s.command or " ".join(sys.argv), started=journal["started"]["at"],
            seconds_by_stage=seconds, seed=s.seed, budget_seconds=s.budget_seconds, complete=complete,
            interruptions=sum(1 for _ in journal.under("resumed")),
        )  # fmt: skip
        return served_profile(
            journal, self.servers, self.workload, k_max=s.k_max, loads=s.loads, seed=s.seed, provenance=provenance,
            valid_k=self.scope.valid_k(),
        )  # fmt: skip


def measure_served(
    servers: Servers, workload: Workload, journal_path: Path, settings: ServedSettings | None = None, *,
    progress: Progress | None = None, resume: bool = False, fresh: bool = False,
) -> Profile:  # fmt: skip
    """Profile servers on a workload, as `selector.measure.measure` does an engine in this process."""
    run = ServedMeasurement(servers, workload, settings or ServedSettings(), progress)
    return journalled(run, journal_path, resume=resume, fresh=fresh)


def _planned(journal: Journal) -> ServedPlan | None:
    """The plan that the journal holds: a resumed run measures what the first one set out to."""
    if "plan" not in journal:
        return None
    return ServedPlan(**{k: v for k, v in journal["plan"].items() if k != "total_seconds"})
