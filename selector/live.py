"""Acceptance seen live: what a serving engine's own steps say about every k up to the largest that ran.

An engine that serves cannot replay a recording, so tau is measured at k_max and at one small k and inferred between.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from selector.errors import ProfileError
from selector.profile import LiveWalk
from selector.strategy import LOOKUP_METHODS
from selector.walks import decode

Array = NDArray[np.float64]


class LiveAcceptance:
    """The live walks of one class with one strategy family; `k_max`: the largest k that ran."""

    def __init__(self, walks: Sequence[LiveWalk]) -> None:
        self.k_max = max(w.k for w in walks)
        self._looked_up = walks[0].family.partition(" ")[0] in LOOKUP_METHODS
        self._survival: dict[int, dict[str, Array]] = {}
        self._widths: dict[int, dict[str, Array]] = {}
        for w in walks:
            self._survival.setdefault(w.k, {})[w.id] = _survival(w, full_only=not self._looked_up)
            self._widths.setdefault(w.k, {})[w.id] = _widths(w)
        self.ids = frozenset(self._survival[self.k_max])

    def is_inferred(self, k: int) -> bool:
        """Whether no walk ran at this k."""
        return k not in self._survival

    def tau(self, k: int, ids: Sequence[str]) -> Array:
        """Tokens per step of each prompt at k, [prompts].

        A step of the walk at k_max would have accepted min(a, k) of fewer drafts: tau(k) = 1 + S_1 + ... + S_k over
        its steps. A walk at k stands elsewhere, so the sum is scaled by what the small k showed of that, pooled over
        prompts, the less the nearer k is to k_max (linear in k). A prompt that ran at k has its own figure.
        """
        own, widest = self._survival.get(k, {}), self._survival[self.k_max]
        scale = self._scale(k)
        taus = [1 + (own[i].sum() if i in own else scale * widest[i][:k].sum()) for i in ids]
        return np.asarray(np.clip(np.array(taus), 1.0, k + 1.0))

    def widths(self, k: int, ids: Sequence[str]) -> Array:
        """Share of steps that draft 0..k tokens, [prompts, k + 1].

        A model drafts k in every step. What is looked up has the widths of the walk at k or, where none ran, of the one
        at k_max with everything above k counted as k.
        """
        shares = np.zeros((len(ids), k + 1))
        if not self._looked_up:
            shares[:, k] = 1.0
            return shares
        own, widest = self._widths.get(k, {}), self._widths[self.k_max]
        for row, i in enumerate(ids):
            seen = own[i] if i in own else widest[i]
            shares[row, : min(k, len(seen) - 1) + 1] += seen[: k + 1]
            shares[row, k] += seen[k + 1 :].sum()
        return shares

    def _scale(self, k: int) -> float:
        """The correction at k: 1 at k_max, at smaller k by interpolation between what ran."""
        nodes, factors = [float(self.k_max)], [1.0]
        for ran in sorted(set(self._survival) - {self.k_max}, reverse=True):
            both = self._survival[ran].keys() & self.ids
            expected = sum(float(self._survival[self.k_max][i][:ran].sum()) for i in both)
            if expected > 0:
                seen = sum(float(self._survival[ran][i].sum()) for i in both)
                nodes, factors = [float(ran), *nodes], [seen / expected, *factors]
        return float(np.interp(k, nodes, factors))


def _survival(walk: LiveWalk, *, full_only: bool) -> Array:
    """Share of the walk's steps whose first i drafts were accepted, i = 1..k.

    `full_only`: of those that drafted k; a model drafts fewer only where the output must end.
    """
    accepted, drafted = np.array(decode(walk.accepted), dtype=int), _drafted(walk)
    if len(drafted) != len(accepted):
        raise ProfileError(
            f"live walk {walk.id} of {walk.family}: {len(drafted)} drafted counts for {len(accepted)} steps"
        )
    counted = accepted[drafted == walk.k] if full_only else accepted
    if not len(counted):
        return np.zeros(walk.k)
    return np.asarray((counted[:, None] >= np.arange(1, walk.k + 1)).mean(axis=0))


def _widths(walk: LiveWalk) -> Array:
    """Share of the walk's steps that drafted 0..k tokens; all at k where there was no step."""
    counts = np.bincount(np.minimum(_drafted(walk), walk.k), minlength=walk.k + 1).astype(float)
    if not counts.sum():
        counts[walk.k] = 1.0
    return np.asarray(counts / counts.sum())


def _drafted(walk: LiveWalk) -> NDArray[np.int_]:
    """Drafted tokens of each step."""
    accepted = decode(walk.accepted)
    return np.array([walk.k] * len(accepted) if walk.drafted is None else decode(walk.drafted), dtype=int)
