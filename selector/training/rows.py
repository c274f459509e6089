"""Training conversations as token ids, and which of them are never trained on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from selector.errors import WorkloadError

MIN_ANSWER_TOKENS = 9
HELD_OUT_SHARE = 0.05


@dataclass(frozen=True)
class Row:
    """One conversation: the rendered prompt and the target's answer."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]

    @property
    def held_out(self) -> bool:
        """True for about one conversation in twenty. The prompt's hash decides, so none ever moves."""
        digest = hashlib.sha256(json.dumps(self.prompt).encode()).digest()
        return int.from_bytes(digest[:4], "big") < HELD_OUT_SHARE * 2**32


def read_rows(file: Path, vocabulary: int) -> list[Row]:
    """Conversations of a JSONL file with `{"p": [ids], "r": [ids]}` lines; very short answers left out.

    Raises `WorkloadError` naming file and line, also for ids that a target of this vocabulary does not have.
    """
    rows: list[Row] = []
    for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
        try:
            data = json.loads(line)
            row = Row(tuple(map(int, data["p"])), tuple(map(int, data["r"])))
        except (ValueError, KeyError, TypeError) as error:
            raise WorkloadError(f'{file}:{number}: not {{"p": [ids], "r": [ids]}} ({error!r})') from error
        if alien := [i for i in row.prompt + row.answer if not 0 <= i < vocabulary]:
            raise WorkloadError(
                f"{file}:{number}: token id {alien[0]}, the target has 0 to {vocabulary - 1}: "
                "made with another tokenizer?"
            )
        if row.prompt and len(row.answer) >= MIN_ANSWER_TOKENS:
            rows.append(row)
    if not any(row.held_out for row in rows) or all(row.held_out for row in rows):
        raise WorkloadError(f"{file}: {len(rows)} usable rows are too few to train on some and hold out others")
    return rows


def grouped(rows: Iterable[Row], size: int) -> list[list[Row]]:
    """Batches of rows of similar length, so that little is padding."""
    ordered = sorted(rows, key=lambda row: len(row.prompt) + len(row.answer))
    return [ordered[i : i + size] for i in range(0, len(ordered), size)]


def prompt_fingerprint(text: str) -> str:
    """16 hex digits that stay equal when only case or white space of a prompt changes."""
    return hashlib.sha256(" ".join(text.casefold().split()).encode()).hexdigest()[:16]
