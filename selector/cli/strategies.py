"""Strategies as a person writes them: `eagle3 k=4`, `ngram 2..4 k=6`, `draft_model my-model probabilistic k=3`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from selector.errors import SelectorError
from selector.profile import DrafterInfo
from selector.strategy import METHODS, MODEL_METHODS, Strategy
from selector.workload import first_problem

WINDOW = (2, 4)
#: What `--k` goes to as well.
MOST_DRAFTS = 16


def strategies(texts: Sequence[str], drafters: Mapping[str, DrafterInfo], k: int) -> list[Strategy]:
    """What was asked for; without texts n-gram lookup and every drafter, with likeliest and with drawn drafts."""
    if texts:
        return [parse(text, drafters) for text in texts]
    found = [Strategy(method="ngram", lookup_min=WINDOW[0], lookup_max=WINDOW[1], num_speculative_tokens=k)]
    for name, info in drafters.items():
        greedy = Strategy(method=info.method, drafter=name, num_speculative_tokens=k)
        found += [greedy, greedy.drawing]
    return found


def parse(text: str, drafters: Mapping[str, DrafterInfo], option: str = "--strategy") -> Strategy:
    """One strategy; a drafter that is the only one of its method needs no name. Raises `SelectorError`."""
    method, *words = text.split() or [""]
    if method not in METHODS or method == "none":
        raise SelectorError(f"{option} {text!r}: begin with a method, {', '.join(m for m in METHODS if m != 'none')}")
    settings: dict[str, Any] = {"method": method}
    names = []
    for word in words:
        said = len(settings)
        if match := re.fullmatch(r"k=([0-9]{1,9})", word):
            settings["num_speculative_tokens"] = int(match[1])
        elif match := re.fullmatch(r"([0-9]{1,4})\.\.([0-9]{1,4})", word):
            settings |= {"lookup_min": int(match[1]), "lookup_max": int(match[2])}
        elif word == "probabilistic":
            settings["draft_sample_method"] = word
        else:
            names.append(word)
            continue
        if len(settings) == said:
            raise SelectorError(f"{option} {text!r}: {word} says again what was said before: leave one out")
    if "num_speculative_tokens" not in settings:
        raise SelectorError(f"{option} {text!r}: say how many tokens are drafted, such as k=4")
    if (k := settings["num_speculative_tokens"]) > MOST_DRAFTS:
        raise SelectorError(f"{option} {text!r}: k is {k}, at most {MOST_DRAFTS} tokens are drafted per step")
    if method == "ngram":
        settings = {"lookup_min": WINDOW[0], "lookup_max": WINDOW[1]} | settings
    if names or method in MODEL_METHODS:
        settings["drafter"] = _drafter(f"{option} {text!r}", method, names, drafters)
    try:
        return Strategy.model_validate(settings)
    except ValidationError as error:
        raise SelectorError(f"{option} {text!r}: {first_problem(error)}") from error


def _drafter(where: str, method: str, names: Sequence[str], drafters: Mapping[str, DrafterInfo]) -> str:
    own = [name for name, info in drafters.items() if info.method == method]
    if names in ([], [*own]) and len(own) == 1:
        return own[0]
    if len(names) == 1 and names[0] in own:
        return names[0]
    known = ", ".join(f"{info.method} {name}" for name, info in drafters.items()) or "no drafter at all"
    raise SelectorError(f"{where}: name one drafter of this method; there is {known} (--drafter adds one)")
