"""EAGLE-1: a head that drafts from the target's final hidden state, with the target's own output head."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from selector.adapters.checkpoint import Checkpoint
from selector.adapters.head_checks import check_head
from selector.adapters.head_config import eagle_config
from selector.adapters.recognise import confirm
from selector.adapters.widths import ANY, Widths
from selector.errors import DrafterMismatch
from selector.strategy import Method, Strategy

if TYPE_CHECKING:
    from selector.adapters.base import Drafter
    from selector.engines.reference.model import DecoderModel


class EagleAdapter:
    """Heads as vLLM 0.32 reads them: `fc` from 2h to h, Llama layers of which the first has no input norm."""

    method: Method = "eagle"
    needs_drafter = True

    def check(self, drafter: Checkpoint, target: Checkpoint) -> list[str]:
        """The head must be an EAGLE-1 one, for this hidden size, vocabulary and tokenizer."""
        drafter.architectures  # noqa: B018  # a config that is broken or not supported is named before its tensors
        confirm(drafter, self.method)
        warnings = check_head(drafter, target, eagle_config(drafter))
        if drafter.config.get("layer_types"):
            warnings.append("vLLM 0.32 refuses eagle with layer_types in its config.json: take that key out")
        return warnings

    def widths(self, drafter: Checkpoint | None, target: Checkpoint) -> Widths:
        """Any k."""
        return ANY

    def vllm(self, strategy: Strategy, drafter_path: str | None) -> dict[str, Any] | None:
        """The method is always named: without it a head whose path lacks `eagle-` runs as a draft model."""
        return {"method": "eagle", "model": drafter_path, "num_speculative_tokens": strategy.k}

    def drafter(self, target: DecoderModel, path: Path | None, strategy: Strategy) -> Drafter | None:
        """The head beside the target it reads from."""
        from selector.adapters.head_model import eagle_drafter

        if path is None:
            raise DrafterMismatch("eagle needs a head: --drafter eagle=PATH")
        return eagle_drafter(path, target)
