"""The EAGLE-3 head itself: feature fusion, decoder layers on (embedding, hidden) pairs, reduced vocabulary.

Follows the checkpoint layout that vLLM 0.32 loads for Llama and Qwen3 heads; the idea is Li et al. 2025 (EAGLE-3).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from selector.adapters.draft_head import DraftHead, Lent
from selector.adapters.head_config import HeadConfig
from selector.adapters.head_layer import Rms


class Eagle3Head(DraftHead):
    """Reads several of the target's hidden states (or only the final one), and has an output head of its own or not."""

    target_ids: Tensor | None

    def __init__(self, config: HeadConfig, rope: tuple[Tensor, float], lent: Lent, *, own_output: bool) -> None:
        super().__init__(config, rope, lent)
        c = config
        self.input_norm = Rms(c.features, c.eps) if c.norm_before_fc else None
        self.fc_norm = nn.ModuleList(Rms(c.target_hidden, c.eps) for _ in range(c.aux_count)) if c.fc_norm else None
        self.fc = nn.Linear(c.features, c.hidden, bias=False) if c.reads_aux else None
        self.norm = Rms(c.hidden, c.eps)
        self.lm_head = nn.Linear(c.hidden, c.draft_vocabulary, bias=False) if own_output else None
        self.register_buffer("target_ids", None, persistent=False)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """As the base says; `d2t` holds how far each draft id lies before its target id."""
        super().load(tensors)
        if self.config.draft_vocabulary != self.config.vocabulary:
            self.target_ids = tensors["d2t"].long() + torch.arange(self.config.draft_vocabulary)

    def combine(self, features: Tensor) -> Tensor:
        """The target's hidden states side by side, normed as the config says, through `fc`."""
        if self.fc is None:
            return features
        if self.input_norm is not None:
            features = self.input_norm(features)
        if self.fc_norm is not None:
            parts = features.chunk(len(self.fc_norm), -1)
            features = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], -1)
        out: Tensor = self.fc(features)
        return out

    def step(self, tokens: Tensor, hidden: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        """As the base says; embedding and hidden state are normed apart and attended over side by side."""
        first: Any = self.layers[0]
        embedded, normed = first.input_layernorm(self._embedded(tokens, hidden)), first.hidden_norm(hidden)
        residual = normed if self.config.norm_before_residual else hidden
        out = self._layers(torch.cat([embedded, normed], -1), residual, positions, mask)
        return self.norm(out) if self.config.norm_output else out

    def logits(self, hidden: Tensor) -> Tensor:
        """Its own output head, or the target's, behind its final norm."""
        normed = hidden if self.config.norm_output else self.norm(hidden)
        own = self._scaled((self.lm_head or self.lent.read)(normed))
        if self.target_ids is None:
            return own
        full = own.new_full((*own.shape[:-1], self.config.vocabulary), float("-inf"))
        return full.index_copy_(-1, self.target_ids, own)
