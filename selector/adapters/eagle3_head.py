"""The EAGLE-3 head itself: feature fusion, one decoder layer on (embedding, hidden) pairs, reduced vocabulary.

Follows the checkpoint layout that vLLM 0.32 loads for Llama heads; the idea is Li et al. 2025 (EAGLE-3).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_NAMES = {"midlayer.": "layer.", "layers.0.": "layer.", "self_attn.": "", "mlp.": "", "_proj": ""}


class Rms(nn.Module):
    """Root-mean-square norm, computed in float32 as Llama does."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        """(..., size) -> the same."""
        y = functional.rms_norm(x.float(), (x.shape[-1],), None, self.eps)
        return self.weight * y.to(x.dtype)


class _Layer(nn.Module):
    """The weights of the head's decoder layer."""

    def __init__(self, config: dict[str, Any], hidden: int, bias: bool) -> None:
        super().__init__()
        eps, inner = float(config["rms_norm_eps"]), int(config["intermediate_size"])
        self.heads = int(config["num_attention_heads"])
        self.kv_heads = int(config.get("num_key_value_heads") or self.heads)
        self.size = int(config.get("head_dim") or hidden // self.heads)
        self.q = nn.Linear(2 * hidden, self.heads * self.size, bias=bias)
        self.k = nn.Linear(2 * hidden, self.kv_heads * self.size, bias=bias)
        self.v = nn.Linear(2 * hidden, self.kv_heads * self.size, bias=bias)
        self.o = nn.Linear(self.heads * self.size, hidden, bias=False)
        self.gate = nn.Linear(hidden, inner, bias=False)
        self.up = nn.Linear(hidden, inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)
        self.input_layernorm, self.hidden_norm = Rms(hidden, eps), Rms(hidden, eps)
        self.post_attention_layernorm = Rms(hidden, eps)


class Eagle3Head(nn.Module):
    """`step` returns the hidden states that the next draft continues from; `logits` scores target ids."""

    target_ids: Tensor | None

    def __init__(self, config: dict[str, Any], tensors: dict[str, Tensor], target_embedding: Tensor) -> None:
        super().__init__()
        width, inputs = tensors["fc.weight"].shape
        eps, eagle = float(config["rms_norm_eps"]), config.get("eagle_config") or {}
        self.embedding = tensors.get("embed_tokens.weight", target_embedding)
        self.fc = nn.Linear(inputs, width, bias=False)
        self.layer = _Layer(config, width, bool(config.get("attention_bias", False)))
        self.norm = Rms(width, eps)
        self.lm_head = nn.Linear(width, int(config.get("draft_vocab_size") or config["vocab_size"]), bias=False)
        before_fc = eagle.get("norm_before_fc", config.get("norm_before_fc", False))
        self.input_norm = Rms(inputs, eps) if before_fc else None
        taps = int(config.get("num_aux_hidden_states") or 3)
        self.fc_norm = nn.ModuleList(Rms(inputs // taps, eps) for _ in range(taps)) if config.get("fc_norm") else None
        self.norm_before_residual = bool(config.get("norm_before_residual", False))
        self.norm_output = bool(config.get("norm_output", False))
        self.vocabulary = int(config["vocab_size"])
        d2t = tensors.get("d2t")
        ids = None if d2t is None else d2t + torch.arange(len(d2t))
        self.register_buffer("target_ids", ids, persistent=False)
        theta = float((config.get("rope_parameters") or config).get("rope_theta", 10000.0))
        self.theta = theta
        self._load(tensors)

    def _load(self, tensors: dict[str, Tensor]) -> None:
        renamed = {}
        for name, value in tensors.items():
            new = name
            for old, short in _NAMES.items():
                new = new.replace(old, short)
            if new not in ("d2t", "t2d", "embed_tokens.weight"):
                renamed[new] = value.float()
        renamed.setdefault("lm_head.weight", self.embedding.float())
        self.load_state_dict(renamed, strict=True)

    def start(self, batch: int, capacity: int) -> None:
        """An empty cache of `capacity` entries a row."""
        shape, like = (batch, self.layer.kv_heads, capacity, self.layer.size), self.norm.weight
        self.keys, self.values, self.length = like.new_zeros(shape), like.new_zeros(shape), 0

    def combine(self, aux: Tensor) -> Tensor:
        """Target hidden states side by side (batch, new, taps * hidden) -> (batch, new, hidden)."""
        if self.input_norm is not None:
            aux = self.input_norm(aux)
        if self.fc_norm is not None:
            parts = aux.chunk(len(self.fc_norm), -1)
            aux = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], -1)
        out: Tensor = self.fc(aux)
        return out

    def step(self, tokens: Tensor, hidden: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        """Entries (batch, new) of token and hidden state, appended to the cache -> (batch, new, hidden)."""
        layer, embedded = self.layer, functional.embedding(tokens, self.embedding).to(hidden.dtype)
        normed = layer.hidden_norm(hidden)
        residual = normed if self.norm_before_residual else hidden
        x = residual + self._attend(torch.cat([layer.input_layernorm(embedded), normed], -1), positions, mask)
        y = layer.post_attention_layernorm(x)
        x = x + layer.down(functional.silu(layer.gate(y)) * layer.up(y))
        out: Tensor = self.norm(x) if self.norm_output else x
        return out

    def _attend(self, x: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        batch, new, _ = x.shape
        layer, end = self.layer, self.length + new
        halves = torch.arange(0, layer.size, 2, device=x.device).float() / layer.size  # float32 whatever the dtype
        angles = positions[:, None].float() * self.theta**-halves
        cos, sin = (torch.cat([f(angles)] * 2, -1).to(x.dtype) for f in (torch.cos, torch.sin))
        q = _rotate(layer.q(x).view(batch, new, layer.heads, layer.size).transpose(1, 2), cos, sin)
        k = _rotate(layer.k(x).view(batch, new, layer.kv_heads, layer.size).transpose(1, 2), cos, sin)
        self.keys[:, :, self.length : end] = k
        self.values[:, :, self.length : end] = layer.v(x).view(batch, new, layer.kv_heads, layer.size).transpose(1, 2)
        self.length = end
        seen, out = mask is None and new > 1, self.keys[:, :, :end]
        out = functional.scaled_dot_product_attention(
            q, out, self.values[:, :, :end], attn_mask=mask, is_causal=seen, enable_gqa=True
        )
        attended: Tensor = layer.o(out.transpose(1, 2).reshape(batch, new, -1))
        return attended

    def logits(self, hidden: Tensor) -> Tensor:
        """Draft logits over the target's vocabulary (..., vocabulary); -inf for ids the head cannot draft."""
        own: Tensor = self.lm_head(hidden if self.norm_output else self.norm(hidden))
        if self.target_ids is None:
            return own
        full = own.new_full((*own.shape[:-1], self.vocabulary), float("-inf"))
        return full.index_copy_(-1, self.target_ids, own)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding, half-split layout as in Llama."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin
