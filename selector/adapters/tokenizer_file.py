"""What a `tokenizer.json` says its ids mean."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from selector.adapters.tensor_file import AGAIN
from selector.errors import DrafterMismatch


def vocabulary_digest(file: Path) -> str:
    """SHA-256 of the vocabulary's (token, id) pairs; raises `DrafterMismatch` when there are none to be read."""
    try:
        data = json.loads(file.read_text("utf-8"))
        vocab = data.get("model", {}).get("vocab", {})
        pairs = sorted(vocab.items() if isinstance(vocab, dict) else ((t[0], i) for i, t in enumerate(vocab)))
        added = sorted((t["content"], t["id"]) for t in data.get("added_tokens", []))
        text = json.dumps([pairs, added], ensure_ascii=False).encode()
    except (OSError, ValueError, RecursionError, AttributeError, TypeError, LookupError) as error:
        raise DrafterMismatch(f"{file}: not a tokenizer ({type(error).__name__}: {error}); {AGAIN}") from error
    return hashlib.sha256(text).hexdigest()
