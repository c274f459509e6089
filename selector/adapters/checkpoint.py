"""What a checkpoint folder says about itself, read without torch: config, tensor shapes, tokenizer."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from selector.adapters.speculators import is_speculators, plain_config
from selector.adapters.tensor_file import AGAIN, TensorEntry, read_header
from selector.adapters.tokenizer_file import vocabulary_digest
from selector.errors import DrafterMismatch


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
            raise DrafterMismatch(f"{file}: not JSON ({error}); {AGAIN}") from error
        if not isinstance(data, dict):
            raise DrafterMismatch(f"{file}: not a JSON object; {AGAIN}")
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
            raise DrafterMismatch(f"{self.path / 'config.json'}: {said}; {AGAIN}")
        return value

    def number(self, key: str, value: Any, *, above: float = 0, least: float | None = None) -> float:
        """A setting as a finite number above `above`, or of at least `least`; raises `DrafterMismatch`."""
        try:
            number = math.nan if isinstance(value, bool) or not isinstance(value, (int, float)) else float(value)
        except OverflowError:  # JSON's whole numbers have no largest one
            number = math.inf
        if not math.isfinite(number) or (number <= above if least is None else number < least):
            bound = f"above {above:g}" if least is None else f"of at least {least:g}"
            raise DrafterMismatch(
                f"{self.path / 'config.json'}: {key} is {value!r}, a finite number {bound} is needed; {AGAIN}"
            )
        return number

    @property
    def architectures(self) -> list[str]:
        """The model's class names, none when the config gives none; raises `DrafterMismatch` for anything else."""
        names = self.config.get("architectures") or []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise DrafterMismatch(
                f"{self.path / 'config.json'}: architectures is {names!r}, a list of names is needed, "
                'such as ["LlamaForCausalLM"]'
            )
        return names

    @cached_property
    def tensors(self) -> dict[str, TensorEntry]:
        """Every tensor by name, from the files' headers; no weight is read."""
        found: dict[str, TensorEntry] = {}
        for file in sorted(self.path.glob("*.safetensors")):
            found |= read_header(file)
        if not found and any(self.path.glob("*.bin")):
            raise DrafterMismatch(f"{self.path}: weights are .bin; convert to safetensors")
        return found

    def integers(self, name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
        """An int64 or int32 tensor's values, flattened."""
        entry = self.tensors[name]
        kind = {"I64": np.int64, "I32": np.int32}.get(entry.dtype)
        if kind is None:
            raise DrafterMismatch(f"{entry.file}: tensor {name} is {entry.dtype}, integers expected; export it again")
        with entry.file.open("rb") as f:
            f.seek(entry.start)
            return np.frombuffer(f.read(entry.nbytes), kind).astype(np.int64)

    @cached_property
    def tokenizer_digest(self) -> str | None:
        """SHA-256 of the vocabulary's (token, id) pairs; None when the folder carries no `tokenizer.json`."""
        file = self.path / "tokenizer.json"
        return vocabulary_digest(file) if file.is_file() else None

    def refuse_nan_and_inf(self, names: Iterable[str]) -> None:
        """Reads the weights of these tensors: with one such number every draft is noise, and drafting only costs."""
        for name in names:
            if self.tensors[name].holds_nan_or_inf():
                raise DrafterMismatch(
                    f"{self.tensors[name].file}: tensor {name} holds NaN or Inf, so every draft would be noise; "
                    "export it again from a checkpoint whose training did not diverge"
                )
