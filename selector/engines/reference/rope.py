"""Rotary frequencies of a head, from the functions that transformers uses for whole models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

_KEYS = ("rope_theta", "rope_parameters", "rope_scaling", "max_position_embeddings")


def frequencies(config: Mapping[str, Any], head_size: int) -> tuple[Tensor, float]:
    """(head_size / 2,) angles per position, and what cosine and sine are multiplied with; `config`: of the head."""
    told: dict[str, Any] = {key: config[key] for key in _KEYS if config.get(key) is not None}
    told |= {"hidden_size": head_size, "num_attention_heads": 1, "head_dim": head_size}
    rotary: Any = LlamaRotaryEmbedding(LlamaConfig(**told))
    return rotary.inv_freq.float(), float(rotary.attention_scaling)
