"""The times of streamed responses: TPOT by tokens, and the gaps between chunks under their own name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from selector.errors import NotMeasured
from selector.walks import MAX_RECORDED_K

#: No decode step emits more: chunks that hold more on average are not steps, something gathered them.
MOST_TOKENS_PER_STEP = MAX_RECORDED_K + 1


@dataclass(frozen=True)
class Stream:
    """One streamed response; times in seconds on one clock.

    output_tokens: the server's own count (`usage.completion_tokens`); chunks are not tokens, and text tokenized again
    need not give the same number. chunks: those with content. first_token: the server's report; None: the first chunk.
    done: None: the last chunk. Raises `NotMeasured` when chunk times run backwards.
    """

    sent: float
    chunks: tuple[float, ...]
    output_tokens: int | None
    first_token: float | None = None
    done: float | None = None

    def __post_init__(self) -> None:
        if any(b < a for a, b in pairwise((self.sent, *self.chunks))):
            raise NotMeasured("chunk times run backwards: they are of different clocks or requests; record them again")

    @property
    def buffered(self) -> bool:
        """Whether the chunks are not steps: a tool-call parser or a proxy held the text back."""
        return (self.output_tokens or 0) > MOST_TOKENS_PER_STEP * len(self.chunks)

    @property
    def ttft_ms(self) -> float | None:
        """Time to first token; None for a buffered stream whose server did not report it."""
        start = self._start
        return None if start is None else (start - self.sent) * 1e3

    @property
    def tpot_ms(self) -> float | None:
        """(end - first token) / (output tokens - 1), as vLLM's benchmarks define TPOT; None for a single token."""
        if (seconds := self._decode_seconds) is None:
            return None
        return seconds / (self._tokens - 1) * 1e3

    @property
    def decode_tokens_per_second(self) -> float | None:
        """(output tokens - 1) / (end - first token): 1000 / TPOT."""
        return 1e3 / tpot if (tpot := self.tpot_ms) else None

    @property
    def chunk_gap_ms(self) -> float | None:
        """Mean time between chunks: a chunk holds all tokens of a step, so this is no time per token."""
        if self.buffered or len(self.chunks) < 2:
            return None
        return (self.chunks[-1] - self.chunks[0]) / (len(self.chunks) - 1) * 1e3

    @property
    def _tokens(self) -> int:
        if self.output_tokens is None:
            raise NotMeasured(
                "no token count in the stream, and chunks are not tokens: ask for it (stream_options.include_usage)"
            )
        return self.output_tokens

    @property
    def _start(self) -> float | None:
        if self.first_token is not None:
            return self.first_token
        return self.chunks[0] if self.chunks and not self.buffered else None

    @property
    def _decode_seconds(self) -> float | None:
        end = self.done if self.done is not None else (self.chunks[-1] if self.chunks else None)
        if self._start is None or end is None or self._tokens < 2:
            return None
        return end - self._start


@dataclass(frozen=True)
class StreamTimes:
    """Several responses: total tokens, and means over the requests (None: no request has the figure)."""

    requests: int
    output_tokens: int
    tpot_ms: float | None
    decode_tokens_per_second: float | None
    chunk_gap_ms: float | None
    buffered: int

    def __str__(self) -> str:
        shown = {"TPOT": self.tpot_ms, "chunk gap": self.chunk_gap_ms}
        parts = [f"{name} {'not available' if ms is None else f'{ms:.2f} ms'}" for name, ms in shown.items()]
        flag = f"; buffered in {self.buffered} of {self.requests} responses: TPOT is from end to end"
        return f"{self.output_tokens} tokens, {', '.join(parts)}" + (flag if self.buffered else "")


def stream_times(streams: Sequence[Stream]) -> StreamTimes:
    """Pool streams as vLLM's benchmarks do: TPOT is the mean over requests.

    The chunk gap is given only if no stream was buffered: the rest would be another mix of requests.
    Raises `NotMeasured` where a stream has no token count.
    """
    buffered = sum(s.buffered for s in streams)
    tokens = sum(s._tokens for s in streams)
    tpots = [t for s in streams if (t := s.tpot_ms) is not None]
    seconds = [t for s in streams if (t := s._decode_seconds) is not None]
    after_first = sum(s._tokens - 1 for s in streams if s._decode_seconds is not None)
    gaps = [g for s in streams if (g := s.chunk_gap_ms) is not None]
    return StreamTimes(
        len(streams),
        tokens,
        sum(tpots) / len(tpots) if tpots else None,
        after_first / sum(seconds) if sum(seconds) > 0 else None,
        sum(gaps) / len(gaps) if gaps and not buffered else None,
        buffered,
    )
