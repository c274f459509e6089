"""Plain decoding: the method that proposes nothing, and the file to copy for a new one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from selector.adapters.checkpoint import Checkpoint
from selector.adapters.widths import ANY, Widths
from selector.strategy import Method, Strategy

if TYPE_CHECKING:
    from selector.adapters.base import Drafter
    from selector.engines.reference.model import DecoderModel


class NoneAdapter:
    """No drafter, no knobs, nothing to tell the engine."""

    method: Method = "none"
    needs_drafter = False

    def check(self, drafter: Checkpoint, target: Checkpoint) -> list[str]:
        """Nothing can mismatch."""
        return []

    def widths(self, drafter: Checkpoint | None, target: Checkpoint) -> Widths:
        """Any k."""
        return ANY

    def vllm(self, strategy: Strategy, drafter_path: str | None) -> dict[str, Any] | None:
        """Plain decoding is the absence of the key."""
        return None

    def drafter(self, target: DecoderModel, path: Path | None, strategy: Strategy) -> Drafter | None:
        """Plain decoding drafts nothing."""
        return None
