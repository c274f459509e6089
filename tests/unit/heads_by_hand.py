"""EAGLE heads computed the slow way, for comparison: no cache, one formula after the other, every prefix anew."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

EPS = 1e-5
Tensors = dict[str, Tensor]


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return weight * x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt()


def linear(t: Tensors, name: str, x: Tensor) -> Tensor:
    return functional.linear(x, t[f"{name}.weight"], t.get(f"{name}.bias"))


def angles(config: dict[str, Any], size: int, entries: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines (entries, size)."""
    told = {key: config[key] for key in ("rope_scaling", "rope_theta", "max_position_embeddings") if key in config}
    if "rope_scaling" in told:
        rotary: Any = LlamaRotaryEmbedding(LlamaConfig(**told, hidden_size=size, num_attention_heads=1))
        cos, sin = rotary(torch.zeros(1), torch.arange(entries)[None])
        return cos[0], sin[0]
    pairs = torch.arange(size // 2)
    angle = torch.arange(entries)[:, None] / float(told.get("rope_theta", 10000.0)) ** (2 * pairs / size)
    return torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin()


def attention(t: Tensors, at: str, config: dict[str, Any], x: Tensor) -> Tensor:
    """Each entry of x (entries, inputs) over itself and those before it, head by head."""
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    q, k, v = (linear(t, f"{at}.self_attn.{n}_proj", x) for n in "qkv")
    size = q.shape[1] // heads
    cos, sin = angles(config, size, len(x))
    outputs = []
    for head in range(heads):
        mine, shared = slice(head * size, (head + 1) * size), head // (heads // groups)
        theirs = slice(shared * size, (shared + 1) * size)
        a, b = q[:, mine], k[:, theirs]
        if f"{at}.self_attn.q_norm.weight" in t:
            a, b = rms(a, t[f"{at}.self_attn.q_norm.weight"]), rms(b, t[f"{at}.self_attn.k_norm.weight"])
        a, b = (y * cos + torch.cat([-y[:, size // 2 :], y[:, : size // 2]], -1) * sin for y in (a, b))
        rows = []
        for p in range(len(x)):
            weights = torch.softmax(b[: p + 1] @ a[p] / size**0.5, 0)
            rows.append(weights @ v[: p + 1, theirs])
        outputs.append(torch.stack(rows))
    return linear(t, f"{at}.self_attn.o_proj", torch.cat(outputs, -1))


def mlp(t: Tensors, at: str, x: Tensor) -> Tensor:
    gate, up = linear(t, f"{at}.mlp.gate_proj", x), linear(t, f"{at}.mlp.up_proj", x)
    return linear(t, f"{at}.mlp.down_proj", gate * torch.sigmoid(gate) * up)


def later_layers(t: Tensors, config: dict[str, Any], x: Tensor) -> Tensor:
    for i in range(1, config["num_hidden_layers"]):
        at = f"layers.{i}"
        x = x + attention(t, at, config, rms(x, t[f"{at}.input_layernorm.weight"]))
        x = x + mlp(t, at, rms(x, t[f"{at}.post_attention_layernorm.weight"]))
    return x


def eagle3_layers(t: Tensors, config: dict[str, Any], embedded: Tensor, hidden: Tensor) -> Tensor:
    """Hidden states (entries, hidden) of all entries, before the last norm."""
    normed = rms(hidden, t["layers.0.hidden_norm.weight"])
    both = torch.cat([rms(embedded, t["layers.0.input_layernorm.weight"]), normed], -1)
    x = (normed if config.get("norm_before_residual") else hidden) + attention(t, "layers.0", config, both)
    x = x + mlp(t, "layers.0", rms(x, t["layers.0.post_attention_layernorm.weight"]))
    return later_layers(t, config, x)


def eagle_layers(t: Tensors, config: dict[str, Any], embedded: Tensor, hidden: Tensor) -> Tensor:
    x = linear(t, "fc", torch.cat([embedded, hidden], -1))
    x = x + attention(t, "layers.0", config, x)
    x = x + mlp(t, "layers.0", rms(x, t["layers.0.post_attention_layernorm.weight"]))
    return later_layers(t, config, x)


def fused(t: Tensors, config: dict[str, Any], states: list[Tensor]) -> Tensor:
    """What an EAGLE-3 head makes of the target's hidden states, each (entries, target hidden)."""
    section = config.get("eagle_config") or {}
    if section.get("use_aux_hidden_state") is False:
        return states[0]
    x = torch.cat(states, -1)
    if section.get("norm_before_fc", config.get("norm_before_fc")):
        x = rms(x, t["input_norm.weight"])
    if config.get("fc_norm"):
        parts = x.chunk(len(states), -1)
        x = torch.cat([rms(part, t[f"fc_norm.{i}.weight"]) for i, part in enumerate(parts)], -1)
    return linear(t, "fc", x)


def drafts(
    method: str, t: Tensors, config: dict[str, Any], target: tuple[Tensor, Tensor], ids: list[int],
    states: list[Tensor], k: int,
) -> list[int]:  # fmt: skip
    """k greedy drafts behind `ids`; `target`: embedding and output head; `states`: of all ids but the last."""
    embedding, read = t.get("embed_tokens.weight", target[0]), t.get("lm_head.weight", target[1])
    hidden = states[0] if method == "eagle" else fused(t, config, states)
    tokens, found = ids[1:], list[int]()
    while len(found) < k:
        embedded = embedding[torch.tensor(tokens)]
        out = (eagle_layers if method == "eagle" else eagle3_layers)(t, config, embedded, hidden)[-1]
        if method == "eagle":
            logits = read @ out
        else:
            normed = rms(out, t["norm.weight"])
            logits, out = read @ normed, normed if config.get("norm_output") else out
        best = int((logits * config.get("logit_scale", 1.0)).argmax())
        best += int(t["d2t"][best]) if "d2t" in t else 0
        found.append(best)
        tokens, hidden = [*tokens, best], torch.cat([hidden, out[None]])
    return found
