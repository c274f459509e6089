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
class Session:
    """A class and the strategies to confirm for it in one interleaved run; `regret` orders the sessions."""

    request_class: str
    strategies: tuple[Strategy, ...]
    regret: float

    @property
    def keys(self) -> list[str]:
        """Names of its cells in the study."""
        return [f"{self.request_class} | {s.family} | k={s.k}" for s in self.strategies]


def confirm_queue(profile: Profile, seed: int, *, rivals: bool) -> list[Session]:
    """Each class's best strategy, with `rivals` its best of another method or way to draft too, by expected regret.

    Expected regret of a class: the mean over joint draws of (best value in the draw - value of the point choice),
    so a close call comes before a clear winner; plain decoding is a rival in every session.
    """
    from selector.recommend.arena import Arena

    arena = Arena(profile, "throughput", 1, draws=100, seed=seed)
    sessions = []
    for name in arena.classes:
        values = {s: arena.value(s, {name: 1.0}) for s in arena.candidates_for({name})}
        drafted = sorted((s for s in values if s != PLAIN), key=lambda s: -float(values[s][0]))
        best = drafted[0]
        way = (best.method, best.draft_sample_method)
        rival = next((s for s in drafted if (s.method, s.draft_sample_method) != way), None)
        stacked = np.stack(list(values.values()))[:, 1:]
        regret = float(np.mean(stacked.max(axis=0) - values[best][1:]))
        sessions.append(Session(name, (best, rival) if rivals and rival else (best,), regret))
    return sorted(sessions, key=lambda s: -s.regret)


class Confirmation:
    """Runs the queue until its seconds are spent. The journal is the truth; the study is rebuilt from it."""

    def __init__(
        self, engine: Engine, journal: Journal, plan: Plan, prompts: dict[str, list[Request]], seed: int
    ) -> None:
        self.engine, self.journal, self.plan, self.prompts, self.seed = engine, journal, plan, prompts, seed

    def run(self, queue: list[Session], seconds: float, progress: Progress) -> optuna.Study:
        """Measure sessions in study order until `seconds` are spent.

        Returns the study: one trial per cell, its value the speedup over plain (ratio of total seconds).
        """
        study = self._study(queue)
        spent, longest = 0.0, 0.0
        for session in queue:
            if self._is_done(session):
                continue
            if spent + 0.5 * longest > seconds:
                break
            labels = ", ".join(s.label for s in session.strategies)
            progress.stage(f"confirming {session.request_class}: {labels}")
            trials = [study.ask() for _ in session.strategies]
            for trial in trials:
                trial.suggest_categorical("cell", [k for s in queue for k in s.keys])
            start = time.monotonic()
            for trial, value in zip(trials, self._measure(session), strict=True):
                study.tell(trial, value, state=_state("FAIL" if value is None else "COMPLETE"))
            took = time.monotonic() - start
            spent, longest = spent + took, max(longest, took)
            progress.advance(took)
        return study

    def _study(self, queue: list[Session]) -> optuna.Study:
        """Finished sessions as finished trials, the others enqueued in order."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=self.seed))
        choices = optuna.distributions.CategoricalDistribution([k for s in queue for k in s.keys])
        for session in queue:
            for key, strategy in zip(session.keys, session.strategies, strict=True):
                if not self._is_done(session):
                    study.enqueue_trial({"cell": key})
                    continue
                value = self._value(session, strategy)
                state = _state("FAIL" if value is None else "COMPLETE")
                known = optuna.trial.create_trial(
                    params={"cell": key}, distributions={"cell": choices}, value=value, state=state
                )
                study.add_trial(known)
        return study

    def _is_done(self, session: Session) -> bool:
        whole = self.plan.confirm_prompts * self.plan.confirm_repeats
        return all(
            f"skipped/{key}" in self.journal or len(self._runs(session, s, "main")) >= min(whole, self._most(session))
            for key, s in zip(session.keys, session.strategies, strict=True)
        )

    def _most(self, session: Session) -> int:
        return len(self._requests(session)) * self.plan.confirm_repeats

    def _measure(self, session: Session) -> list[float | None]:
        """All arms on the class's prompts, interleaved: the order turns with every repeat and prompt."""
        for repeat in range(self.plan.confirm_repeats):
            for i, request in enumerate(self._requests(session)):
                arms = list(self._arms(session))
                turn = (repeat + i) % len(arms)
                for strategy, arm, key in arms[turn:] + arms[:turn]:
                    self._decode(session.request_class, request, strategy, arm, key, repeat)
        return [self._value(session, s) for s in session.strategies]

    def _decode(self, name: str, request: Request, strategy: Strategy, arm: str, cell: str, repeat: int) -> None:
        """One request of one arm, unless the journal has it or the arm has failed before."""
        key = _key(name, strategy, arm, request.digest, repeat)
        if key in self.journal or f"skipped/{cell}" in self.journal:
            return
        try:
            g = self.engine.generate(request, strategy, seed=self.seed)
        except SelectorError as error:
            self.journal.add(f"skipped/{cell}", {"what": cell, "reason": str(error)})
            return
        run = run_of(request.digest, repeat, g).model_dump()
        self.journal.add(key, {"class": name, "strategy": strategy.model_dump(), "arm": arm, "run": run})

    def _requests(self, session: Session) -> list[Request]:
        return pick_prompts(self.prompts[session.request_class], self.plan.confirm_prompts, self.seed)

    @staticmethod
    def _arms(session: Session) -> Iterator[tuple[Strategy, Literal["main", "aa"], str]]:
        """Plain, the candidates, plain again; with the cell that a failure is recorded under."""
        yield PLAIN, "main", f"{session.request_class} | none"
        for strategy, key in zip(session.strategies, session.keys, strict=True):
            yield strategy, "main", key
        yield PLAIN, "aa", f"{session.request_class} | none again"

    def _runs(self, session: Session, strategy: Strategy, arm: str) -> list[Run]:
        keys = (
            _key(session.request_class, strategy, arm, r.digest, n)
            for r in self._requests(session)
            for n in range(self.plan.confirm_repeats)
        )
        return [Run.model_validate(self.journal[k]["run"]) for k in keys if k in self.journal]

    def _value(self, session: Session, strategy: Strategy) -> float | None:
        """Speedup over the runs that both arms finished; None when there are none."""
        arms = [{(r.id, r.repeat): _seconds(r) for r in self._runs(session, s, "main")} for s in (PLAIN, strategy)]
        both = arms[0].keys() & arms[1].keys()
        return sum(arms[0][k] for k in both) / sum(arms[1][k] for k in both) if both else None


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
