"""Arms ranked by time, doubted cells left out by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from selector.doubt import Doubt, Metric
from selector.evidence import Cell, doubts

SMALLER_IS_BETTER: frozenset[Metric] = frozenset({"tpot_ms", "wall_seconds"})


@dataclass(frozen=True)
class Ranking:
    """`order`: best first. `left_out`: cells that must not decide, with the doubts that bar them. `notes`: the rest."""

    metric: Metric
    order: tuple[Cell, ...]
    left_out: tuple[tuple[Cell, tuple[Doubt, ...]], ...]
    notes: tuple[tuple[Cell, Doubt], ...]

    @property
    def why(self) -> list[str]:
        """A line per cell and doubt: what was left out of the ranking, then what else is to know."""
        out = [f"{cell}: left out: {d.kind}: {d.sentence}" for cell, ds in self.left_out for d in ds]
        return out + [f"{cell}: {d.kind}: {d.sentence}" for cell, d in self.notes]


def rank(cells: Sequence[Cell], by: Metric) -> Ranking:
    """Order cells by a measured time or rate; acceptance is no metric (docs/metrics.md).

    Each cell is compared with the arm `none` at its own load and rate, if that is among them. Ties stand as measured:
    whether a gap is real is for `selector.recommend` to say.
    """
    plain = {(c.load, c.rate): c for c in cells if c.arm == "none"}
    order: list[tuple[float, Cell]] = []
    left_out: list[tuple[Cell, tuple[Doubt, ...]]] = []
    notes: list[tuple[Cell, Doubt]] = []
    for cell in cells:
        found = doubts(cell, plain.get((cell.load, cell.rate)))
        value: float | None = getattr(cell, by)
        if value is None:
            found.append(Doubt("not measured", f"{by} was not measured"))
        barring = tuple(d for d in found if d.bars(by))
        notes += [(cell, d) for d in found if d not in barring]
        if value is None or barring:
            left_out.append((cell, barring))
        else:
            order.append((value, cell))
    order.sort(key=lambda entry: entry[0], reverse=by not in SMALLER_IS_BETTER)
    return Ranking(by, tuple(cell for _, cell in order), tuple(left_out), tuple(notes))
