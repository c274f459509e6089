"""The stages on an open server: each adds to the journal what it lacks."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from selector.engines.served.base import OpenServer
from selector.engines.served.load_result import Finished
from selector.errors import SelectorError
from selector.measure.journal import Journal
from selector.measure.progress import Progress
from selector.measure.served.confirm import cell_key
from selector.measure.served.launches import Launch, StepProbe
from selector.measure.served.plan import PREFILL_LENGTHS, PREFILL_REPEATS, ServedPlan, ServedSpeed
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
from selector.strategy import Strategy
from selector.workload import Request

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

    def live(self, launch: Launch, k: int) -> None:
        """Accepted counts of every step at one k, at the largest batch that has it."""
        batch, family = launch.batch_for(k), launch.strategy.family
        if batch is None:
            return
        self.progress.stage(f"acceptance: {launch.strategy.method} k={k}")
        todo = [
            (c, r) for c, r in taking_turns(self.prompts) if f"live/{c}/{family}/{k}/{r.digest}" not in self.journal
        ]
        each = self.plan.live_seconds / max(1, 2 * self.scope.drafters * self._count)
        self.progress.skip(each * (self._count - len(todo)))
        failures = Failures()

        def done(name: str, request: Request, finished: Finished) -> None:
            if finished.answer is None:
                failures.add(finished)
            else:
                entry = live_entry(name, request, family, k, finished.answer)
                self.journal.add(f"live/{name}/{family}/{k}/{request.digest}", entry)
            self.progress.advance(each)

        decode_all(self.server, todo, batch, self.seed, done, keep_full=True)
        self._note(f"{family} k={k}", failures)

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
                self.progress.stage(f"step cost: {launch.strategy.method} batch {probe.batch}, {probe.sampling}")
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

    def cells(self, strategy: Strategy, classes: Sequence[str], arm: str) -> None:
        """Every class alone, end to end, at the smallest and the largest load."""
        loads = self.scope.settings.loads
        share = 2 * len(classes) * (2 + self.plan.confirm_launches)
        for load in sorted({min(loads), max(loads)}):
            for name in classes:
                self.progress.stage(f"end to end: {strategy.label}, {name} at load {load}")
                if cell_key(name, strategy, load, arm) in self.journal:
                    self.progress.skip(self.plan.confirm_seconds / share)
                    continue
                self._cell(strategy, name, load, arm)
                self.progress.advance(self.plan.confirm_seconds / share)

    def _cell(self, strategy: Strategy, name: str, load: int, arm: str) -> None:
        """One closed-load run, in the journal as a whole or not at all: its requests ran side by side.

        At load B the prompts are repeated until 2 B requests have run (there is no prefix cache to help a repeat), and
        more follow so that the last ones run at the full load too.
        """
        requests = self.prompts[name][: self.plan.confirm_prompts]
        rounds = max(1, -(-2 * load // len(requests))) if load > 1 else 1
        runs: list[dict[str, Any]] = []
        failures, seen = Failures(), dict[str, int]()

        def done(_: str, request: Request, finished: Finished) -> None:
            if finished.answer is None:
                failures.add(finished)
                return
            repeat = seen.get(request.digest, 0)
            seen[request.digest] = repeat + 1
            runs.append(run_entry(request, repeat, finished.answer))

        todo = [(name, r) for _ in range(rounds) for r in requests]
        result = decode_all(self.server, todo, load, self.seed, done, keep_full=True)
        self._note(f"{strategy.label}, {name} at load {load}", failures)
        if runs and result is not None:
            self.journal.add(cell_key(name, strategy, load, arm), {
                "class": name, "strategy": strategy.model_dump(), "load": load, "arm": arm, "runs": runs,
                "max_running": result.max_running, "max_waiting": result.max_waiting,
            })  # fmt: skip

    def _timer(self) -> StepTimer:
        return StepTimer([e["prompt"] + e["output"] for e in self._recorded()], self.seed)

    def _recorded(self) -> list[dict[str, Any]]:
        entries = list(self.journal.under("recording"))
        return [e | {"prompt": list(e["prompt"]), "output": list(e["output"])} for e in entries]

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
        "method": s.method, "drafter": s.drafter, "k": k, "drafted": timed.drafted if s.method == "ngram" else k,
        "batch": probe.batch, "context": probe.context, "sampling": probe.sampling, "repetitive": probe.repetitive,
        "seconds": timed.seconds, "steps": timed.steps,
    }  # fmt: skip
