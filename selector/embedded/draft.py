"""Completes a pruned draft model: its own layers, the target's embedding, output head and tokenizer."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from selector.adapters.recognise import LAYERS_FILE
from selector.errors import DrafterMismatch, MissingExtra

if TYPE_CHECKING:
    from torch import Tensor

SHARED_TENSORS = ("model.embed_tokens.weight", "lm_head.weight")
TARGET_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def assemble_draft(layers: Path, target: Path, folder: Path) -> None:
    """Write a complete checkpoint into the existing `folder`: the draft's `layers` and what the target lends.

    Raises `DrafterMismatch` when the two do not belong together.
    """
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("safetensors") is None:
        raise MissingExtra("safetensors with torch", "reference")
    from safetensors.torch import load_file, save_file

    config, target_config = (json.loads((d / "config.json").read_bytes()) for d in (layers, target))
    for key in ("vocab_size", "hidden_size", "tie_word_embeddings"):
        if config[key] != target_config[key]:
            raise DrafterMismatch(
                f"{layers}: {key} is {config[key]}, the target's is {target_config[key]}; "
                "it was pruned from another target"
            )
    tensors = load_file(layers / LAYERS_FILE) | _shared(target)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    shutil.copyfile(layers / "config.json", folder / "config.json")
    for name in TARGET_FILES:
        if (target / name).is_file():
            shutil.copyfile(target / name, folder / name)


def _shared(target: Path) -> dict[str, Tensor]:
    from safetensors import safe_open

    found: dict[str, Tensor] = {}
    for file in sorted(target.glob("*.safetensors")):  # a sharded target has several
        with safe_open(file, framework="pt") as tensors:
            here = set(tensors.keys())
            found |= {name: tensors.get_tensor(name) for name in SHARED_TENSORS if name in here}
    if SHARED_TENSORS[0] not in found:
        raise DrafterMismatch(f"{target}: no {SHARED_TENSORS[0]} in its safetensors files")
    return found
