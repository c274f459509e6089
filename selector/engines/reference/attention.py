"""Attention in which the query heads that share a key head are rows of one product, so no key or value is repeated."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def attend(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float | None = None) -> Tensor:
    """q: (batch, heads, new, size); keys, values: (batch, key heads, all, size) -> (batch, new, heads, size).

    `mask` comes from `folded`; without one, several queries see each other causally and there is nothing before them.
    """
    batch, heads, new, size = q.shape
    sdpa = functional.scaled_dot_product_attention
    if mask is None and new > 1:
        out = sdpa(q, keys, values, is_causal=True, scale=scale, enable_gqa=True)
    else:
        rows = q.reshape(batch, keys.shape[1], -1, size)
        out = sdpa(rows, keys, values, attn_mask=mask, scale=scale).view(batch, heads, new, size)
    return out.transpose(1, 2)


def folded(mask: Tensor, group: int) -> Tensor:
    """(batch or 1, 1, new, all) -> (batch or 1, 1, group * new, all), for `group` query heads on each key head."""
    return mask.expand(-1, group, -1, -1).reshape(mask.shape[0], 1, -1, mask.shape[-1])


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding, half-split layout as in Llama; the first half of `sin` is negative."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)
