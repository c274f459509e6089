"""Key-value caches of fixed capacity that are cropped by moving their end."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

#: Up to this many queries the mask is kept for the next pass of the same width.
WIDEST_STORED = 32


class _Layer(CacheLayerMixin):  # type: ignore[no-untyped-call]  # the base has an untyped __init_subclass__
    """Keys and values of one layer, shape (batch, kv heads, capacity, head size), `length` of them filled."""

    is_sliding = False
    is_croppable = True

    def __init__(self, batch: int, capacity: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped upstream
        self.batch, self.capacity, self.length = batch, capacity, 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        shape = (self.batch, key_states.shape[1], self.capacity)
        self.keys = key_states.new_zeros((*shape, key_states.shape[-1]))
        self.values = value_states.new_zeros((*shape, value_states.shape[-1]))
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if self.keys is None or self.values is None:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        end = self.length + key_states.shape[-2]
        if end > self.capacity:
            raise ValueError(f"cache of {self.capacity} tokens is full: {end} asked for")
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return self.capacity

    def crop(self, tokens_to_remove: int) -> None:
        self.length -= abs(tokens_to_remove)


class FixedCache(Cache):
    """All layers of one model. Nothing is copied when drafts are rejected: `crop_to` moves the end back."""

    def __init__(self, layers: int, batch: int, capacity: int) -> None:
        self.rows = [_Layer(batch, capacity) for _ in range(layers)]
        super().__init__(layers=[*self.rows])

    @property
    def length(self) -> int:
        """Tokens held per row."""
        return self.rows[0].length

    def crop_to(self, length: int) -> None:
        """Keep the first `length` tokens of every row."""
        for layer in self.rows:
            layer.length = length


class KeyValues:
    """The same for our own forward pass: one block of memory, and views of it that are made once per pass."""

    def __init__(self, like: Tensor, layers: int, batch: int, heads: int, capacity: int, size: int) -> None:
        self.data = like.new_zeros((layers, 2, batch, heads, capacity, size))
        self.capacity, self.length = capacity, 0
        self.masks: dict[int, Tensor] = {}

    def crop_to(self, length: int) -> None:
        """Keep the first `length` tokens of every row."""
        self.length = length

    def extend(self, new: int) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Room for `new` tokens: per layer the slots of their keys and values, then all keys and all values."""
        start, end = self.length, self.length + new
        if end > self.capacity:
            raise ValueError(f"cache of {self.capacity} tokens is full: {end} asked for")
        self.length = end
        slots = self.data[..., start:end, :].flatten(0, 1).unbind(0)
        whole = self.data[..., :end, :].flatten(0, 1).unbind(0)
        return list(zip(slots[::2], slots[1::2], whole[::2], whole[1::2], strict=True))

    def mask(self, new: int, group: int) -> Tensor:
        """`causal_mask` of the next pass, its rows repeated `group` times; narrow ones are cut from a wide one."""
        past, like = self.length, (self.data.dtype, self.data.device)
        if new > WIDEST_STORED:
            return _lower_triangle(new, past, *like).repeat(1, 1, group, 1)
        if new not in self.masks:
            self.masks[new] = _lower_triangle(new, self.capacity - new, *like).repeat(1, 1, group, 1)
        return self.masks[new][..., self.capacity - past - new :]


def causal_mask(queries: int, past: int, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """Additive mask (1, 1, queries, past + queries) for new tokens behind a filled cache.

    None where the attention kernel needs none: one query, or no past (it applies its own causal mask then).
    """
    return None if queries == 1 or past == 0 else _lower_triangle(queries, past, dtype, device)


def _lower_triangle(queries: int, past: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    mask = torch.zeros((queries, past + queries), dtype=dtype, device=device)
    blocked = torch.ones((queries, queries), dtype=torch.bool, device=device).triu(1)
    mask[:, past:].masked_fill_(blocked, float("-inf"))
    return mask[None, None]
