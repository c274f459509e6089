"""Two-sample tests and their correction, in numpy alone.

The plain arm is decoded, not assumed: both arms are scored by the same code, so an error of the scoring hits both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: z beyond which a normal variable lies one time in ten: for what a test would notice nine times in ten.
_ONE_IN_TEN = 1.2816


def kolmogorov_smirnov(a: Floats, b: Floats) -> tuple[float, float]:
    """(largest distance of the two empirical distributions, p value); continuous values, no ties to speak of."""
    values = np.concatenate([a, b])
    below = [np.searchsorted(np.sort(x), values, side="right") / len(x) for x in (a, b)]
    distance = float(np.abs(below[0] - below[1]).max())
    n = _effective(len(a), len(b))
    return distance, _tail((math.sqrt(n) + 0.12 + 0.11 / math.sqrt(n)) * distance)


def mean_shift(a: Floats, b: Floats) -> tuple[float, float]:
    """(mean of b minus mean of a, p value) by Welch's statistic against the normal distribution (long samples)."""
    shift = float(b.mean() - a.mean())
    error = math.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b))
    if error == 0:
        return shift, 1.0 if shift == 0 else 0.0
    return shift, math.erfc(abs(shift) / error / math.sqrt(2))


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrected p values: rejecting those below alpha errs once in 1/alpha families, however the tests depend."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected, worst = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = worst
    return corrected


def noticeable(a: int, b: int, alpha: float) -> float:
    """Smallest true distance that Kolmogorov-Smirnov at `alpha` notices nine times in ten with so many values."""
    critical = math.sqrt(math.log(2 / alpha) / 2 / _effective(a, b))  # first term of the tail, solved
    return min(1.0, critical + _ONE_IN_TEN / 2 / math.sqrt(_effective(a, b)))


def _effective(a: int, b: int) -> float:
    return a * b / (a + b)


def _tail(x: float) -> float:
    """P(K > x) of the Kolmogorov distribution."""
    if x < 0.2:
        return 1.0
    terms = ((2 if j % 2 else -2) * math.exp(-2 * (j * x) ** 2) for j in range(1, 101))
    return min(1.0, max(0.0, sum(terms)))
