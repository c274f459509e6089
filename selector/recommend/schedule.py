"""Schedules: k by batch size inside one pool, as at most three ranges."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, product

import numpy as np
import optuna

from selector.errors import NotMeasured
from selector.recommend.arena import Arena, Mix
from selector.strategy import FIXED_K_METHODS, PLAIN, Strategy

MAX_RANGES = 3
MAX_ENUMERATED = 20_000
_TRIALS = 300
Ranges = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Grid:
    """Speedup by batch and k: `values[i][k - 1]` at `batches[i]`, -inf where it cannot be composed."""

    batches: tuple[int, ...]
    values: tuple[tuple[float, ...], ...]
    band: float

    @property
    def k_max(self) -> int:
        """Highest k in the grid."""
        return len(self.values[0])

    def loss(self, ks: Sequence[int]) -> float:
        """What one k per batch costs: log loss beyond the tie band, then ranges, then the k themselves."""
        total = 0.0
        for row, k in zip(self.values, ks, strict=True):
            lost = math.log(max(row)) - math.log(row[k - 1]) if row[k - 1] > 0 else 1e6
            total += max(0.0, lost - math.log1p(self.band)) / len(ks)
        changes = sum(a != b for a, b in pairwise(ks))
        return total + 1e-4 * changes + 1e-6 * sum(ks) / len(ks)


def schedule(arena: Arena, strategy: Strategy, mix: Mix, seed: int) -> tuple[Strategy, Ranges | None, list[int]]:
    """The strategy at the highest k it will use, its ranges (None: one k throughout), and the measured batches at
    which plain decoding is faster.

    k at the load asked for stays the chosen one. The floor is k = 1: no draft inside a speculating engine is another
    thing than a plain engine, and was not measured. A batch size between measured ones uses the next larger one's k.
    """
    if strategy == PLAIN:
        return PLAIN, None, []
    grid = _grid(arena, strategy, mix)
    slower = [b for b, row in zip(grid.batches, grid.values, strict=True) if max(row) < 1]
    if len(grid.batches) == 1 or strategy.method in FIXED_K_METHODS:
        return strategy, None, slower
    ks = best_ranges(grid, seed)
    ranges = as_ranges((*grid.batches[:-1], max(arena.profile.loads)), ks)  # the last k carries on to the largest load
    return strategy.with_k(max(ks)), ranges if len(ranges) > 1 else None, slower


def _grid(arena: Arena, strategy: Strategy, mix: Mix) -> Grid:
    known = {s.k for s in arena.candidates if s.family == strategy.family}
    batches, rows = [], []
    for batch in sorted({*arena.profile.loads, arena.load}):
        row = [
            _value(arena, strategy.with_k(k), mix, batch) if k in known else -math.inf
            for k in range(1, max(known) + 1)
        ]
        if batch == arena.load:  # decided already, by the tie rule
            row = [v if k == strategy.k else -math.inf for k, v in enumerate(row, 1)]
        if max(row) > 0:
            batches.append(batch)
            rows.append(tuple(row))
    return Grid(tuple(batches), tuple(rows), arena.band)


def _value(arena: Arena, strategy: Strategy, mix: Mix, batch: int) -> float:
    try:
        return float(arena.value(strategy, mix, batch)[0])
    except NotMeasured:
        return -math.inf


def best_ranges(grid: Grid, seed: int, *, enumerate_up_to: int = MAX_ENUMERATED) -> tuple[int, ...]:
    """One k per batch, constant on at most three ranges, of the lowest `Grid.loss`: listed where that is feasible,
    else searched by Optuna from the best k of every batch.
    """
    n, k = len(grid.batches), grid.k_max
    count = sum(math.comb(n - 1, r - 1) * k**r for r in range(1, min(MAX_RANGES, n) + 1))
    if count <= enumerate_up_to:
        return min(_all_ranges(n, k), key=grid.loss)
    return _search(grid, seed)


def _all_ranges(n: int, k_max: int) -> Iterator[tuple[int, ...]]:
    for ranges in range(1, min(MAX_RANGES, n) + 1):
        for breaks in combinations(range(1, n), ranges - 1):
            for ks in product(range(1, k_max + 1), repeat=ranges):
                yield _spread(n, breaks, ks)


def _spread(n: int, breaks: Sequence[int], ks: Sequence[int]) -> tuple[int, ...]:
    edges = sorted(breaks)
    return tuple(ks[sum(i >= b for b in edges)] for i in range(n))


def _search(grid: Grid, seed: int) -> tuple[int, ...]:
    """TPE over two break points and three k; equal neighbours make fewer ranges."""
    n = len(grid.batches)

    def proposed(params: dict[str, int]) -> tuple[int, ...]:
        return _spread(n, (params["break_1"], params["break_2"]), (params["k_1"], params["k_2"], params["k_3"]))

    def objective(trial: optuna.Trial) -> float:
        params = {f"break_{i}": trial.suggest_int(f"break_{i}", 1, n) for i in (1, 2)}
        params |= {f"k_{i}": trial.suggest_int(f"k_{i}", 1, grid.k_max) for i in (1, 2, 3)}
        return grid.loss(proposed(params))

    study = quiet_study(seed)
    best = [int(np.argmax(row)) + 1 for row in grid.values]
    for breaks in combinations(range(1, n + 1), 2):  # the per-batch optimum, cut in every way
        first, second = breaks
        parts = (best[0], best[first - 1 if first == n else first], best[min(second, n - 1)])
        study.enqueue_trial({"break_1": first, "break_2": second} | {f"k_{i}": k for i, k in enumerate(parts, 1)})
    study.optimize(objective, n_trials=_TRIALS + n * (n - 1) // 2)
    return proposed(study.best_params)


def quiet_study(seed: int) -> optuna.Study:
    """A minimising study that neither logs nor keeps anything on disk."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))


def as_ranges(batches: Sequence[int], ks: Sequence[int]) -> Ranges:
    """(first, last, k) ranges from 1 to the largest batch, equal neighbours merged."""
    ranges: list[tuple[int, int, int]] = []
    for batch, k in zip(batches, ks, strict=True):
        first = ranges[-1][1] + 1 if ranges else 1
        if ranges and ranges[-1][2] == k:
            ranges[-1] = (ranges[-1][0], batch, k)
        else:
            ranges.append((first, batch, k))
    return tuple(ranges)
