"""Confirmed cells: end-to-end measurements, as ratios to plain decoding and as a check of the composition."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from selector.acceptance import Acceptances
from selector.compose import Composer
from selector.errors import NotMeasured
from selector.profile import ConfirmedCell, Profile
from selector.stepcost import Array, StepCosts
from selector.strategy import PLAIN, Strategy


@dataclass(frozen=True)
class Check:
    """One confirmed cell against its composition, over the same prompts: log(measured / predicted speedup)."""

    request_class: str
    strategy: Strategy
    load: int
    error: float


class Confirmed:
    """The profile's end-to-end runs with a strategy and plainly, paired by prompt."""

    def __init__(self, profile: Profile, acceptances: Acceptances, costs: StepCosts, seed: int) -> None:
        self._acceptances, self._costs, self._seed = acceptances, costs, seed
        self._greedy = {c.name for c in profile.classes if c.temperature == 0}
        self._runs = {
            (cell.request_class, self._same(cell.request_class, cell.strategy), cell.load): _per_prompt(cell)
            for cell in profile.confirmed
            if cell.arm == "main" and cell.runs and cell.request_class in acceptances.prompts
        }
        self._factors: dict[tuple[str, Strategy, int], Array] = {}
        for key in self._runs:
            if key[1] != PLAIN and self._common(*key):
                # a cell that cannot be composed checks nothing
                with contextlib.suppress(NotMeasured):
                    self._factors[key] = self._compare(*key)
        self.checks = [Check(*key, error=-math.log(float(f[0]))) for key, f in self._factors.items()]
        self.proposers = {c.strategy.proposer for c in self.checks}

    def _same(self, request_class: str, strategy: Strategy) -> Strategy:
        """Greedy requests are drafted for greedily either way: both ways to draft are one cell there."""
        return strategy.guessing if request_class in self._greedy else strategy

    def factor(self, request_class: str, strategy: Strategy, load: int) -> Array | None:
        """What composed seconds of a cell must be multiplied by to meet what was measured, [draws + 1].

        Measured / composed ratio to plain decoding, both over the prompts that ran and the same resample of them:
        composition only carries the measured ratio from those prompts to all prompts of the class. Where all ran,
        the corrected cell is the measured ratio itself. None when the cell was not confirmed.
        """
        return self._factors.get((request_class, self._same(request_class, strategy), load))

    def coverage(self, request_class: str, strategy: Strategy, load: int) -> tuple[int, float]:
        """Prompts of the class that ran in the cell, and their share of all its prompts."""
        ran = len(self._common(request_class, strategy, load))
        return ran, ran / self._acceptances.prompts[request_class]

    def speaks_for_class(self, request_class: str, strategy: Strategy, load: int) -> bool:
        """Whether enough of the class ran to call the cell measured: half of its prompts, or five."""
        if strategy != PLAIN and self.factor(request_class, strategy, load) is None:
            return False
        ran, share = self.coverage(request_class, strategy, load)
        return share >= 0.5 or ran >= 5

    def _compare(self, request_class: str, strategy: Strategy, load: int) -> Array:
        """Ratios of total seconds per output token: a sampled output's length is chance, greedy arms write the same."""
        ids = self._common(request_class, strategy, load)
        rng = np.random.default_rng((self._seed, len(ids), *f"{request_class}{''.join(ids)}".encode()))
        drawn = rng.multinomial(len(ids), np.full(len(ids), 1 / len(ids)), size=self._costs.draws)
        weights = np.concatenate([np.ones((1, len(ids))), drawn]) / len(ids)
        arms = [np.array([self._runs[(request_class, s, load)][i] for i in ids]) for s in (strategy, PLAIN)]
        own, plain = ((weights @ arm[:, 0]) / (weights @ arm[:, 1]) for arm in arms)
        everywhere = np.zeros((len(weights), self._acceptances.prompts[request_class]))
        everywhere[:, [self._acceptances.ids(request_class).index(i) for i in ids]] = weights
        composer = Composer(self._acceptances, self._costs, {request_class: everywhere})
        alone = {request_class: 1.0}
        # what a run's clock shows is the request's time; at load 1 that is the engine's
        predicted, floor = (composer.times(s, alone, load).request[request_class] for s in (strategy, PLAIN))
        return np.asarray((own / plain) / (predicted / floor))

    @property
    def rms(self) -> float:
        """Root mean square of the checks' log errors; 0 when nothing was checked."""
        return math.sqrt(sum(c.error**2 for c in self.checks) / len(self.checks)) if self.checks else 0.0

    @property
    def mean_error(self) -> float | None:
        """Mean absolute relative error of the composition; None when nothing was checked."""
        return sum(abs(math.expm1(-c.error)) for c in self.checks) / len(self.checks) if self.checks else None

    def correction(self, proposer: str) -> float:
        """Log of what a proposer's composed speedups should be multiplied by: its checks' mean error, shrunk.

        n checks count n / (n + 1), so that one noisy run does not move all its cells by its full error.
        """
        errors = [c.error for c in self.checks if c.strategy.proposer == proposer]
        return sum(errors) / (len(errors) + 1)

    def _common(self, request_class: str, strategy: Strategy, load: int) -> list[str]:
        arms = [self._runs.get((request_class, self._same(request_class, s), load), {}) for s in (strategy, PLAIN)]
        known = self._acceptances.ids(request_class) if request_class in self._acceptances.prompts else []
        return [i for i in known if i in arms[0] and i in arms[1]]


def _per_prompt(cell: ConfirmedCell) -> dict[str, tuple[float, float]]:
    """Per prompt: median seconds over repeats, median output tokens."""
    rows: dict[str, list[tuple[float, int]]] = {}
    for run in cell.runs:
        rows.setdefault(run.id, []).append((run.prefill_seconds + run.decode_seconds, run.output_tokens))
    return {i: _medians(r) for i, r in rows.items()}


def _medians(rows: Sequence[tuple[float, int]]) -> tuple[float, float]:
    seconds, tokens = np.median(np.array(rows, dtype=float), axis=0)
    return float(seconds), float(tokens)
