"""Confirmation: real end-to-end cells where a wrong choice would cost most, kept in an Optuna study."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from selector.engines.base import Engine, Generation
from selector.errors import SelectorError
from selector.measure.journal import Journal
from selector.measure.plan import Plan, pick_prompts
from selector.measure.progress import Progress
from selector.profile import Profile, Run
from selector.strategy import PLAIN, Strategy
from selector.workload import Request

if TYPE_CHECKING:
    import optuna


@dataclass(frozen=True)
class Cell:
    """A class and the strategy to confirm for it; `gain` is what the decision stands to lose, for the order."""

    request_class: str
    strategy: Strategy
    gain: float

    @property
    def key(self) -> str:
        """Name of the cell in the study."""
        return f"{self.request_class} | {self.strategy.family} | k={self.strategy.k}"


def confirm_queue(profile: Profile, seed: int) -> list[Cell]:
    """Each class's best strategy first, then its best of another family, in order of expected regret.

    Expected regret of a class: the mean over joint draws of (best value in the draw - value of the point choice),
    so a clear winner comes late and a close call early; plain decoding is the first rival of every class.
    """
    from selector.recommend.arena import Arena

    arena = Arena(profile, "throughput", 1, draws=100, seed=seed)
    first, second = [], []
    for name in arena.classes:
        values = {s: arena.value(s, {name: 1.0}) for s in arena.candidates}
        drafted = sorted((s for s in values if s != PLAIN), key=lambda s: -float(values[s][0]))
        best = drafted[0]
        stacked = np.stack(list(values.values()))[:, 1:]
        regret = float(np.mean(stacked.max(axis=0) - values[best][1:]))
        first.append(Cell(name, best, regret))
        rival = next((s for s in drafted if s.family != best.family), None)
        if rival is not None:
            second.append(Cell(name, rival, regret))
    return [*sorted(first, key=lambda c: -c.gain), *sorted(second, key=lambda c: -c.gain)]


class Confirmation:
    """Runs the queue until its seconds are spent. The journal is the truth; the study is rebuilt from it."""

    def __init__(
        self, engine: Engine, journal: Journal, plan: Plan, prompts: dict[str, list[Request]], seed: int
    ) -> None:
        self.engine, self.journal, self.plan, self.prompts, self.seed = engine, journal, plan, prompts, seed

    def run(self, queue: list[Cell], seconds: float, progress: Progress) -> optuna.Study:
        """Measure cells in study order until `seconds` are spent.

        Returns the study (value: speedup over plain, ratio of total seconds)."""
        study = self._study(queue)
        by_key = {c.key: c for c in queue}
        spent, longest = 0.0, 0.0
        for _ in study.get_trials(deepcopy=False, states=(_state("WAITING"),)):
            if spent + 0.5 * longest > seconds:
                break
            trial = study.ask()
            cell = by_key[trial.suggest_categorical("cell", list(by_key))]
            progress.stage(f"confirming {cell.request_class}: {cell.strategy.label}")
            start = time.monotonic()
            try:
                study.tell(trial, self._measure(cell))
            except SelectorError as error:
                self.journal.add(f"skipped/{cell.key}", {"what": cell.key, "reason": str(error)})
                study.tell(trial, state=_state("FAIL"))
            took = time.monotonic() - start
            spent, longest = spent + took, max(longest, took)
            progress.advance(took)
        return study

    def _study(self, queue: list[Cell]) -> optuna.Study:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=self.seed))
        choices = optuna.distributions.CategoricalDistribution([c.key for c in queue])
        for cell in queue:
            runs = self._runs(cell, "main")
            if (
                len(runs) == self.plan.confirm_prompts * self.plan.confirm_repeats
                or f"skipped/{cell.key}" in self.journal
            ):
                state = _state("COMPLETE" if runs else "FAIL")
                value = self._value(cell) if runs else None
                known = optuna.trial.create_trial(
                    params={"cell": cell.key}, distributions={"cell": choices}, value=value, state=state
                )
                study.add_trial(known)
            else:
                study.enqueue_trial({"cell": cell.key})
        return study

    def _measure(self, cell: Cell) -> float:
        """All arms on the class's prompts, interleaved: the order turns with every repeat and prompt."""
        for repeat in range(self.plan.confirm_repeats):
            for i, request in enumerate(self._requests(cell)):
                arms = list(self._arms(cell))
                turn = (repeat + i) % len(arms)
                for strategy, arm in arms[turn:] + arms[:turn]:
                    key = _key(cell.request_class, strategy, arm, request.digest, repeat)
                    if key not in self.journal:
                        g = self.engine.generate(request, strategy, seed=self.seed)
                        self.journal.add(key, {
                            "class": cell.request_class, "strategy": strategy.model_dump(), "arm": arm,
                            "run": run_of(request.digest, repeat, g).model_dump(),
                        })  # fmt: skip
        return self._value(cell)

    def _requests(self, cell: Cell) -> list[Request]:
        return pick_prompts(self.prompts[cell.request_class], self.plan.confirm_prompts, self.seed)

    @staticmethod
    def _arms(cell: Cell) -> Iterator[tuple[Strategy, Literal["main", "aa"]]]:
        yield PLAIN, "main"
        yield cell.strategy, "main"
        yield PLAIN, "aa"

    def _runs(self, cell: Cell, arm: str, strategy: Strategy | None = None) -> list[Run]:
        keys = (
            _key(cell.request_class, strategy or cell.strategy, arm, r.digest, n)
            for r in self._requests(cell)
            for n in range(self.plan.confirm_repeats)
        )
        return [Run.model_validate(self.journal[k]["run"]) for k in keys if k in self.journal]

    def _value(self, cell: Cell) -> float:
        plain, own = self._runs(cell, "main", PLAIN), self._runs(cell, "main")
        return sum(map(_seconds, plain)) / sum(map(_seconds, own))


def run_of(prompt_id: str, repeat: int, g: Generation) -> Run:
    """One request's counts and times."""
    return Run(
        id=prompt_id,
        repeat=repeat,
        output_tokens=len(g.output_ids),
        decode_steps=g.decode_steps,
        drafted=g.drafted,
        accepted=g.accepted,
        prefill_seconds=g.prefill_seconds,
        decode_seconds=g.decode_seconds,
    )


def _seconds(run: Run) -> float:
    return run.prefill_seconds + run.decode_seconds


def _key(request_class: str, strategy: Strategy, arm: str, prompt_id: str, repeat: int) -> str:
    return f"confirm/{request_class}/{strategy.family}/{strategy.k}/{arm}/{prompt_id}/{repeat}"


def _state(name: str) -> optuna.trial.TrialState:
    import optuna

    return optuna.trial.TrialState[name]
