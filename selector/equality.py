"""Whether a strategy's greedy output is plain decoding's, token for token, with near-ties told apart.

Passes of different width round differently, so where the best tokens score almost the same, either may win without
anything being wrong. Such a difference is counted as a near-tie, never as equality. An output that only goes on, or
only ends, where the other does not is never a near-tie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from selector.engines.base import Engine, Generation
from selector.strategy import PLAIN, Strategy
from selector.workload import Request

#: Largest gap of two logits that fp32 rounding is allowed to flip. Measured differences between passes of different
#: width are of the order of 1e-4 on the embedded model.
NEAR_TIE_GAP = 1e-3
#: The same in bfloat16, whose numbers between 16 and 32 (the best logits) are 0.125 apart: four of those steps.
BFLOAT16_GAP = 0.5


class GapEngine(Engine, Protocol):
    """An engine that can say how close a choice was."""

    def behind_best(self, tokens: Sequence[int], token: int) -> float:
        """How far the logit of `token` lies below the highest after `tokens`."""


@dataclass(frozen=True)
class Comparison:
    """One prompt under one strategy. `position`: first differing output token.

    `gap`: how far its logit lies below plain decoding's best there; None too where one output merely ends.
    """

    request_class: str
    prompt: str
    strategy: Strategy
    verdict: Literal["equal", "near-tie", "different"]
    output_tokens: int
    position: int | None = None
    gap: float | None = None


def compare(
    engine: GapEngine, request: Request, plain: Generation, strategy: Strategy, *, seed: int = 0
) -> tuple[Comparison, Generation]:
    """Decode with the strategy and compare; `plain` is the same request decoded with `PLAIN`."""
    other = engine.generate(request, strategy, seed=seed)
    where = first_difference(plain.output_ids, other.output_ids)
    common = (request.request_class, request.digest, strategy)
    if where is None:
        return Comparison(*common, "equal", len(plain.output_ids)), other
    if where in (len(plain.output_ids), len(other.output_ids)):
        return Comparison(*common, "different", len(plain.output_ids), where), other
    gap = engine.behind_best([*plain.prompt_ids, *plain.output_ids[:where]], other.output_ids[where])
    verdict: Literal["near-tie", "different"] = "near-tie" if gap < near_tie_gap(engine) else "different"
    return Comparison(*common, verdict, len(plain.output_ids), where, gap), other


def near_tie_gap(engine: Engine) -> float:
    """What rounding may flip in the engine's precision."""
    return BFLOAT16_GAP if engine.info.dtype == "bfloat16" else NEAR_TIE_GAP


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index of the first token that differs (or that only one of them has); None: equal."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return None if len(a) == len(b) else min(len(a), len(b))


def compare_all(engine: GapEngine, requests: Sequence[Request], strategies: Sequence[Strategy]) -> list[Comparison]:
    """Every strategy on every greedy request; plain decoding runs once per request."""
    found = []
    for request in requests:
        plain = engine.generate(request, PLAIN, seed=0)
        found += [compare(engine, request, plain, s)[0] for s in strategies]
    return found
