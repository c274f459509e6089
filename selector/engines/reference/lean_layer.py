"""Which decoders our own forward pass knows, and the weights of one of their layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from selector.engines.reference.linear import PackedLinear, joined

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
#: Rotary kinds whose frequencies do not change with the length of the text.
ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class LeanLayer:
    """Products are of any kind that maps (rows, in) to (rows, out)."""

    attention_norm: Tensor
    qkv: nn.Module
    head_norm: Tensor | None  # (query + key heads, head size): Qwen3 scales every head of q and k
    o: nn.Module
    mlp_norm: Tensor
    gate: nn.Module
    up: nn.Module
    down: nn.Module


def fits(config: Any, layers: nn.ModuleList | None = None) -> bool:
    """Whether the architecture is one that `lean.LeanDecoder` knows, and its layers hold plain linear products."""
    if getattr(config, "quantization_config", None) is not None:
        return False
    for layer in layers or ():
        products = [getattr(layer.self_attn, f"{n}_proj", None) for n in "qkvo"]
        products += [getattr(layer.mlp, f"{n}_proj", None) for n in ("gate", "up", "down")]
        if any(type(p) is not nn.Linear for p in products):
            return False
    rope = getattr(config, "rope_parameters", None) or {}
    return (
        config.model_type in MODEL_TYPES
        and config.hidden_act == "silu"
        and rope.get("rope_type", "default") in ROPE_TYPES
        and float(rope.get("partial_rotary_factor") or 1.0) == 1.0
    )


def take(layer: Any, *, pack: bool) -> LeanLayer:
    """The weights of one transformers layer, which is emptied so that none is held twice."""
    attention, mlp = layer.self_attn, layer.mlp
    head_norm = None
    if hasattr(attention, "q_norm"):
        heads = (
            attention.q_proj.out_features // attention.head_dim,
            attention.k_proj.out_features // attention.head_dim,
        )
        norms = (attention.q_norm.weight.detach(), attention.k_norm.weight.detach())
        head_norm = torch.cat([n.expand(h, -1) for n, h in zip(norms, heads, strict=True)])

    def product(*linears: nn.Linear) -> nn.Module:
        one = linears[0] if len(linears) == 1 else joined(*linears)
        return PackedLinear(one) if pack else one

    taken = LeanLayer(
        attention_norm=layer.input_layernorm.weight.detach(),
        qkv=product(attention.q_proj, attention.k_proj, attention.v_proj),
        head_norm=head_norm,
        o=product(attention.o_proj),
        mlp_norm=layer.post_attention_layernorm.weight.detach(),
        gate=product(mlp.gate_proj),
        up=product(mlp.up_proj),
        down=product(mlp.down_proj),
    )
    for module, names in ((attention, "qkvo"), (mlp, ("gate", "up", "down"))):
        for name in names:
            delattr(module, f"{name}_proj")
    return taken
