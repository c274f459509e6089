"""Choosing one strategy for a mix of classes: the tie rule, and plain decoding wherever it is not beaten."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from selector.policy import Regret
from selector.recommend.arena import Arena, Mix, active
from selector.recommend.candidates import tied
from selector.stepcost import Array
from selector.strategy import PLAIN, Strategy

#: A strategy whose 95% low is under this is not recommended, however good its mean.
NEVER_WORSE = 0.98


@dataclass(frozen=True)
class Choice:
    """The strategy chosen for a mix; `values`: speedup of every strategy considered, [draws + 1] each."""

    strategy: Strategy
    values: dict[Strategy, Array]
    ties: tuple[Strategy, ...]

    @property
    def value(self) -> Array:
        """Speedup of the chosen strategy."""
        return self.values[self.strategy]

    @property
    def best(self) -> Strategy:
        """The strategy with the highest point value, ties or not."""
        return max(self.values, key=lambda s: float(self.values[s][0]))


def choose(arena: Arena, mix: Mix) -> Choice:
    """The simplest strategy within the tie band of the best, if it beats plain decoding for certain, else none.

    To be chosen a strategy needs a speedup above 1 + band and a 95% low of at least `NEVER_WORSE`.
    """
    values = {s: arena.value(s, mix) for s in arena.candidates_for(mix)}
    ties = tied({s: float(v[0]) for s, v in values.items()}, arena.band)
    for strategy in ties:
        wins = values[strategy][0] > 1 + arena.band
        if (
            strategy != PLAIN
            and wins
            and arena.estimate(values[strategy], "composed", classes=active(mix)).low >= NEVER_WORSE
        ):
            return Choice(strategy, values, tuple(ties))
        if strategy == PLAIN:
            break
    return Choice(PLAIN, values, tuple(ties) if PLAIN in ties else (PLAIN, *ties))


def regret(arena: Arena, choice: Choice) -> Regret:
    """Share of the objective lost against the best cell, in 95 of 100 joint draws.

    In every draw 1 - value(chosen) / max value; a confirming run's noise is left out, as it is no property of a cell.
    """
    stacked = np.stack(list(choice.values.values()))
    lost = 1 - choice.value / stacked.max(axis=0)
    counted = lost[1:] if arena.draws else lost
    cells = [(c, s) for c in arena.classes for s in choice.values]
    measured = sum(arena.confirmed.speaks_for_class(c, s, arena.load) for c, s in cells)
    others = [str(n) for n in arena.profile.loads if n != arena.load]
    skipped = [f"{s.what}: {s.reason}" for s in arena.profile.skipped]
    note = [f"loads other than {arena.load}" + (f" (step costs exist for {', '.join(others)})" if others else "")]
    return Regret(
        p95=float(max(0.0, np.percentile(counted, 95))),
        cells_considered=len(cells),
        cells_measured=measured,
        composition_error=arena.confirmed.mean_error,
        not_considered=(*note, *arena.not_considered, *skipped),
    )
