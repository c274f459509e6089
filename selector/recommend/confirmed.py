"""Confirmed cells: end-to-end measurements, as ratios to plain decoding and as a check of the composition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from selector.acceptance import Acceptances
from selector.compose import Composer, chosen_weights
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

    def __init__(self, profile: Profile, acceptances: Acceptances, draws: int, seed: int) -> None:
        self._draws, self._seed = draws, seed
        self._runs = {
            (cell.request_class, cell.strategy, cell.load): _per_prompt(cell)
            for cell in profile.confirmed if cell.arm == "main" and cell.runs
        }
        self._ratios: dict[tuple[str, Strategy, int], Array] = {}
        self.checks = self._check(profile, acceptances)
        self.families = {c.strategy.family for c in self.checks}

    def has(self, request_class: str, strategy: Strategy, load: int) -> bool:
        """Whether the cell and its plain arm ran on at least one common prompt."""
        return bool(self._common(request_class, strategy, load))

    def time_ratio(self, request_class: str, strategy: Strategy, load: int) -> Array:
        """Seconds with the strategy / seconds plain, [draws + 1]: ratio of totals per output token.

        Prompts are resampled with replacement, the same ones for every strategy that ran on them. Per token,
        because a sampled output's length is chance; where both arms wrote the same tokens this is plain seconds.
        """
        key = (request_class, strategy, load)
        if key not in self._ratios:
            ids = self._common(*key)
            arms = [np.array([self._runs[(request_class, s, load)][i] for i in ids]) for s in (strategy, PLAIN)]
            rng = np.random.default_rng((self._seed, len(ids), *f"{request_class}{''.join(ids)}".encode()))
            drawn = rng.multinomial(len(ids), np.full(len(ids), 1 / len(ids)), size=self._draws)
            weights = np.concatenate([np.ones((1, len(ids))), drawn])
            seconds, plain = ((weights @ arm[:, 0]) / (weights @ arm[:, 1]) for arm in arms)
            self._ratios[key] = seconds / plain
        return self._ratios[key]

    @property
    def rms(self) -> float:
        """Root mean square of the checks' log errors; 0 when nothing was checked."""
        return math.sqrt(sum(c.error**2 for c in self.checks) / len(self.checks)) if self.checks else 0.0

    @property
    def mean_error(self) -> float | None:
        """Mean absolute relative error of the composition; None when nothing was checked."""
        return sum(abs(math.expm1(-c.error)) for c in self.checks) / len(self.checks) if self.checks else None

    def correction(self, family: str) -> float:
        """Log of what composed speedups of a family should be multiplied by: its checks' mean error, shrunk.

        n checks count n / (n + 1), so that one noisy run does not move a whole family by its full error.
        """
        errors = [c.error for c in self.checks if c.strategy.family == family]
        return sum(errors) / (len(errors) + 1)

    def _common(self, request_class: str, strategy: Strategy, load: int) -> list[str]:
        runs = self._runs.get((request_class, strategy, load), {})
        return sorted(set(runs) & set(self._runs.get((request_class, PLAIN, load), {})))

    def _check(self, profile: Profile, acceptances: Acceptances) -> list[Check]:
        costs = StepCosts(profile)
        checks = []
        for name, strategy, load in self._runs:
            ids = self._common(name, strategy, load)
            if strategy == PLAIN or not ids or name not in acceptances.prompts:
                continue
            weights = chosen_weights(acceptances, name, set(ids))
            if weights is None:
                continue
            composer = Composer(acceptances, costs, {name: weights})
            try:
                plain, own = (composer.times(s, {name: 1.0}, load).engine[name][0] for s in (PLAIN, strategy))
            except NotMeasured:  # a cell that cannot be composed checks nothing
                continue
            error = math.log(float(own / plain) / float(self.time_ratio(name, strategy, load)[0]))
            checks.append(Check(name, strategy, load, error))
        return checks


def _per_prompt(cell: ConfirmedCell) -> dict[str, tuple[float, float]]:
    """Per prompt: median seconds over repeats, median output tokens."""
    rows: dict[str, list[tuple[float, int]]] = {}
    for run in cell.runs:
        rows.setdefault(run.id, []).append((run.prefill_seconds + run.decode_seconds, run.output_tokens))
    return {i: _medians(r) for i, r in rows.items()}


def _medians(rows: Sequence[tuple[float, int]]) -> tuple[float, float]:
    seconds, tokens = np.median(np.array(rows, dtype=float), axis=0)
    return float(seconds), float(tokens)
