"""Refuses what cannot be compared before any work is done."""

from __future__ import annotations

from collections.abc import Sequence

from selector.errors import SelectorError
from selector.strategy import PLAIN, Strategy
from selector.verify.engine import ScoringEngine
from selector.workload import Request


def compared(engine: ScoringEngine, strategies: Sequence[Strategy]) -> list[Strategy]:
    """Those that are not plain decoding, once each."""
    found = [s for s in dict.fromkeys(strategies) if s != PLAIN]
    if not found:
        raise SelectorError("nothing to compare: plain decoding is what everything is compared with")
    for s in found:
        if s.drafter is None:
            continue
        info = engine.drafters.get(s.drafter)
        if info is None or info.method != s.method:
            known = ", ".join(f"{i.method} {name}" for name, i in engine.drafters.items()) or "no drafter at all"
            raise SelectorError(f"{s.family}: the engine has {known}; load the drafter or name another")
    return found


def capped(engine: ScoringEngine, requests: Sequence[Request], k: int) -> list[Request]:
    """Each prompt once, with the same limit for all: the engine leaves room for k drafts at the end."""
    if not requests:
        raise SelectorError("no requests to compare: give at least one")
    found, longest = [], engine.target.max_model_len
    for r in {r.digest: r for r in requests}.values():
        prompt = engine.prompt_tokens(r)
        if (room := longest - prompt - k - 1) < 1:
            raise SelectorError(
                f"a prompt of {prompt} tokens and k={k} leave no room in the model's {longest}: "
                "take a smaller k, shorten the prompt or drop it"
            )
        found.append(r.model_copy(update={"max_tokens": min(r.max_tokens, room)}))
    return found


def check_numbers(samples: int, alpha: float) -> None:
    """Options that a command line checks by itself."""
    if samples < 1:
        raise SelectorError(f"samples is {samples}: compare at least one sampled output per prompt and setting")
    if not 0 < alpha < 1:  # so is NaN
        raise SelectorError(f"alpha is {alpha:g}: the chance of a false alarm lies between 0 and 1, such as 0.001")
