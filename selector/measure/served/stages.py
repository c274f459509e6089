"""The stages on an open server: each adds to the journal what it lacks."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from selector.counters import SpeculationCounters, did_not_run
from selector.doubt import Doubt
from selector.engines.served.base import OpenServer
from selector.engines.served.load_result import Finished
from selector.errors import MeasurementFailed, SelectorError
from selector.evidence import Cell, prefix_cache, queueing
from selector.measure.journal import Journal
from selector.measure.progress import Progress
from selector.measure.served.confirm import cell_key
from selector.measure.served.launches import Launch, StepProbe
from selector.measure.served.plan import MIN_PROMPTS, PREFILL_LENGTHS, PREFILL_REPEATS, ServedPlan, ServedSpeed, rounds
from selector.measure.served.probes import (
    ProbeTime,
    StepTimer,
    decode_all,
    live_entry,
    recording_entry,
    run_entry,
    taking_turns,
)
from selector.measure.served.settings import Scope
from selector.strategy import LOOKUP_METHODS, Strategy
from selector.workload import Request

#: Seconds of load, polled once a second, from which the gauges' maximum is believed.
LEAST_POLLED = 4.0
BUDGET_USED = "the budget was used up (--budget)"
_SPEED_CONTEXT = 128
_SPEED_TEXT = tuple(range(300, 360))


class Stages:
    """One server's part of a run. `plan` and the prompts that follow from it are fixed."""

    def __init__(
        self, server: OpenServer, journal: Journal, scope: Scope, plan: ServedPlan, progress: Progress
    ) -> None:
        self.server, self.journal, self.scope, self.plan, self.progress = server, journal, scope, plan, progress
        self.prompts: Mapping[str, list[Request]] = scope.prompts(plan)
        self.seed = scope.settings.seed
        self._count = sum(map(len, self.prompts.values()))

    def record(self) -> None:
        """Plain outputs of all prompts, at the largest load."""
        self.progress.stage("plain outputs")
        todo = [
            (c, r) for c, r in taking_turns(self.prompts) if f"recording/{c}/{r.digest}" not in self.journal
        ]  # fmt: skip
        each = self.plan.record_seconds / max(1, self._count)
        self.progress.skip(each * (self._count - len(todo)))
        failures = Failures()

        def done(name: str, request: Request, finished: Finished) -> None:
            if finished.answer is None:
                failures.add(finished)
            else:
                entry = recording_entry(name, request, finished.answer)
                self.journal.add(f"recording/{name}/{request.digest}", entry)
            self.progress.advance(each)

        decode_all(self.server, todo, max(self.scope.settings.loads), self.seed, done)
        self._note("plain outputs", failures)

    def live(self, launch: Launch, over: Callable[[], bool] = lambda: False) -> None:
        """Accepted counts of every step at the launch's k, at its largest batch.

        Greedy classes first, sampled ones after them, never in one batch: there vLLM 0.32 on CPU accepts too little of
        greedy requests' drafts and changes their outputs (docs/benchmarks/batched-drafts.md).
        """
        self.progress.stage(f"acceptance: {launch.strategy.method} k={launch.strategy.k}")
        failures = Failures()
        for sampled in (False, True):
            prompts = {c: rs for c, rs in self.prompts.items() if (rs[0].temperature > 0) == sampled}
            if prompts:
                self._live(launch, prompts, over, failures)
        self._note(f"{launch.strategy.family} k={launch.strategy.k}", failures)

    def _live(
        self, launch: Launch, prompts: Mapping[str, list[Request]], over: Callable[[], bool], failures: Failures
    ) -> None:
        """Ends early when `over()`, but not before every class has the least prompts and those that are confirmed."""
        batch, family, k = launch.max_batch, launch.strategy.family, launch.strategy.k
        todo = [(c, r) for c, r in taking_turns(prompts) if f"live/{c}/{family}/{k}/{r.digest}" not in self.journal]
        each = self.plan.live_seconds / max(1, self.scope.drafters * self._count)
        run_before, sent = sum(map(len, prompts.values())) - len(todo), 0
        self.progress.skip(each * run_before)
        least = max(MIN_PROMPTS, self.plan.confirm_prompts) * len(prompts)

        def enough(index: int) -> bool:
            nonlocal sent
            if run_before + index >= least and over():
                return True
            sent = max(sent, index + 1)
            return False

        def done(name: str, request: Request, finished: Finished) -> None:
            if finished.answer is None:
                failures.add(finished)
            else:
                entry = live_entry(name, request, family, k, finished.answer)
                self.journal.add(f"live/{name}/{family}/{k}/{request.digest}", entry)
            self.progress.advance(each)

        decode_all(self.server, todo, batch, self.seed, done, keep_full=True, enough=enough)
        self.progress.skip(each * max(0, len(todo) - sent))

    def steps(self, launch: Launch) -> None:
        """Repeats are the outer loop, probes shuffled inside: a slow minute then hits all alike."""
        timer, family = self._timer(), launch.strategy.family
        cells = self.scope.probes[launch.name]
        every = self.plan.step_repeats * sum(map(len, self.scope.probes.values()))
        each = self.plan.step_seconds / max(1, every)
        for repeat in range(self.plan.step_repeats):
            order = list(cells)
            random.Random(self.seed + repeat).shuffle(order)
            for probe in order:
                key = f"step/{family}/{launch.visits[probe.batch]}/{probe.key}/{repeat}"
                if key in self.journal:
                    self.progress.skip(each)
                    continue
                self.progress.stage(f"step cost: {launch.strategy.label} batch {probe.batch}, {probe.sampling}")
                self.journal.add(key, step_entry(launch, probe, timer.time(self.server, probe, repeat)))
                self.progress.advance(each)

    def prefill(self, launch: Launch) -> None:
        """Time to first token of prompts of several lengths."""
        s, timer = launch.strategy, self._timer()
        longest = (self.scope.servers.target.max_model_len or 1 << 20) - 4
        for repeat in range(PREFILL_REPEATS):
            for tokens in (n for n in PREFILL_LENGTHS if n <= longest):
                key = f"prefill/{s.family}/{tokens}/{repeat}"
                if key not in self.journal:
                    self.progress.stage(f"prefill: {s.method}")
                    self.journal.add(key, {
                        "method": s.method, "drafter": s.drafter, "prompt_tokens": tokens,
                        "seconds": timer.prefill_seconds(self.server, tokens, repeat),
                    })  # fmt: skip

    def cells(
        self, strategy: Strategy, classes: Sequence[str], arm: str, over: Callable[[], bool] = lambda: False
    ) -> None:
        """Every class alone, end to end, at the smallest and the largest load; those left when `over()` are named."""
        loads = self.scope.settings.loads
        share = 2 * len(classes) * (2 + self.plan.confirm_launches)
        left = []
        for name in classes:
            for load in sorted({min(loads), max(loads)}):
                self.progress.stage(f"end to end: {strategy.label}, {name} at load {load}")
                if cell_key(name, strategy, load, arm) in self.journal:
                    self.progress.skip(self.plan.confirm_seconds / share)
                elif over():
                    left.append(f"{name} at load {load}")
                    self.progress.skip(self.plan.confirm_seconds / share)
                else:
                    self._cell(strategy, name, load, arm)
                    self.progress.advance(self.plan.confirm_seconds / share)
        if left:
            what = f"end to end, {strategy.label}" + (" again" if arm == "aa" else "")
            self.journal.add(f"skipped/{what}", {"what": f"{what}: {', '.join(left)}", "reason": BUDGET_USED})

    def _cell(self, strategy: Strategy, name: str, load: int, arm: str) -> None:
        """One closed-load run, in the journal as a whole or not at all: its requests ran side by side.

        At load B the prompts are repeated (`rounds`; there is no prefix cache to help a repeat), and more follow so
        that the last ones run at the full load too.
        """
        requests = self.prompts[name][: self.plan.confirm_prompts]
        runs: list[dict[str, Any]] = []
        failures, seen = Failures(), dict[str, int]()

        def done(_: str, request: Request, finished: Finished) -> None:
            if finished.answer is None:
                failures.add(finished)
                return
            repeat = seen.get(request.digest, 0)
            seen[request.digest] = repeat + 1
            runs.append(run_entry(request, repeat, finished.answer))

        todo = [(name, r) for _ in range(rounds(load, len(requests))) for r in requests]
        result = decode_all(self.server, todo, load, self.seed, done, keep_full=True)
        self._note(f"{strategy.label}, {name} at load {load}", failures)
        if not runs or result is None:
            return
        polled = result.seconds > LEAST_POLLED  # a gauge looked at once or twice may have met the server between two
        running, waiting = (
            int(n) if polled and n is not None else None for n in (result.max_running, result.max_waiting)
        )
        cell = Cell(
            strategy.label, load, running_max=running, waiting_max=waiting,
            prefix_cache_queries=sum(a.prompt_tokens for a in result.answers),
            prefix_cache_hits=sum(a.cached_tokens or 0 for a in result.answers),
        )  # fmt: skip
        what = f"{strategy.label}, {name} at load {load}"
        if contaminated := prefix_cache(cell):
            self._note_doubts(what, contaminated)
            if self.scope.servers.running is None:  # a running server caches as it does in production
                return
        self._note_doubts(what, [d for d in queueing(cell) if d.kind == "capacity lost"])
        self.journal.add(cell_key(name, strategy, load, arm), {
            "class": name, "strategy": strategy.model_dump(), "load": load, "arm": arm, "runs": runs,
            "max_running": running, "max_waiting": waiting,
        })  # fmt: skip

    def check_speculation(self, method: str) -> None:
        """Raises `MeasurementFailed` when a method was expected and the engine's counters say that nothing was drafted.

        An engine that exports its counters but none of speculation runs without it: zero, not unknown.
        """
        c = self.server.client.counters()
        if c is None or c.generated_tokens is None:
            return
        drafts, drafted, accepted = (int(n or 0) for n in (c.drafts, c.drafted_tokens, c.accepted_tokens))
        if reason := did_not_run(SpeculationCounters(drafts, drafted, accepted), method):
            raise MeasurementFailed(reason)

    def _note_doubts(self, what: str, doubts: Sequence[Doubt]) -> None:
        for doubt in doubts:
            key = f"skipped/{doubt.kind}/{what}"
            if key not in self.journal:
                self.journal.add(key, {"what": f"{what} ({doubt.kind})", "reason": doubt.sentence})
            self.progress.say(f"{what}: {doubt.sentence}")

    def _timer(self) -> StepTimer:
        """Raises `MeasurementFailed` without token ids: probes repeat what the model wrote."""
        texts = [[*e["prompt"], *e["output"]] for e in self.journal.under("recording") if "output" in e]
        if not texts:
            raise MeasurementFailed(
                "the server returns no token ids (return_token_ids of vLLM): step and prefill cost cannot be timed, "
                "n-gram acceptance cannot be replayed"
            )
        return StepTimer(texts, self.seed)

    def _note(self, what: str, failures: Failures) -> None:
        """Failed requests are told and left out; when the server has died, its error ends the launch instead."""
        if failures.errors:
            self.server.check()
            text = failures.text
            if f"skipped/{what}" not in self.journal:
                self.journal.add(f"skipped/{what}", {"what": what, "reason": text})
            self.progress.say(f"{what}: {text}")


