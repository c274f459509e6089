"""One decoder layer of an EAGLE head, over a cache that it fills itself; modules are named as vLLM 0.32's tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from selector.adapters.head_config import HeadConfig


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
    """One layer's cache (batch, heads, capacity, size), the part of it that is new, and how to see it."""

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

    def forward(self, x: Tensor, look: Look) -> Tensor:
        """(batch, new, inputs) -> (batch, new, hidden)."""
        q, k, v = (p(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        look.keys[:, :, look.start : look.end] = _rotate(k, look)
        look.values[:, :, look.start : look.end] = v
        keys, values = look.keys[:, :, : look.end], look.values[:, :, : look.end]
        causal = look.mask is None and x.shape[1] > 1
        out = functional.scaled_dot_product_attention(
            _rotate(q, look), keys, values, attn_mask=look.mask, is_causal=causal, enable_gqa=True
        )
        attended: Tensor = self.o_proj(out.transpose(1, 2).flatten(2))
        return attended


class _Mlp(nn.Module):
    def __init__(self, c: HeadConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden, c.inner, bias=c.mlp_bias)
        self.up_proj = nn.Linear(c.hidden, c.inner, bias=c.mlp_bias)
        self.down_proj = nn.Linear(c.inner, c.hidden, bias=c.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        """SwiGLU."""
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
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


def _rotate(x: Tensor, look: Look) -> Tensor:
    """Rotary position embedding, half-split layout as in Llama."""
    first, second = x.chunk(2, -1)
    return x * look.cos + torch.cat([-second, first], -1) * look.sin
