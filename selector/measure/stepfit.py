"""Step cost at the widths and batches that a launch could not be made to run at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selector.errors import NotMeasured

Array = NDArray[np.float64]
#: Resampled fits per inferred row: enough for an interval, few enough to keep in a file.
RESAMPLES = 9


@dataclass(frozen=True)
class StepPoint:
    """Timings of one method's step: `drafted` tokens per request (a mean may be fractional) at a batch."""

    drafted: float
    batch: int
    seconds: tuple[float, ...]


class StepFit:
    """T(d, B) = T0(B) + a + b d + (c + e d) B with no term below zero, by least squares of relative errors.

    T0: plain decoding at that batch; a: what the method adds to every step; b: a pass of its drafter; c and e: a
    request's share, and a verified token's. Terms that the points cannot tell apart are left out, last ones first.
    `plain`: timings by batch.
    """

    def __init__(self, points: Sequence[StepPoint], plain: Mapping[int, Sequence[float]], seed: int = 0) -> None:
        if not points:
            raise NotMeasured("no step of this method was timed")
        self._points, self._plain = points, plain
        rng = np.random.default_rng(seed)
        self._fits = [self._solve(np.median)]
        for _ in range(RESAMPLES):
            self._fits.append(self._solve(lambda v: np.median(rng.choice(v, len(v)))))

    def seconds(self, drafted: float, batch: int) -> tuple[float, ...]:
        """The fitted step, one value per resample; their median is near the fit of all timings."""
        row = _terms(np.array([drafted]), np.array([batch]))
        return tuple(float(plain_at(floor, batch) + (row @ c)[0]) for floor, c in self._fits[1:])

    def point(self, drafted: float, batch: int) -> float:
        """The fitted step from all timings."""
        floor, coefficients = self._fits[0]
        return float(plain_at(floor, batch) + (_terms(np.array([drafted]), np.array([batch])) @ coefficients)[0])

    @property
    def residual(self) -> float:
        """Largest relative error of the fit at a timed point."""
        return max(abs(self.point(p.drafted, p.batch) / float(np.median(p.seconds)) - 1) for p in self._points)

    def _solve(self, middle: Callable[[Array], Any]) -> tuple[dict[int, float], Array]:
        floor = {b: float(middle(np.asarray(v))) for b, v in self._plain.items()}
        drafted = np.array([p.drafted for p in self._points])
        batch = np.array([p.batch for p in self._points])
        seen = np.array([float(middle(np.asarray(p.seconds))) for p in self._points])
        extra = seen - np.array([plain_at(floor, int(b)) for b in batch])
        return floor, _non_negative(_terms(drafted, batch) / seen[:, None], extra / seen)


def plain_at(floor: Mapping[int, float], batch: int) -> float:
    """Plain seconds at a batch: linear between measured ones and beyond the last."""
    known = sorted(floor)
    if len(known) == 1 or batch in floor:
        return floor[min(known, key=lambda b: abs(b - batch))]
    i = int(np.clip(np.searchsorted(known, batch), 1, len(known) - 1))
    low, high = known[i - 1], known[i]
    return floor[low] + (floor[high] - floor[low]) * (batch - low) / (high - low)


def _terms(drafted: Array, batch: Array) -> Array:
    """Columns by how surely they are wanted: a verified token's share, a drafter pass, fixed, a request's share."""
    return np.stack([drafted * batch, drafted, np.ones(len(drafted)), batch.astype(float)], axis=1)


def _non_negative(rows: Array, wanted: Array) -> Array:
    """Least squares with no coefficient below zero: the most negative one is dropped until none is.

    As many columns as points at most, so that nothing is decided by the smallest-norm rule.
    """
    columns = list(range(min(rows.shape)))
    while columns:
        solved = np.linalg.lstsq(rows[:, columns], wanted, rcond=None)[0]
        if solved.min() >= 0:
            out = np.zeros(rows.shape[1])
            out[columns] = solved
            return out
        columns.remove(columns[int(np.argmin(solved))])
    return np.zeros(rows.shape[1])
