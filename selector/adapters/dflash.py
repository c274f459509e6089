"""DFlash: a small block-diffusion model drafts all k tokens in one pass from the target's hidden states."""

from __future__ import annotations

from typing import Any

from selector.adapters.base import INSTEAD
from selector.adapters.checkpoint import Checkpoint
from selector.adapters.served_only import ServedOnly
from selector.adapters.widths import ANY, Widths
from selector.errors import DrafterMismatch
from selector.strategy import Method, Strategy

_SECTION = "dflash_config"


class DflashAdapter(ServedOnly):
    """Drafters as vLLM 0.32 loads them; which tokens are accepted changes with the k asked for."""

    method: Method = "dflash"
    needs_drafter = True

    def check(self, drafter: Checkpoint, target: Checkpoint) -> list[str]:
        """The config must say which hidden states are read and what stands for a token to be drafted."""
        section = drafter.config.get(_SECTION)
        if not isinstance(section, dict) or "mask_token_id" not in section or not section.get("target_layer_ids"):
            raise DrafterMismatch(
                f"{drafter.path / 'config.json'}: no {_SECTION} with mask_token_id and target_layer_ids in it, "
                f"so this is no DFlash drafter; {INSTEAD}"
            )
        depth = target.whole("num_hidden_layers")
        wrong = [n for n in section["target_layer_ids"] if not isinstance(n, int) or not 0 <= n < depth]
        if wrong:
            raise DrafterMismatch(f"{drafter.path}: reads layers {wrong}, the target has {depth}; {INSTEAD}")
        ours, theirs = drafter.whole("vocab_size"), target.whole("vocab_size")
        if ours != theirs:
            raise DrafterMismatch(f"{drafter.path}: a vocabulary of {ours}, the target's is {theirs}; {INSTEAD}")
        return []

    def widths(self, drafter: Checkpoint | None, target: Checkpoint) -> Widths:
        """At most the block it was trained for."""
        block = drafter.config.get("block_size") if drafter is not None else None
        return Widths(most=block, what=f"a block of {block} tokens") if isinstance(block, int) else ANY

    def vllm(self, strategy: Strategy, drafter_path: str | None) -> dict[str, Any] | None:
        """Method and folder; parallel drafting is implied."""
        return {"method": "dflash", "model": drafter_path, "num_speculative_tokens": strategy.k}
