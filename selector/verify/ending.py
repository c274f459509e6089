"""Whether an output ends where it should, and holds as many tokens as its steps account for."""

from __future__ import annotations

from collections.abc import Collection

from selector.engines.base import Generation
from selector.verify.report import EvidenceKind


def ending_faults(g: Generation, stop_ids: Collection[int], max_tokens: int) -> list[tuple[EvidenceKind, int]]:
    """What is wrong with the end, and at which output token: it is the first stop token, or number `max_tokens`."""
    found: list[tuple[EvidenceKind, int]] = []
    stop = next((i for i, token in enumerate(g.output_ids) if token in stop_ids), None)
    length = len(g.output_ids)
    if stop is not None and stop < length - 1:
        found.append(("stop token overrun", stop))
    if length > max_tokens:
        found.append(("past max_tokens", max_tokens))
    if stop is None and length < max_tokens:
        found.append(("ended early", length))
    return found


def bonus_fault(g: Generation) -> tuple[EvidenceKind, str] | None:
    """A step emits what was accepted and one token more; only the last may end before its own token."""
    emitted, owed = len(g.output_ids) - 1, g.accepted + g.decode_steps
    if emitted <= owed <= emitted + 1:
        return None
    kind: EvidenceKind = "missing bonus token" if emitted < owed else "more tokens than the steps account for"
    return kind, f"{emitted} tokens after the first, where {g.decode_steps} steps and {g.accepted} drafts make {owed}"
