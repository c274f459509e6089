"""Candidates: the strategies to compare, and which of several equally good ones is the simplest."""

from __future__ import annotations

from collections.abc import Mapping

from selector.acceptance import Acceptances
from selector.strategy import METHODS, PLAIN, Strategy

#: Method order of the tie rule: what needs no weights comes before what does.
_ORDER = ("none", "ngram", "suffix", "mtp", "eagle", "eagle3", "medusa", "dflash", "draft_model")
_SIMPLICITY = {m: i for i, m in enumerate(_ORDER)}


def candidates(acceptances: Acceptances) -> list[Strategy]:
    """Plain decoding, then every family at every k that its drafter allows, up to its k_max: all of them, as speed
    need not be monotone in k.
    """
    return [PLAIN, *(s.with_k(k) for s in acceptances.families.values() for k in acceptances.valid_k(s))]


def simplicity(strategy: Strategy) -> tuple[int, int, str]:
    """Sort key of the tie rule: none, then smaller k, then fewer moving parts."""
    return strategy.k, _SIMPLICITY.get(strategy.method, len(METHODS)), strategy.family


def tied(values: Mapping[Strategy, float], band: float) -> list[Strategy]:
    """Strategies within `band` (a ratio, 0.01 = 1%) of the highest value, simplest first."""
    best = max(values.values())
    return sorted((s for s, v in values.items() if v * (1 + band) >= best), key=simplicity)
