"""Whether live decoding accepted, step by step, what a replay of its own output accepts.

An output can be right while its drafter works on the wrong text: then only acceptance suffers, and only this shows it.
"""

from __future__ import annotations

from dataclasses import dataclass

from selector.engines.base import Acceptance, Generation

#: Share of a model drafter's steps that may differ: its two best tokens can score almost the same too, and a replay
#: scores many positions in one pass. One step is always allowed; n-gram lookup compares ids and is allowed none.
TOLERATED_SHARE = 0.005
#: The same in bfloat16: 2% of a right EAGLE-3 head's steps differed on the embedded model, a quarter of a stale one's.
BFLOAT16_SHARE = 0.06


@dataclass(frozen=True)
class Misstep:
    """A step at `position` (output tokens before it) accepted `live` drafts where a replay accepts `foretold`."""

    position: int
    foretold: int
    live: int


def missteps(live: Generation, replayed: Acceptance, k: int) -> list[Misstep]:
    """Every step of a greedy output that differs. Each is judged at its own place, so one does not cause the next."""
    n, at, found = len(live.output_ids) - 1, 0, []
    for accepted in live.accepted_per_step:
        if at >= n:
            break
        drafted = k if replayed.proposed is None else min(replayed.proposed[at], k)
        foretold = min(replayed.accepted[at], drafted, n - at)
        if foretold != accepted:
            found.append(Misstep(at + 1, foretold, accepted))
        at += accepted + 1
    return found


def tolerated(method: str, steps: int, dtype: str) -> int:
    """How many of so many steps may differ."""
    share = BFLOAT16_SHARE if dtype == "bfloat16" else TOLERATED_SHARE
    return 0 if method == "ngram" else max(1, int(share * steps))
