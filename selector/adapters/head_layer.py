"""One decoder layer of an EAGLE head, over a cache that it fills itself; modules are named as vLLM 0.32's tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from selector.adapters.head_config import HeadConfig
from selector.engines.reference.attention import attend, folded, turned
from selector.engines.reference.linear import gated, joined


class Rms(nn.Module):
    """Root-mean-square norm, computed in float32 as Llama does."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        """(..., size) -> the same."""
        y = functional.rms_norm(x.float(), (x.shape[-1],), None, self.eps)
        return self.weight * y.to(x.dtype)


@dataclass(frozen=True)
class Look:
    """One layer's cache (batch, heads, capacity, size), the part of it that is new, and how to see it.

    The first half of `sin` is negative (`turned`).
    """

    keys: Tensor
    values: Tensor
    start: int
    end: int
    cos: Tensor
    sin: Tensor
    mask: Tensor | None


class _Attention(nn.Module):
    def __init__(self, c: HeadConfig, inputs: int) -> None:
        super().__init__()
        self.size = c.head_size
        self.q_proj = nn.Linear(inputs, c.heads * c.head_size, bias=c.qkv_bias)
        self.k_proj = nn.Linear(inputs, c.kv_heads * c.head_size, bias=c.qkv_bias)
        self.v_proj = nn.Linear(inputs, c.kv_heads * c.head_size, bias=c.qkv_bias)
        self.o_proj = nn.Linear(c.heads * c.head_size, c.hidden, bias=c.output_bias)
        self.q_norm = Rms(c.head_size, c.eps) if c.head_norms else None
        self.k_norm = Rms(c.head_size, c.eps) if c.head_norms else None

    def fuse(self) -> None:
        """One product for q, k and v from now on; the weights are loaded."""
        self.qkv_proj = joined(self.q_proj, self.k_proj, self.v_proj)
        del self.q_proj, self.k_proj, self.v_proj

    def forward(self, x: Tensor, look: Look) -> Tensor:
        """(batch, new, inputs) -> (batch, new, hidden)."""
        qkv = self.qkv_proj(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
        kv_heads = look.keys.shape[1]
        q, k, v = qkv.split_with_sizes((qkv.shape[1] - 2 * kv_heads, kv_heads, kv_heads), 1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        look.keys[:, :, look.start : look.end] = turned(k, look.cos, look.sin)
        look.values[:, :, look.start : look.end] = v
        keys, values = look.keys[:, :, : look.end], look.values[:, :, : look.end]
        mask = None if look.mask is None else folded(look.mask, q.shape[1] // kv_heads)
        out: Tensor = self.o_proj(attend(turned(q, look.cos, look.sin), keys, values, mask).flatten(2))
        return out


class _Mlp(nn.Module):
    def __init__(self, c: HeadConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden, c.inner, bias=c.mlp_bias)
        self.up_proj = nn.Linear(c.hidden, c.inner, bias=c.mlp_bias)
        self.down_proj = nn.Linear(c.inner, c.hidden, bias=c.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        """SwiGLU."""
        out: Tensor = self.down_proj(gated(self.gate_proj, self.up_proj, x))
        return out


class HeadLayer(nn.Module):
    """Pre-norm attention and MLP; an EAGLE-1 head's first layer has no norm before its attention."""

    def __init__(self, c: HeadConfig, *, first: bool) -> None:
        super().__init__()
        self.self_attn = _Attention(c, 2 * c.hidden if first and c.joins_in_layer else c.hidden)
        self.mlp, self.post_attention_layernorm = _Mlp(c), Rms(c.hidden, c.eps)
        if c.joins_in_layer or not first:
            self.input_layernorm = Rms(c.hidden, c.eps)
        if c.joins_in_layer and first:
            self.hidden_norm = Rms(c.hidden, c.eps)

    def forward(self, x: Tensor, residual: Tensor, look: Look) -> Tensor:
        """`x` is attended over, `residual` is what the result is added to."""
        x = residual + self.self_attn(x, look)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out
