"""Walks: how many steps a strategy needs for a recorded output, from per-position acceptance.

Positions count emitted tokens: the prefill emits token 0, and at position t >= 1 (t tokens out, n in all) one decode
step drafts, gets `accepted[t-1]` of the recorded tokens o_t, o_t+1, ... right, and emits one more of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
MAX_RECORDED_K = len(_DIGITS) - 1


def encode(counts: Sequence[int]) -> str:
    """Small counts (0..35) as one base-36 digit each, so that a profile stays readable."""
    return "".join(_DIGITS[c] for c in counts)


def decode(text: str) -> list[int]:
    """The inverse of `encode`; raises ValueError on another character."""
    return [_DIGITS.index(c) for c in text]


@dataclass(frozen=True)
class Walk:
    """One recorded output decoded with one strategy.

    steps: decode steps; drafted, accepted: totals over them (accepted past the output's end not counted);
    emitted: tokens after the prefill's, i.e. output tokens - 1.
    """

    steps: int
    drafted: int
    accepted: int
    emitted: int
    accepted_per_step: tuple[int, ...]
    drafted_per_step: tuple[int, ...]

    @property
    def tau(self) -> float:
        """Tokens emitted per step, bonus token included; nan for an output of one token."""
        return self.emitted / self.steps if self.steps else float("nan")


def walk(accepted: Sequence[int], k: int, proposed: Sequence[int] | None = None) -> Walk:
    """Walk a recording at `k` drafted tokens per step: step at t, emit min(a_t, k) + 1, jump.

    `accepted[i]` and `proposed[i]` belong to position i + 1 and were recorded at some k_max >= k; `proposed` None
    means that the drafter always fills k. Averaging over all positions instead would be wrong (design: walks).
    """
    n = len(accepted)
    at, acc, dra = 0, [], []
    while at < n:
        drafted = k if proposed is None else min(proposed[at], k)
        got = min(accepted[at], drafted, n - at)
        acc.append(got)
        dra.append(drafted)
        at += got + 1
    return Walk(len(acc), sum(dra), sum(acc), n, tuple(acc), tuple(dra))


def survival(walks: Sequence[Walk], k: int) -> list[float]:
    """`S_i` for i = 1..k: share of the walks' steps whose first i drafts were all accepted.

    Over the steps of these walks `tau = 1 + sum(S)` up to the last step of each output, which may lack its own token.
    """
    steps = sum(w.steps for w in walks)
    return [sum(a >= i for w in walks for a in w.accepted_per_step) / steps if steps else 0.0 for i in range(1, k + 1)]


def pooled_tau(walks: Sequence[Walk]) -> float:
    """Ratio of totals over outputs: emitted tokens / steps."""
    steps = sum(w.steps for w in walks)
    return sum(w.emitted for w in walks) / steps if steps else float("nan")


def looping(tokens: Sequence[int], *, max_period: int = 64, min_repeats: int = 3) -> bool:
    """Whether the output ends in an exact repeat: its last `min_repeats` blocks of one length are equal.

    Single-token runs count from 8 repeats on (a row of dashes is not a loop at 3).
    """
    n = len(tokens)
    for period in range(1, min(max_period, n // min_repeats) + 1):
        repeats = max(min_repeats, -(-8 // period))
        span = period * repeats
        if span <= n and all(tokens[n - 1 - i] == tokens[n - 1 - i - period] for i in range(span - period)):
            return True
    return False
