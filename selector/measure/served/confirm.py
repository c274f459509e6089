"""Which configurations are run for real, and how their cells are named."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from selector.profile import Profile
from selector.strategy import PLAIN, Strategy


@dataclass(frozen=True)
class Config:
    """One server of the confirmation: a strategy at a fixed k, and the classes sent to it."""

    strategy: Strategy
    classes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for the journal."""
        return {"strategy": self.strategy.model_dump(), "classes": list(self.classes)}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """Back from the journal."""
        return cls(Strategy.model_validate(data["strategy"]), tuple(data["classes"]))


def confirming(profile: Profile, count: int, loads: Sequence[int], seed: int) -> list[Config]:
    """The `count` configurations whose truth matters most, each for every class it can be composed for.

    A configuration counts what its classes and loads would lose by the composed answer in the mean of the joint draws
    (expected regret), where it is their best one; every family has a turn before one has its second k.
    """
    from selector.recommend.arena import Arena

    weight: dict[Strategy, float] = defaultdict(float)
    composable: dict[Strategy, set[str]] = defaultdict(set)
    for load in sorted({min(loads), max(loads)}):
        arena = Arena(profile, "throughput", load, draws=100, seed=seed)
        for name in arena.classes:
            values = {s: arena.value(s, {name: 1.0}) for s in arena.candidates_for({name})}
            for s in values:
                composable[s].add(name)
            best = max((s for s in values if s != PLAIN), key=lambda s: float(values[s][0]), default=None)
            if best is not None:
                stacked = np.stack(list(values.values()))[:, 1:]
                weight[best] += 1e-6 + float(np.mean(stacked.max(axis=0) - values[best][1:]))
    order = sorted(weight, key=lambda s: -weight[s])
    firsts = [s for i, s in enumerate(order) if s.family not in {o.family for o in order[:i]}]
    chosen = [*firsts, *(s for s in order if s not in firsts)][:count]
    names = [c.name for c in profile.classes]
    return [Config(s, tuple(n for n in names if n in composable[s])) for s in chosen]


def cell_key(request_class: str, strategy: Strategy, load: int, arm: str) -> str:
    """Journal key of one confirmed cell."""
    return f"confirm/{request_class}/{strategy.family}/{strategy.k}/{load}/{arm}"
