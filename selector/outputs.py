"""What an arm wrote, and whether it got stuck in a loop."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from selector.walks import looping

#: A block this short (tokens or words) is a loop even where the model found its way out and stopped by itself;
#: a longer one may be a refrain that was meant.
SHORT_BLOCK = 16
MAX_BLOCK = 64

#: Words; scripts without spaces, and punctuation, one character each ("!!!!" is a loop as well).
_WORD = re.compile(r"[^\W\u3040-\u30ff\u3400-\u9fff]+|[\u3040-\u30ff\u3400-\u9fff]|[^\w\s]")


@dataclass(frozen=True)
class Output:
    """One response. Token ids decide if they are there, else the text's words; `finish` as in the OpenAI API."""

    tokens: int
    finish: Literal["stop", "length"]
    text: str = ""
    token_ids: tuple[int, ...] = ()

    @property
    def stuck(self) -> bool:
        """Whether at least half of it is one block repeated up to its end, in a way that nobody meant.

        A long block counts only if the token limit ended the output: a text that stopped by itself was not stuck.
        """
        parts = self.token_ids or self._words
        block = MAX_BLOCK if self.finish == "length" else SHORT_BLOCK
        return looping(parts, max_period=block) and 2 * _repeated(parts, block) >= len(parts)

    @property
    def _words(self) -> tuple[int, ...]:
        words = _WORD.findall(self.text)
        if self.finish == "length":
            words = words[:-1]  # the limit may have cut it in two
        numbers: dict[str, int] = {}
        return tuple(numbers.setdefault(word, len(numbers)) for word in words)


def _repeated(parts: Sequence[int], max_period: int) -> int:
    """Length of the longest end of `parts` that is one block of at most `max_period` over and over."""
    n, longest = len(parts), 0
    for period in range(1, min(max_period, n // 2) + 1):
        start = n - period
        while start > 0 and parts[start - 1] == parts[start - 1 + period]:
            start -= 1
        if n - start >= 2 * period:
            longest = max(longest, n - start)
    return longest


def stuck_share(outputs: Sequence[Output]) -> float:
    """Share of the tokens that stand in stuck outputs, 0 without tokens: long loops weigh as they do in the timing."""
    total = sum(o.tokens for o in outputs)
    return sum(o.tokens for o in outputs if o.stuck) / total if total else 0.0
