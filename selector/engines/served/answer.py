"""One streamed answer of a served engine, with the times at which its parts arrived."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

#: A stream with fewer chunks than a quarter of the steps behind it was held back by the server (tool-call parsing).
_FEW = 4


@dataclass(frozen=True)
class Answer:
    """What came back for one request; all times are seconds of the client's monotonic clock.

    request_id is the server's, digest the caller's (`Job.digest`). output_ids ends with the stop token; both id lists
    are empty where the server returns none. output_tokens is always the server's own count. chunks holds (arrival,
    tokens in it or None) of every chunk that brought tokens. finish is None in what had arrived of a failed request.

    accepted_per_step and drafted_per_step: one number per *speculated* step (an engine may also do steps without a
    draft); None where the server does not say. Drafts accepted past the output's end are left out, which is exact where
    every step was speculated.
    """

    request_id: str
    digest: str
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    text: str
    finish: str | None
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None
    sent: float
    done: float
    chunks: tuple[tuple[float, int | None], ...]
    accepted_per_step: tuple[int, ...] | None = None
    drafted_per_step: tuple[int, ...] | None = None

    @property
    def request_seconds(self) -> float:
        """From sending to the end of the stream."""
        return self.done - self.sent

    @property
    def decode_steps(self) -> int | None:
        """Engine steps after the prefill, drafted or not: every step yields one token and what it accepted."""
        if self.accepted_per_step is None:
            return None
        return max(self.output_tokens - 1, 0) - sum(self.accepted_per_step)

    @cached_property
    def buffered(self) -> bool:
        """The server held tokens back, so that arrival times say nothing about single steps.

        Where it does not count steps, up to 16 tokens a chunk could still be speculation and are believed.
        """
        steps = self.decode_steps
        expected = self.output_tokens / _FEW if steps is None else float(steps + 1)
        return _FEW * len(self.chunks) < expected

    @property
    def ttft(self) -> float | None:
        """Seconds to the first token; None: not available (buffered, or no token)."""
        return None if self.buffered or not self.chunks else self.chunks[0][0] - self.sent

    @property
    def decode_seconds(self) -> float | None:
        """Seconds from the first chunk to the last; None: not available (buffered, or fewer than two chunks)."""
        return None if self.buffered or len(self.chunks) < 2 else self.chunks[-1][0] - self.chunks[0][0]

    @property
    def tpot(self) -> float | None:
        """Seconds per output token after the first; of the whole request if it was buffered; None: one token only."""
        if self.output_tokens < 2:
            return None
        if self.buffered:
            return self.request_seconds / self.output_tokens
        return None if self.decode_seconds is None else self.decode_seconds / (self.output_tokens - 1)

    @property
    def chunk_gaps(self) -> tuple[float, ...] | None:
        """Seconds between chunks (not between tokens: a step may bring several); None if buffered."""
        if self.buffered:
            return None
        times = [at for at, _ in self.chunks]
        return tuple(b - a for a, b in pairwise(times))

    def tokens_between(self, start: float, end: float) -> float:
        """Output tokens that arrived in (start, end]; spread evenly over its chunks where single counts are unknown."""
        share = self.output_tokens / len(self.chunks) if self.chunks else 0.0
        return sum(share if tokens is None else tokens for at, tokens in self.chunks if start < at <= end)


def within_output(accepted: tuple[int, ...], output_tokens: int) -> tuple[int, ...]:
    """Accepted drafts per step without those past the output's end, which vLLM counts in its last step."""
    excess = 1 + sum(accepted) + len(accepted) - output_tokens
    if excess <= 0 or not accepted:
        return accepted
    return (*accepted[:-1], max(accepted[-1] - excess, 0))
