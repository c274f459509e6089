"""The reference engine: our own decoding loop in process, on torch and transformers."""

from __future__ import annotations

from selector.errors import MissingExtra

try:
    import torch  # noqa: F401
    import transformers  # noqa: F401
except ModuleNotFoundError as error:  # pragma: no cover - exercised in a fresh environment by CI
    raise MissingExtra(error.name or "torch", "reference") from error

from selector.engines.reference.engine import ReferenceEngine

__all__ = ["ReferenceEngine"]
