"""Independent draft model: a small causal model with the target's vocabulary drafts k tokens one by one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from selector.adapters.base import INSTEAD
from selector.adapters.checkpoint import Checkpoint
from selector.adapters.recognise import confirm
from selector.adapters.widths import ANY, Widths
from selector.errors import DrafterMismatch
from selector.strategy import Method, Strategy

if TYPE_CHECKING:
    from selector.adapters.base import Drafter
    from selector.engines.reference.model import DecoderModel


class DraftModelAdapter:
    """Any causal model whose ids mean the same as the target's."""

    method: Method = "draft_model"
    needs_drafter = True

    def check(self, drafter: Checkpoint, target: Checkpoint) -> list[str]:
        """Vocabulary size and tokenizer must be equal; a draft bigger than its target is probably swapped."""
        drafter.architectures  # noqa: B018  # a config that is broken or not supported is named before its tensors
        confirm(drafter, self.method)
        _same_vocabulary(drafter, target)
        drafter.refuse_nan_and_inf(drafter.tensors)
        weights = [sum(t.nbytes for t in c.tensors.values()) for c in (drafter, target)]
        if weights[0] >= weights[1] > 0:
            return [
                f"the draft's weights ({weights[0]:,} bytes) are no smaller than "
                f"the target's ({weights[1]:,}): swapped?"
            ]
        return []

    def widths(self, drafter: Checkpoint | None, target: Checkpoint) -> Widths:
        """Any k."""
        return ANY

    def vllm(self, strategy: Strategy, drafter_path: str | None) -> dict[str, Any] | None:
        """The method is always named: vLLM would guess it from the path."""
        return {"method": "draft_model", "model": drafter_path, "num_speculative_tokens": strategy.k}

    def drafter(self, target: DecoderModel, path: Path | None, strategy: Strategy) -> Drafter | None:
        """A second model with a cache of its own."""
        from selector.adapters.draft_model_model import ModelDrafter

        if path is None:
            raise DrafterMismatch("draft_model needs a checkpoint: --drafter draft_model=PATH")
        return ModelDrafter(path, target)


def _same_vocabulary(drafter: Checkpoint, target: Checkpoint) -> None:
    sizes = drafter.config.get("vocab_size"), target.config.get("vocab_size")
    digests = drafter.tokenizer_digest, target.tokenizer_digest
    same_tokenizer = None not in digests and digests[0] == digests[1]
    if sizes[0] != sizes[1]:
        padding = " (the tokenizers are equal, only the padding differs)" if same_tokenizer else ""
        raise DrafterMismatch(
            f"{drafter.path}: vocabulary of {sizes[0]} against the target's {sizes[1]}{padding}; {INSTEAD}"
        )
    if None not in digests and not same_tokenizer:
        raise DrafterMismatch(
            f"{drafter.path}: same vocabulary size ({sizes[0]}) but another tokenizer: "
            f"its ids mean other text; {INSTEAD}"
        )
