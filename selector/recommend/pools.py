"""Pools: which classes should share servers of one strategy, with the total number of servers unchanged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import optuna
from numpy.typing import NDArray

from selector.policy import BASES, Basis
from selector.recommend.arena import Arena, Mix
from selector.recommend.choose import Choice, choose
from selector.recommend.schedule import quiet_study
from selector.stepcost import Array
from selector.strategy import Strategy

MAX_ENUMERATED = 50_000
_TRIALS = 300


@dataclass(frozen=True)
class Group:
    """Classes that share a pool (mix: their request shares) and what was chosen for them."""

    mix: dict[str, float]
    choice: Choice
    cost: Array


@dataclass(frozen=True)
class Plan:
    """One way to split the traffic; `cost` [draws + 1] is the sum over its groups."""

    groups: tuple[Group, ...]

    @property
    def cost(self) -> Array:
        """Cost of one request of the whole traffic."""
        return np.asarray(sum(g.cost for g in self.groups))

    def basis(self, arena: Arena) -> Basis:
        """The weakest basis of its groups."""
        return max((arena.basis(g.choice.strategy, g.mix) for g in self.groups), key=BASES.index)


def plan(arena: Arena, traffic: Mix, pools: int, seed: int) -> Plan:
    """The best split into at most `pools` pools.

    Every class goes to whichever of the pools' strategies serves it cheapest; the set of strategies is listed
    exhaustively up to 50,000 sets, else searched by Optuna from the greedy answer. Each group then chooses again by
    the tie rule, for its own mix.
    """
    if pools == 1:
        return Plan((_group(arena, dict(traffic), traffic),))
    costs = {c: np.array([_pure(arena, s, c, w or 1.0) for s in arena.candidates]) for c, w in traffic.items()}
    busy = np.stack([costs[c] for c, w in traffic.items() if w], axis=1)
    chosen = np.array(best_set(busy, pools, seed))
    used = sorted({int(chosen[i]) for i in np.argmin(busy[chosen], axis=0)})
    mixes: dict[int, dict[str, float]] = {}
    for c, w in traffic.items():  # a class without traffic opens no pool of its own
        mixes.setdefault(min(used, key=lambda s: float(costs[c][s])), {})[c] = w  # used at once
    groups = [_group(arena, mix, traffic) for mix in mixes.values()]
    return Plan(tuple(_merged(arena, groups, traffic)))


def _pure(arena: Arena, strategy: Strategy, request_class: str, share: float) -> float:
    """Cost of a class served alone; infinite where it cannot be composed."""
    alone = {request_class: share}
    if strategy not in arena.candidates_for(alone):
        return math.inf
    return float(arena.cost(strategy, alone, alone)[0])


def _group(arena: Arena, mix: dict[str, float], traffic: Mix) -> Group:
    choice = choose(arena, mix)
    return Group(mix, choice, arena.cost(choice.strategy, mix, traffic))


def _merged(arena: Arena, groups: list[Group], traffic: Mix) -> list[Group]:
    """Groups that ended up with the same strategy are one pool."""
    mixes: dict[Strategy, dict[str, float]] = {}
    for g in groups:
        mixes.setdefault(g.choice.strategy, {}).update(g.mix)
    if len(mixes) == len(groups):
        return groups
    return [_group(arena, {c: m[c] for c in traffic if c in m}, traffic) for m in mixes.values()]


def best_set(costs: Array, size: int, seed: int, *, enumerate_up_to: int = MAX_ENUMERATED) -> tuple[int, ...]:
    """The `size` rows of `costs` [strategies, classes] whose column minima sum to the least."""
    size = min(size, len(costs))
    if math.comb(len(costs), size) <= enumerate_up_to:
        sets = np.array(list(combinations(range(len(costs)), size)))
        totals = (
            np.array([costs[list(s)].min(axis=0).sum() for s in sets]) if len(sets) < 1000 else _totals(costs, sets)
        )
        return tuple(int(i) for i in sets[int(np.argmin(totals))])
    return _search(costs, size, seed)


def _totals(costs: Array, sets: NDArray[np.int64]) -> Array:
    return np.concatenate([costs[part].min(axis=1).sum(axis=1) for part in np.array_split(sets, len(sets) // 1000 + 1)])


def _greedy(costs: Array, size: int) -> list[int]:
    chosen: list[int] = []
    for _ in range(size):
        rest = [i for i in range(len(costs)) if i not in chosen]
        chosen.append(min(rest, key=lambda i: float(costs[[*chosen, i]].min(axis=0).sum())))
    return chosen


def _search(costs: Array, size: int, seed: int) -> tuple[int, ...]:
    """TPE over the strategies that are best for some class or chosen greedily, then all others."""
    greedy = _greedy(costs, size)

    def objective(trial: optuna.Trial) -> float:
        rows = [trial.suggest_int(f"strategy_{i}", 0, len(costs) - 1) for i in range(size)]
        return float(costs[rows].min(axis=0).sum())

    study = quiet_study(seed)
    study.enqueue_trial({f"strategy_{i}": row for i, row in enumerate(greedy)})
    for row in np.unique(np.argmin(costs, axis=0)):  # exchanges of one greedy pick for a class's own best
        for i in range(size):
            swapped = [*greedy[:i], int(row), *greedy[i + 1 :]]
            study.enqueue_trial({f"strategy_{j}": r for j, r in enumerate(swapped)})
    study.optimize(objective, n_trials=_TRIALS + size * costs.shape[1])
    return tuple(dict.fromkeys(study.best_params[f"strategy_{i}"] for i in range(size)))


def names(strategies: Sequence[Strategy]) -> list[str]:
    """A short unique name per pool, usable as a folder name."""
    out: list[str] = []
    for s in strategies:
        base = "plain" if s.method == "none" else s.method
        taken = sum(n == base or n.startswith(f"{base}-") for n in out)
        out.append(base if not taken else f"{base}-{taken + 1}")
    return out
