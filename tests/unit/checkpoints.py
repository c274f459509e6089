"""Writes tiny checkpoint folders without torch: config, safetensors, tokenizer."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_NAMES = {"float32": "F32", "int64": "I64", "float16": "F16"}
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


def target(folder: Path, tokens: Mapping[str, int] | None = None) -> Path:
    """A target of 8 layers."""
    config = {"hidden_size": HIDDEN, "vocab_size": VOCABULARY, "num_hidden_layers": LAYERS}
    return write(folder, config, {"w": np.zeros((64, 64), np.float32)}, tokens)


def head(folder: Path, *, tensors: Mapping[str, Any] | None = None, **config: Any) -> Path:
    """An EAGLE-3 head that fits `target`; `tensors` replaces some (None removes one), `config` likewise."""
    arrays: dict[str, Any] = {
        "fc.weight": np.zeros((HIDDEN, 3 * HIDDEN), np.float32),
        "midlayer.self_attn.q_proj.weight": np.zeros((HIDDEN, 2 * HIDDEN), np.float32),
        "d2t": np.arange(10),
    }
    arrays |= tensors or {}
    settings = {
        "hidden_size": HIDDEN, "vocab_size": VOCABULARY, "draft_vocab_size": 10, "num_hidden_layers": 1
    } | config  # fmt: skip
    return write(folder, settings, {n: a for n, a in arrays.items() if a is not None})
