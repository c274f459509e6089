"""What a checkpoint folder says about itself, read without torch: config, tensor shapes, tokenizer."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from selector.errors import DrafterMismatch

_MAX_HEADER_BYTES = 100 * 2**20


@dataclass(frozen=True)
class TensorEntry:
    """Where one tensor lies: file, type name, shape, first byte and size."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


@dataclass(frozen=True)
class Checkpoint:
    """A local model folder: `config.json` beside safetensors files."""

    path: Path

    @cached_property
    def config(self) -> dict[str, Any]:
        """The parsed `config.json`; the text part of a multimodal one."""
        file = self.path / "config.json"
        try:
            data = json.loads(file.read_text("utf-8"))
        except OSError as error:
            raise DrafterMismatch(
                f"{file}: cannot be read ({error.strerror}); give a local checkpoint folder"
            ) from error
        except (ValueError, RecursionError) as error:
            raise DrafterMismatch(f"{file}: not JSON ({error})") from error
        if not isinstance(data, dict):
            raise DrafterMismatch(f"{file}: not a JSON object")
        if "speculators_config" in data:
            raise DrafterMismatch(
                f"{file}: in the speculators format (speculators_config), not supported yet; "
                "give the head in the plain layout (config.json of the head beside its weights)"
            )
        return dict(data.get("text_config", data))

    @cached_property
    def tensors(self) -> dict[str, TensorEntry]:
        """Every tensor by name, from the files' headers; no weight is read."""
        found: dict[str, TensorEntry] = {}
        for file in sorted(self.path.glob("*.safetensors")):
            found |= _read_header(file)
        if not found and any(self.path.glob("*.bin")):
            raise DrafterMismatch(f"{self.path}: weights are .bin; convert to safetensors")
        return found

    def integers(self, name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
        """An int64 or int32 tensor's values, flattened."""
        entry = self.tensors[name]
        kind = {"I64": np.int64, "I32": np.int32}.get(entry.dtype)
        if kind is None:
            raise DrafterMismatch(f"{entry.file}: tensor {name} is {entry.dtype}, integers expected")
        with entry.file.open("rb") as f:
            f.seek(entry.start)
            return np.frombuffer(f.read(entry.nbytes), kind).astype(np.int64)

    @cached_property
    def tokenizer_digest(self) -> str | None:
        """SHA-256 of the vocabulary's (token, id) pairs; None when the folder carries no `tokenizer.json`."""
        file = self.path / "tokenizer.json"
        if not file.is_file():
            return None
        data = json.loads(file.read_text("utf-8"))
        vocab = data.get("model", {}).get("vocab", {})
        pairs = sorted(vocab.items() if isinstance(vocab, dict) else ((t[0], i) for i, t in enumerate(vocab)))
        added = sorted((t["content"], t["id"]) for t in data.get("added_tokens", []))
        return hashlib.sha256(json.dumps([pairs, added], ensure_ascii=False).encode()).hexdigest()


def _read_header(file: Path) -> dict[str, TensorEntry]:
    """The JSON header of a safetensors file: eight bytes of length, then names, types, shapes and offsets."""
    with file.open("rb") as f:
        prefix = f.read(8)
        size = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= size <= _MAX_HEADER_BYTES:
            raise DrafterMismatch(f"{file}: not a safetensors file (a git-lfs pointer, or cut off?)")
        try:
            header = json.loads(f.read(size))
        except ValueError as error:
            raise DrafterMismatch(f"{file}: the safetensors header is broken ({error})") from error
    header.pop("__metadata__", None)
    base = 8 + size
    return {
        name: TensorEntry(
            file,
            t["dtype"],
            tuple(t["shape"]),
            base + t["data_offsets"][0],
            t["data_offsets"][1] - t["data_offsets"][0],
        )
        for name, t in header.items()
    }
