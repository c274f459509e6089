"""Reads a safetensors file that may be damaged, or may be something else."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from selector.errors import SelectorError


def read_tensors(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors by name and the file's notes; raises `SelectorError` naming the file."""
    try:
        with safe_open(file, framework="pt") as stored:
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118  # not a dict
            return tensors, dict(stored.metadata() or {})
    except (OSError, SafetensorError) as error:
        raise SelectorError(f"{file}: cannot be read as safetensors ({error})") from error
