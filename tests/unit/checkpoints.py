"""Writes tiny checkpoint folders without torch: config, safetensors, tokenizer."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_NAMES = {"float32": "F32", "int64": "I64", "float16": "F16", "uint16": "BF16"}  # bfloat16 as its bits
Arrays = Mapping[str, np.ndarray[Any, Any]]
HIDDEN, VOCABULARY, LAYERS = 16, 40, 8


def write(folder: Path, config: Mapping[str, Any], arrays: Arrays, tokens: Mapping[str, int] | None = None) -> Path:
    """A checkpoint folder with these tensors; `tokens` makes a tokenizer.json."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    header, body = {}, b""
    for name, a in arrays.items():
        data = a.tobytes()
        header[name] = {
            "dtype": _NAMES[a.dtype.name], "shape": a.shape, "data_offsets": [len(body), len(body) + len(data)]
        }  # fmt: skip
        body += data
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)
    if tokens is not None:
        (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": tokens}, "added_tokens": []}))
    return folder


def target(folder: Path, tokens: Mapping[str, int] | None = None, **config: Any) -> Path:
    """A target of 8 layers."""
    settings = {"hidden_size": HIDDEN, "vocab_size": VOCABULARY, "num_hidden_layers": LAYERS} | config
    return write(folder, settings, {"w": np.zeros((64, 64), np.float32)}, tokens)


def layer(prefix: str, inputs: int, norms: tuple[str, ...]) -> dict[str, Any]:
    """The tensors of a decoder layer with two heads of 8, one of them for keys and values."""
    shapes = {
        "self_attn.q_proj": (HIDDEN, inputs), "self_attn.k_proj": (HIDDEN // 2, inputs),
        "self_attn.v_proj": (HIDDEN // 2, inputs), "self_attn.o_proj": (HIDDEN, HIDDEN),
        "mlp.gate_proj": (24, HIDDEN), "mlp.up_proj": (24, HIDDEN), "mlp.down_proj": (HIDDEN, 24),
    } | dict.fromkeys(norms, (HIDDEN,))  # fmt: skip
    return {f"{prefix}{name}.weight": np.zeros(shape, np.float32) for name, shape in shapes.items()}


LAYER_CONFIG: dict[str, Any] = {
    "hidden_size": HIDDEN, "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1,
    "num_hidden_layers": 1, "vocab_size": VOCABULARY, "rms_norm_eps": 1e-5,
}  # fmt: skip


def head(
    folder: Path,
    *,
    tensors: Mapping[str, Any] | None = None,
    tokens: Mapping[str, int] | None = None,
    replaced: Mapping[str, Any] | None = None,
    **config: Any,
) -> Path:
    """An EAGLE-3 head that fits `target`; `tensors` replaces some (None removes one), `config` likewise.

    `replaced`: a config to write instead of all that.
    """
    arrays = {
        "fc.weight": np.zeros((HIDDEN, 3 * HIDDEN), np.float32),
        **layer("midlayer.", 2 * HIDDEN, ("input_layernorm", "hidden_norm", "post_attention_layernorm")),
        "norm.weight": np.zeros(HIDDEN, np.float32),
        "lm_head.weight": np.zeros((10, HIDDEN), np.float32),
        "d2t": np.arange(10),
    } | dict(tensors or {})
    settings = LAYER_CONFIG | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 10} | config
    settings = {key: value for key, value in settings.items() if value is not None}
    kept = {n: a for n, a in arrays.items() if a is not None}
    return write(folder, settings if replaced is None else replaced, kept, tokens)


def eagle_head(
    folder: Path, *, tensors: Mapping[str, Any] | None = None, tokens: Mapping[str, int] | None = None, **config: Any
) -> Path:
    """An EAGLE-1 head that fits `target`, changed likewise."""
    arrays = {
        "fc.weight": np.zeros((HIDDEN, 2 * HIDDEN), np.float32),
        **layer("layers.0.", HIDDEN, ("post_attention_layernorm",)),
    } | dict(tensors or {})
    settings = LAYER_CONFIG | {"architectures": ["LlamaForCausalLM"]} | config
    return write(folder, settings, {n: a for n, a in arrays.items() if a is not None}, tokens)


def whole_model(folder: Path, tokens: Mapping[str, int] | None = None, **config: Any) -> Path:
    """A small causal model of the same vocabulary."""
    arrays = {
        "model.embed_tokens.weight": np.zeros((VOCABULARY, 8), np.float32),
        "model.layers.0.self_attn.q_proj.weight": np.zeros((8, 8), np.float32),
    }
    return write(folder, {"vocab_size": VOCABULARY, "architectures": ["LlamaForCausalLM"]} | config, arrays, tokens)
