"""Suffix decoding: propose what followed the longest known suffix, in this request and in earlier outputs."""

from __future__ import annotations

from typing import Any

from selector.adapters.checkpoint import Checkpoint
from selector.adapters.served_only import ServedOnly
from selector.adapters.widths import ANY, Widths
from selector.strategy import Method, Strategy


class SuffixAdapter(ServedOnly):
    """vLLM's, by Arctic Inference: k is the most that is proposed, the tree decides how many are."""

    method: Method = "suffix"
    needs_drafter = False

    def check(self, drafter: Checkpoint, target: Checkpoint) -> list[str]:
        """Text alone decides; nothing can mismatch."""
        return []

    def widths(self, drafter: Checkpoint | None, target: Checkpoint) -> Widths:
        """Any k."""
        return ANY

    def vllm(self, strategy: Strategy, drafter_path: str | None) -> dict[str, Any] | None:
        """k is told: left out it would be the depth of the tree, 24."""
        return {"method": "suffix", "num_speculative_tokens": strategy.k}
