"""The EAGLE-1 head itself: embedding and final hidden state joined by `fc`, then decoder layers.

Follows the checkpoint layout that vLLM 0.32 loads for Llama heads; the idea is Li et al. 2024 (EAGLE).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from selector.adapters.draft_head import DraftHead, Lent
from selector.adapters.head_config import HeadConfig


class EagleHead(DraftHead):
    """Its outputs stand for the target's own final hidden states, so the target's output head reads them."""

    def __init__(self, config: HeadConfig, rope: tuple[Tensor, float], lent: Lent) -> None:
        super().__init__(config, rope, lent)
        self.fc = nn.Linear(2 * config.hidden, config.hidden, bias=False)

    def step(self, tokens: Tensor, hidden: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        """As the base says; the first layer attends over the joined vector as it is, without a norm."""
        joined = self.fc(torch.cat([self._embedded(tokens, hidden), hidden], -1))
        return self._layers(joined, joined, positions, mask)

    def logits(self, hidden: Tensor) -> Tensor:
        """The target's output head, with no norm before it."""
        return self._scaled(self.lent.read(hidden))
