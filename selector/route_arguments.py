"""What a caller may pass to `Router.route`, checked; chat messages may be as odd as they like."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from selector.workload import user_text

#: No engine samples above this; it also stops numbers too large for a float.
HOTTEST = 1000.0


def request_text(prompt: str | None, messages: Iterable[Any] | None) -> str:
    """What the classifier may read: the prompt, else the user turns of the messages."""
    if prompt is not None:
        if not isinstance(prompt, str):
            raise ValueError(f"prompt must be a string, not {type(prompt).__name__}")
        return prompt
    if messages is None:
        raise ValueError("nothing to route by: give prompt, messages or request_class")
    if not isinstance(messages, (list, tuple)):
        raise ValueError(f"messages must be a list of chat messages, not {type(messages).__name__}")
    return user_text(messages)


def check_settings(temperature: Any, top_p: Any, max_tokens: Any, metadata: Any) -> None:
    """Refuse sampling settings of the wrong type or range; None is always fine."""
    for name, value, highest in (("temperature", temperature, HOTTEST), ("top_p", top_p, 1.0)):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float, np.floating, np.integer)):
            raise ValueError(f"{name} must be a number, not {type(value).__name__}")
        if not 0 <= value <= highest:  # nan fails too
            raise ValueError(f"{name} {value!r} is out of range")
    if max_tokens is not None and (isinstance(max_tokens, bool) or not isinstance(max_tokens, int)):
        raise ValueError(f"max_tokens must be an integer, not {type(max_tokens).__name__}")
    if metadata is not None and not isinstance(metadata, Mapping):
        raise ValueError(f"metadata must be a mapping, not {type(metadata).__name__}")
