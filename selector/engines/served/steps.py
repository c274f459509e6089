"""Seconds per engine step, from the arrival times of requests decoded side by side.

vLLM sends every running request one chunk per engine step (seen with 0.32: 84 chunks for 83 counted steps and the
prefill, for a single stream and for each of four at once), so the gaps between chunks are the steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from selector.engines.served.answer import Answer

#: Chunks and counted steps may differ by this share before chunks are no longer taken for steps.
_TOLERANCE = 0.02


@dataclass(frozen=True)
class StepTiming:
    """Seconds per step while all requests were decoding.

    coalesced: chunks and counted steps disagree, so `steps` are the counted ones, and the median is the mean.
    """

    median_seconds: float
    mean_seconds: float
    steps: int
    coalesced: bool


@dataclass(frozen=True)
class _Part:
    """What one stream shows of the window."""

    gaps: list[float]
    steps: float
    seconds: float
    coalesced: bool


def lockstep_seconds(
    answers: Sequence[Answer], *, plain: bool = False, engine_steps: float | None = None
) -> StepTiming | None:
    """Time the steps between the latest first chunk and the earliest last chunk of equal requests started together.

    plain: nothing was speculated, so each output token is a step. engine_steps: the engine's own count over the whole
    run (`Counters.minus`), prefills included; it decides only where the answers do not tell their steps.
    None: nothing to be seen (buffered streams, or fewer than two chunks in common). Raises ValueError for prompts of
    different lengths.
    """
    if len({a.prompt_tokens for a in answers}) > 1:
        raise ValueError("lockstep_seconds needs requests of one prompt length")
    if not answers or any(a.decode_seconds is None for a in answers):
        return None
    start = max(a.chunks[0][0] for a in answers)
    end = min(a.chunks[-1][0] for a in answers)
    extra = len(answers)  # a request that arrives late adds a step of its own to the engine's count
    parts = [p for a in answers if (p := _part(a, start, end, _counted(a, plain, engine_steps, extra))) is not None]
    if not parts:
        return None
    mean = sum(p.seconds for p in parts) / sum(p.steps for p in parts)
    coalesced = any(p.coalesced for p in parts)
    median = mean if coalesced else float(np.median([gap for p in parts for gap in p.gaps]))
    return StepTiming(median, mean, round(max(p.steps for p in parts)), coalesced)


def _part(answer: Answer, start: float, end: float, counted: float | None) -> _Part | None:
    inside = [(at, tokens) for at, tokens in answer.chunks if start <= at <= end]
    if len(inside) < 2:
        return None
    times = [at for at, _ in inside]
    gaps = [b - a for a, b in pairwise(times)]
    seconds = times[-1] - times[0]
    seen = len(answer.chunks) - 1
    if counted is None or abs(seen - counted) <= max(_TOLERANCE * counted, 1):
        return _Part(gaps, len(gaps), seconds, coalesced=False)
    return _Part(gaps, counted * _share(answer, inside[1:], seconds), seconds, coalesced=True)


def _counted(answer: Answer, plain: bool, engine_steps: float | None, extra: int) -> float | None:
    """Decode steps of the whole answer, if anything says so; the engine's own count may hold `extra` prefills."""
    if plain:
        return answer.output_tokens - 1
    if answer.decode_steps is not None or engine_steps is None:
        return answer.decode_steps
    seen = len(answer.chunks) - 1
    return seen if 0 <= engine_steps - 1 - seen <= extra else engine_steps - 1


def _share(answer: Answer, chunks: list[tuple[float, int | None]], seconds: float) -> float:
    """How much of an answer's decoding lies in the window: by tokens where chunks tell them, else by time."""
    first = answer.chunks[0][1]
    tokens = [t for _, t in chunks if t is not None]
    if first is not None and len(tokens) == len(chunks) and answer.output_tokens > first:
        return sum(tokens) / (answer.output_tokens - first)
    return seconds / (answer.chunks[-1][0] - answer.chunks[0][0])
