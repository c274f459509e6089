"""What a closed load brought."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from selector.engines.served.answer import Answer
from selector.engines.served.failures import RequestFailed
from selector.engines.served.job import Job


@dataclass(frozen=True)
class Finished:
    """One request of a load; exactly one of `answer` and `failure` is there. Times: monotonic seconds.

    index: place in the jobs given. full: the load was full from its start to its end. warm_up: it counts for nothing.
    """

    index: int
    job: Job
    sent: float
    done: float
    answer: Answer | None
    failure: RequestFailed | None
    full: bool
    warm_up: bool


@dataclass(frozen=True)
class LoadResult:
    """All requests in the order they finished, and the window that rates are taken over (monotonic seconds).

    The window begins with the end of the warm-up (or the first request) and ends when the load first drops below what
    was asked for; `held` is False where it never stood at that (no more jobs than concurrency, or warm-up to the end),
    and the window then runs to the last request. max_running, max_waiting: None if gauges were not polled.
    """

    finished: tuple[Finished, ...]
    start: float
    end: float
    held: bool
    max_running: float | None = None
    max_waiting: float | None = None

    @property
    def answers(self) -> tuple[Answer, ...]:
        """Answers after the warm-up, in the order they finished."""
        return tuple(f.answer for f in self.finished if f.answer is not None and not f.warm_up)

    @property
    def full_answers(self) -> tuple[Answer, ...]:
        """Those that ran entirely under the full load; long requests are somewhat rarer among them."""
        return tuple(f.answer for f in self.finished if f.answer is not None and not f.warm_up and f.full)

    @property
    def failures(self) -> tuple[RequestFailed, ...]:
        """What went wrong, warm-up included."""
        return tuple(f.failure for f in self.finished if f.failure is not None)

    @property
    def seconds(self) -> float:
        """Length of the window."""
        return self.end - self.start

    @property
    def output_tokens(self) -> float:
        """Tokens that arrived in the window, by the server's count, of whichever request (failed ones included)."""
        parts = (f.answer or (f.failure.partial if f.failure else None) for f in self.finished)
        return sum(part.tokens_between(self.start, self.end) for part in parts if part is not None)

    @property
    def tokens_per_second(self) -> float:
        """Output tokens per second of the window."""
        return self.output_tokens / self.seconds

    @property
    def requests_per_second(self) -> float:
        """Requests answered per second of the window."""
        return sum(f.answer is not None and self.start < f.done <= self.end for f in self.finished) / self.seconds

    @property
    def ttft(self) -> NDArray[np.float64]:
        """Seconds to the first token of the measured requests; nan: not available."""
        return _array([a.ttft for a in self.full_answers or self.answers])

    @property
    def tpot(self) -> NDArray[np.float64]:
        """Seconds per output token of the measured requests; nan: not available."""
        return _array([a.tpot for a in self.full_answers or self.answers])


def _array(values: Sequence[float | None]) -> NDArray[np.float64]:
    return np.array([np.nan if v is None else v for v in values], np.float64)
