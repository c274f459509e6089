"""Multi-token prediction: layers that the target's own checkpoint brings draft the next tokens."""

from __future__ import annotations

from typing import Any

from selector.adapters.checkpoint import Checkpoint
from selector.adapters.served_only import ServedOnly
from selector.adapters.widths import ANY, Widths
from selector.strategy import Method, Strategy

#: Where configs of targets say how many such layers there are.
LAYER_KEYS = ("n_predict", "num_nextn_predict_layers", "mtp_num_hidden_layers")


class MtpAdapter(ServedOnly):
    """No checkpoint beside the target's; k above the number of layers runs them all again."""

    method: Method = "mtp"
    needs_drafter = False

    def check(self, drafter: Checkpoint, target: Checkpoint) -> list[str]:
        """There is no drafter to mismatch; whether the target has the layers is a requirement of the recipe."""
        return []

    def widths(self, drafter: Checkpoint | None, target: Checkpoint) -> Widths:
        """Above the number of layers k must be a multiple of it, as in vLLM 0.32."""
        layers = next((n for key in LAYER_KEYS if isinstance(n := target.config.get(key), int) and n > 0), None)
        return ANY if layers is None else Widths(block=layers, what="the target's MTP module")

    def vllm(self, strategy: Strategy, drafter_path: str | None) -> dict[str, Any] | None:
        """No model is named: it is the target's own."""
        return {"method": "mtp", "num_speculative_tokens": strategy.k}
