"""N-gram lookup: propose what followed the same tokens earlier in the prompt or the output."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from selector.adapters.checkpoint import Checkpoint
from selector.adapters.widths import ANY, Widths
from selector.strategy import Method, Strategy

if TYPE_CHECKING:
    from selector.adapters.base import Drafter
    from selector.engines.reference.model import DecoderModel

Ids = np.ndarray[Any, np.dtype[np.int64]]


class NgramAdapter:
    """vLLM's rule: of all earlier places where the last tokens occur, the longest match, then the earliest."""

    method: Method = "ngram"
    needs_drafter = False

    def check(self, drafter: Checkpoint, target: Checkpoint) -> list[str]:
        """Text alone decides; nothing can mismatch."""
        return []

    def widths(self, drafter: Checkpoint | None, target: Checkpoint) -> Widths:
        """Any k."""
        return ANY

    def vllm(self, strategy: Strategy, drafter_path: str | None) -> dict[str, Any] | None:
        """Both window ends are told: vLLM's default of 5..5 is strict."""
        return {
            "method": "ngram",
            "num_speculative_tokens": strategy.k,
            "prompt_lookup_min": strategy.lookup_min,
            "prompt_lookup_max": strategy.lookup_max,
        }

    def drafter(self, target: DecoderModel, path: Path | None, strategy: Strategy) -> Drafter | None:
        """The lookup over committed tokens."""
        from selector.adapters.ngram_model import NgramDrafter

        return NgramDrafter(strategy.lookup_min or 1, strategy.lookup_max or 1)


def propose(tokens: Ids, lookup_min: int, lookup_max: int, k: int) -> Ids:
    """At most `k` proposed ids behind `tokens` (length,); empty when nothing of `lookup_min` or longer matches.

    Matches are narrowed backwards from the last token, so the cost falls with how rare it is. A match may overlap
    the end it is compared with, and proposals stop where the known tokens do.
    """
    last = len(tokens) - 1
    ends = np.flatnonzero(tokens[:-1] == tokens[-1])  # where an earlier match could end
    length, best = 1, ends
    while length < lookup_max and ends.size:
        ends = ends[ends >= length]
        ends = ends[tokens[ends - length] == tokens[last - length]] if last >= length else ends[:0]
        if ends.size:
            length, best = length + 1, ends
    if not best.size or length < lookup_min:
        return tokens[:0]
    start = int(best[0]) + 1
    return tokens[start : start + k]


def replay_ngram(
    prompt: Sequence[int], output: Sequence[int], lookup_min: int, lookup_max: int, k: int
) -> tuple[list[int], list[int]]:
    """Accepted and proposed counts at positions 1..n-1 of a recorded output, from token ids alone."""
    tokens = np.asarray([*prompt, *output], dtype=np.int64)
    accepted, proposed = [], []
    for t in range(1, len(output)):
        end = len(prompt) + t
        guess = propose(tokens[:end], lookup_min, lookup_max, k)
        truth = tokens[end : end + len(guess)]
        wrong = np.flatnonzero(guess[: len(truth)] != truth)
        accepted.append(int(wrong[0]) if wrong.size else len(truth))
        proposed.append(len(guess))
    return accepted, proposed
