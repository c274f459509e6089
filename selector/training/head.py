"""What EAGLE heads share in training: attention over the passes of training-time test, gated MLP, rotary turn."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: Keys and values of each pass so far.
Past = list[tuple[Tensor, Tensor]]


class HeadAttention(nn.Module):
    """Attention over the first pass's keys up to t, then over its own keys of the later passes.

    That is what the head sees in an engine: target features for committed tokens, its own outputs for drafts.
    """

    def __init__(self, config: Any, inputs: int) -> None:
        super().__init__()
        hidden, self.size = config.hidden_size, config.head_dim
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        self.q_proj = nn.Linear(inputs, self.heads * self.size, bias=False)
        self.k_proj = nn.Linear(inputs, self.groups * self.size, bias=False)
        self.v_proj = nn.Linear(inputs, self.groups * self.size, bias=False)
        self.o_proj = nn.Linear(self.heads * self.size, hidden, bias=False)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], past: Past) -> Tensor:
        """Add this pass's keys and values to `past` and attend."""
        q = turned(self._split(self.q_proj(x)), turn)
        k = turned(self._split(self.k_proj(x)), turn)
        v = self._split(self.v_proj(x))
        repeat = self.heads // self.groups
        past.append((k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)))
        (first_k, first_v), later = past[0], past[1:]
        tokens = x.shape[1]
        future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        scores = (q @ first_k.mT).masked_fill(future, float("-inf"))
        own = [(q * k).sum(-1, keepdim=True) for k, _ in later]
        weights = (torch.cat([scores, *own], -1) / self.size**0.5).softmax(-1)
        out = weights[..., :tokens] @ first_v
        for i, (_, v) in enumerate(later):
            out = out + weights[..., tokens + i, None] * v
        return self.o_proj(out.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]  # modules are untyped calls

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.size).transpose(1, 2)


class HeadMlp(nn.Module):
    """The gated MLP of a Llama layer."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """SwiGLU."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]  # as above


def turned(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary positions on (rows, heads, tokens, size), halves paired as in Llama."""
    cos, sin = turn
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat([-high, low], -1) * sin
