"""Medusa: several heads on the target's last hidden state, each guessing one position ahead."""

from __future__ import annotations

from typing import Any

from selector.adapters.base import INSTEAD
from selector.adapters.checkpoint import Checkpoint
from selector.adapters.served_only import ServedOnly
from selector.adapters.widths import Widths
from selector.errors import DrafterMismatch
from selector.strategy import Method, Strategy

#: vLLM 0.32 takes any key with "num" and "heads" in it; the last is what older accelerators counted theirs by.
_HEAD_KEYS = ("num_heads", "medusa_num_heads", "n_predict")
_DEFAULT_HEADS = 5


class MedusaAdapter(ServedOnly):
    """Heads as vLLM 0.32 loads them: `model_type` medusa, top-1 proposals, no tree."""

    method: Method = "medusa"
    needs_drafter = True

    def check(self, drafter: Checkpoint, target: Checkpoint) -> list[str]:
        """The config must be a Medusa one of the target's hidden size and vocabulary."""
        kind = drafter.config.get("model_type")
        if kind != "medusa":
            raise DrafterMismatch(
                f"{drafter.path / 'config.json'}: model_type is {kind!r}, vLLM reads Medusa heads by 'medusa'; "
                "write that if these are Medusa heads"
            )
        for key in ("hidden_size", "vocab_size"):
            ours, theirs = drafter.whole(key), target.whole(key)
            if ours != theirs:
                raise DrafterMismatch(f"{drafter.path}: {key} is {ours}, the target's {theirs}; {INSTEAD}")
        return []

    def widths(self, drafter: Checkpoint | None, target: Checkpoint) -> Widths:
        """One draft a head."""
        config = drafter.config if drafter is not None else {}
        heads = next((n for key in _HEAD_KEYS if isinstance(n := config.get(key), int)), _DEFAULT_HEADS)
        return Widths(most=heads, what=f"a head of {heads} predicted tokens")

    def vllm(self, strategy: Strategy, drafter_path: str | None) -> dict[str, Any] | None:
        """Method and folder; fewer than all heads are used where k is smaller."""
        return {"method": "medusa", "model": drafter_path, "num_speculative_tokens": strategy.k}
