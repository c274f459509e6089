"""The two arms of a sampled comparison, plain decoding and a strategy, as numbers that should be spread alike.

Whatever an output's text, a token drawn from the target's own distribution splits it at a uniform place: the mass of
the tokens ordered before it, plus a random part of its own mass, is uniform on [0, 1] (a randomised probability
integral transform), and independent from token to token. So arms can be compared token by token although their texts
part after the first token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import get_args

import numpy as np

from selector.engines.base import Generation, TokenScores
from selector.verify.rarities import SHARE
from selector.verify.report import SampledTest, Setting, Statistic
from selector.verify.statistics import Floats, holm, kolmogorov_smirnov, mean_shift, noticeable

#: Tokens an arm must have before anything is tested: the tests' p values are those of long samples.
LEAST_TOKENS = 200
#: What random numbers used twice disturb, at every setting alike: tested over all of them only.
POOLED: frozenset[Statistic] = frozenset({"token id", "step to step"})


@dataclass
class Arm:
    """Numbers of one arm at one setting; see `TokenScores`.

    rank: place in the order from likely to unlikely; favour: in the order of what the drafter favours (q / p), by
    family; surprisal: less its expectation, whose mean is 0; ids: place in the order of token ids, by which a draw from
    the same random number lands at the same place again; steps: how far that place moves, around the circle, from the
    first token of a step to that of the next: uniform too when each is drawn anew, wherever the first one was.
    """

    rank: list[Floats] = field(default_factory=list)
    surprisal: list[Floats] = field(default_factory=list)
    favour: dict[str, list[Floats]] = field(default_factory=dict)
    ids: list[Floats] = field(default_factory=list)
    steps: list[Floats] = field(default_factory=list)

    def add(self, scores: TokenScores, random: np.random.Generator, places: Iterable[int] | None = None) -> None:
        """One output. `places`: the first tokens of steps, where the first draft was checked; None: of every token."""
        own = random.random(len(scores.p)) * scores.p
        self.rank.append(np.clip(scores.likelier + own, 0, 1))
        self.ids.append(np.clip(scores.before + own, 0, 1))
        starts = np.arange(len(scores.p)) if places is None else np.array(sorted(places), np.intp)
        self.steps.append(np.diff(self.ids[-1][starts]) % 1)
        self.surprisal.append(scores.excess[~np.isnan(scores.excess)])
        for family, favoured in scores.favoured.items():
            values = favoured[starts] + random.random(len(starts)) * scores.p[starts]
            self.favour.setdefault(family, []).append(np.clip(values[~np.isnan(values)], 0, 1))

    @property
    def tokens(self) -> int:
        """How many were scored."""
        return sum(map(len, self.rank))

    def first_drafts(self, family: str) -> int:
        """Places where the rejection rule of a family can be tested."""
        return sum(map(len, self.favour.get(family, [])))


def step_starts(g: Generation) -> list[int]:
    """Output tokens at which a decode step began. Which they are depends on earlier tokens only, so they stay uniform.

    Only there the first draft is the one that scoring makes too: deeper ones continue from the drafter's own guesses.
    """
    starts, at = [], 1
    for accepted in g.accepted_per_step:
        if at >= len(g.output_ids):
            break
        starts.append(at)
        at += accepted + 1
    return starts


def impossible(scores: TokenScores, top_p: float, margin: float) -> list[int]:
    """Tokens outside the nucleus by more than rounding. Without a nucleus none is: see `RareTokens`."""
    return [int(i) for i in np.flatnonzero((scores.p == 0) & (top_p < 1) & (scores.beyond > margin))]


def compare_arms(plain: dict[Setting, Arm], other: dict[Setting, Arm], family: str) -> list[SampledTest]:
    """Every statistic at every setting, and over all of them; not corrected yet."""
    settings = [s for s in other if s in plain]
    groups: list[tuple[Setting | None, list[Setting]]] = [(s, [s]) for s in settings]
    if len(settings) > 1:
        groups.append((None, settings))
    found = []
    for name, members in groups:
        everything = len(members) == len(settings)
        for statistic in (s for s in get_args(Statistic) if everything or s not in POOLED):
            one, two = (_pooled([side[s] for s in members], statistic, family) for side in (plain, other))
            if min(len(one), len(two)) >= LEAST_TOKENS:
                found.append(_test(name, statistic, one, two))
    return found


def corrected(families: Sequence[Sequence[SampledTest]], alpha: float) -> list[list[SampledTest]]:
    """The tests of all strategies corrected together, with the distance that each would still notice then."""
    every = [t for own in families for t in own]
    p_values = iter(min(1.0, p / (1 - SHARE)) for p in holm([t.p_value for t in every]))

    def one(t: SampledTest) -> SampledTest:
        least = (
            None
            if t.statistic == "surprisal"
            else noticeable(t.plain_tokens, t.strategy_tokens, (1 - SHARE) * alpha / len(every))
        )
        return t.model_copy(update={"corrected_p": next(p_values), "noticeable": least})

    return [[one(t) for t in own] for own in families]


def _pooled(arms: list[Arm], statistic: str, family: str) -> Floats:
    parts = [np.zeros(0)]
    for arm in arms:
        parts += {
            "rank": arm.rank,
            "surprisal": arm.surprisal,
            "token id": arm.ids,
            "step to step": arm.steps,
        }.get(statistic, arm.favour.get(family, []))
    return np.concatenate(parts)


def _test(setting: Setting | None, statistic: Statistic, plain: Floats, other: Floats) -> SampledTest:
    compared = mean_shift if statistic == "surprisal" else kolmogorov_smirnov
    effect, p = compared(plain, other)
    return SampledTest(
        temperature=setting.temperature if setting else None,
        top_p=setting.top_p if setting else None,
        statistic=statistic,
        plain_tokens=len(plain),
        strategy_tokens=len(other),
        effect=effect,
        noticeable=None,
        p_value=p,
        corrected_p=p,
    )