class Failures:
    """Requests of one stage that failed."""

    def __init__(self) -> None:
        self.errors: list[SelectorError] = []

    def add(self, finished: Finished) -> None:
        """One more."""
        if finished.failure is not None:
            self.errors.append(finished.failure)

    @property
    def text(self) -> str:
        """How many, and the first reason."""
        many = f"{len(self.errors)} requests" if len(self.errors) > 1 else "one request"
        return f"{many} failed and {'are' if len(self.errors) > 1 else 'is'} left out: {self.errors[0]}"


def speed_of(server: OpenServer, loads: Sequence[int], seed: int) -> ServedSpeed:
    """Two quick timings on text nobody chose."""
    timer, full = StepTimer([_SPEED_TEXT], seed), max(2, *loads)
    one = timer.time(server, StepProbe(1, _SPEED_CONTEXT, "greedy"), 0).seconds
    many = timer.time(server, StepProbe(full, _SPEED_CONTEXT, "greedy"), 1).seconds
    return ServedSpeed(max(server.start_seconds, 1.0), one, max(0.0, (many - one) / (full - 1)))


def step_entry(launch: Launch, probe: StepProbe, timed: ProbeTime) -> dict[str, Any]:
    """A timed step as the journal keeps it. Model drafters fill every step; what lookup proposed is counted."""
    s, k = launch.strategy, launch.visits[probe.batch]
    return {
        "method": s.method, "drafter": s.drafter, "k": k, "drafted": timed.drafted if s.method in LOOKUP_METHODS else k,
        "batch": probe.batch, "context": probe.context, "sampling": probe.sampling, "repetitive": probe.repetitive,
        "seconds": timed.seconds, "steps": timed.steps,
    }  # fmt: skip
