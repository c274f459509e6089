"""A reason why a measured cell should not decide, and what it keeps from deciding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Metric = Literal["tpot_ms", "wall_seconds", "requests_per_second", "tokens_per_second"]
Kind = Literal[
    "contaminated", "looping", "repeated prompt", "saturated", "rate-bound", "capacity lost", "load not reached",
    "outputs differ", "unequal lengths", "did not run", "broken", "not measured",
]  # fmt: skip

_PER_REQUEST: frozenset[Metric] = frozenset({"wall_seconds", "requests_per_second"})
#: What a doubt keeps from deciding, where that is not everything.
_BARS: dict[Kind, frozenset[Metric]] = {
    "saturated": frozenset({"tpot_ms"}),
    "rate-bound": _PER_REQUEST | {"tokens_per_second"},
    "outputs differ": _PER_REQUEST,
    "unequal lengths": _PER_REQUEST,
}


@dataclass(frozen=True)
class Doubt:
    """One reason why a cell should not decide: its kind, and a sentence with the numbers and what to do next."""

    kind: Kind
    sentence: str

    def bars(self, metric: Metric) -> bool:
        """Whether a cell with this doubt must be left out of a ranking by `metric`."""
        return self.kind not in _BARS or metric in _BARS[self.kind]
