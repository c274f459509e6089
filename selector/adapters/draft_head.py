"""What EAGLE heads share: decoder layers over a cache of their own, an embedding, and a way to score target ids.

Modules are named as the tensors of the checkpoints that vLLM 0.32 loads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from selector.adapters.head_config import HeadConfig
from selector.adapters.head_layer import HeadLayer, Look
from selector.adapters.head_layout import plain_name


@dataclass(frozen=True)
class Lent:
    """What the target lends a head: its embedding (vocabulary, hidden), and logits of its normed hidden states."""

    embedding: Tensor
    read: Callable[[Tensor], Tensor]


class DraftHead(nn.Module):
    """`step` gives the hidden states that the next draft continues from, `logits` scores target ids after them."""

    def __init__(self, config: HeadConfig, rope: tuple[Tensor, float], lent: Lent) -> None:
        super().__init__()
        self.config, self.rope, self.lent = config, rope, lent
        self.layers = nn.ModuleList(HeadLayer(config, first=i == 0) for i in range(config.layers))
        self.embedding, self.batch, self.length = lent.embedding, 0, 0
        self.cos = self.sin = torch.zeros(0)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the weights; call `head_layout.check_tensors` first, which says what is wrong with them."""
        named = {plain_name(name): tensor for name, tensor in tensors.items()}
        own = named.get("embed_tokens.weight")
        if own is not None:
            self.embedding = own.to(self.lent.embedding)
        self.load_state_dict({name: named[name].float() for name in self.state_dict()})
        for layer in list[Any](self.layers):
            layer.self_attn.fuse()

    def start(self, batch: int, capacity: int) -> None:
        """An empty cache of `capacity` entries a row."""
        c, like = self.config, next(self.parameters())
        self.cache = like.new_zeros((c.layers, 2, batch, c.kv_heads, capacity, c.head_size))
        self.batch, self.length = batch, 0
        if capacity > len(self.cos):
            self._turns(capacity, like)

    def _turns(self, capacity: int, like: Tensor) -> None:
        """Cosines and sines of every position there may be, as `attention.turned` wants them."""
        frequencies, scale = self.rope
        angles = torch.arange(capacity)[:, None].float() * frequencies.cpu()  # float32 whatever the dtype
        cos, sin = angles.cos() * scale, angles.sin() * scale
        self.cos, self.sin = torch.cat([cos, cos], -1).to(like), torch.cat([-sin, sin], -1).to(like)

    def combine(self, features: Tensor) -> Tensor:
        """What the target hands over (batch, new, features) -> hidden states (batch, new, hidden)."""
        return features

    def step(self, tokens: Tensor, hidden: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        """Entries (batch, new) of token and hidden state, appended to the cache -> (batch, new, hidden)."""
        raise NotImplementedError

    def logits(self, hidden: Tensor) -> Tensor:
        """Draft logits over the target's vocabulary (..., vocabulary); -inf for ids the head cannot draft."""
        raise NotImplementedError

    def _embedded(self, tokens: Tensor, like: Tensor) -> Tensor:
        return functional.embedding(tokens, self.embedding).to(like.dtype)

    def _layers(self, x: Tensor, residual: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        """Through all layers: the first one attends over `x` and adds to `residual`."""
        cos, sin = self.cos[positions], self.sin[positions]
        start, self.length = self.length, self.length + x.shape[1]
        hidden, layers = residual, list[Any](self.layers)
        for i, layer in enumerate(layers):
            if i:
                x, residual = layer.input_layernorm(hidden), hidden
            keys, values = self.cache[i]
            hidden = layer(x, residual, Look(keys, values, start, self.length, cos, sin, mask))
        return hidden

    def _scaled(self, logits: Tensor) -> Tensor:
        return logits if self.config.logit_scale == 1 else logits * self.config.logit_scale
