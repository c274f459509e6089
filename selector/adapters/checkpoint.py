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

from selector.adapters.speculators import is_speculators, plain_config
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
    def source(self) -> dict[str, Any]:
        """The parsed `config.json` as it stands."""
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
        return data

    @cached_property
    def config(self) -> dict[str, Any]:
        """The model's own settings: the text part of a multimodal config, the plain form of a speculators one."""
        if is_speculators(self.source):
            return plain_config(self.source, self.path / "config.json")
        text = self.source.get("text_config")
        return dict(text if isinstance(text, dict) else self.source)

    def whole(self, key: str, default: int | None = None) -> int:
        """A setting that counts something; raises `DrafterMismatch` when it is missing or no whole number above 0."""
        value = self.config.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            said = f"{key} is {value!r}, a whole number above 0 is needed" if value is not None else f"no {key} in it"
            raise DrafterMismatch(f"{self.path / 'config.json'}: {said}")
        return value

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
    try:
        found = {name: _entry(file, 8 + size, t) for name, t in header.items() if name != "__metadata__"}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DrafterMismatch(f"{file}: the safetensors header is broken ({error!r})") from error
    end = max((t.start + t.nbytes for t in found.values()), default=0)
    if end > file.stat().st_size:
        raise DrafterMismatch(f"{file}: cut off: {file.stat().st_size:,} bytes of {end:,}; copy it again")
    return found


def _entry(file: Path, base: int, told: dict[str, Any]) -> TensorEntry:
    start, end = told["data_offsets"]
    return TensorEntry(file, told["dtype"], tuple(told["shape"]), base + start, end - start)
