"""What is too improbable for chance by itself: a token far out in the tail, or an output that comes once more.

Two-sample tests need hundreds of tokens. One token of probability 1e-12 is evidence at once, and so is a second output
equal to the first. Both kinds share a tenth of alpha; the tests have the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from selector.engines.base import TokenScores
from selector.verify.notes import Notes
from selector.verify.report import Setting
from selector.workload import Request

#: Of alpha, for both kinds together: it costs the tests next to nothing, and such events are seldom near the edge.
SHARE = 0.1
#: Stakes of the bets below: the first for an engine that always repeats itself, the others for one that does at times.
_STAKES = (0.5, 0.05, 0.005)


@dataclass
class RareTokens:
    """The mass of a token and all less likely ones is at most t with probability t or less: a p value per token.

    `slack`: what rounding may add to its logarithm. So among n tokens one below level / n is a false alarm with
    probability `level` at most (Bonferroni), whatever depends on what.
    """

    looked_at: int = 0
    kept: list[tuple[float, Request, int, int]] = field(default_factory=list)

    def add(self, request: Request, output: tuple[int, ...], scores: TokenScores, slack: float) -> None:
        """One output; only tokens that could ever count are kept."""
        self.looked_at += request.max_tokens  # not its length, which the tokens themselves decide
        log_p = scores.log_tail + slack
        for i in np.flatnonzero(log_p < math.log(SHARE)):
            self.kept.append((float(log_p[i]), request, int(i), output[i]))

    def judge(self, notes: Notes, level: float) -> None:
        """Write down what is below `level`, corrected over all tokens seen."""
        for log_p, request, position, token in sorted(self.kept, key=lambda kept: kept[0]):
            if log_p < math.log(level / self.looked_at):
                text = f"so unlikely a token comes once in {_odds(log_p)}, and at most {self.looked_at} were drawn"
                notes.add("improbable token", request, position, text, got=token)


@dataclass
class Repeats:
    """A bet against chance on every output: that it equals an earlier one of the same prompt and setting.

    The probability of that, q, is known: the sum of the earlier outputs' own. A stake s of the capital pays s / q when
    won, which is fair if outputs are drawn anew, so then the capital ever reaches 1 / level with probability `level` at
    most (Ville's inequality).
    """

    log_capital: list[float] = field(default_factory=lambda: [0.0] * len(_STAKES))
    earlier: dict[tuple[str, Setting], dict[tuple[int, ...], float]] = field(default_factory=dict)
    kept: list[tuple[float, Request]] = field(default_factory=list)

    def add(self, request: Request, setting: Setting, output: tuple[int, ...], scores: TokenScores) -> None:
        """One output."""
        earlier = self.earlier.setdefault((request.digest, setting), {})
        if earlier:
            log_q = min(0.0, float(np.logaddexp.reduce(list(earlier.values()))))
            if again := output in earlier:
                self.kept.append((log_q, request))
            for i, stake in enumerate(_STAKES):
                won = math.log(stake) - log_q if again else -math.inf
                self.log_capital[i] += float(np.logaddexp(math.log1p(-stake), won))
        likely = scores.p[scores.p > 0]  # at the nucleus's edge rounding may leave none: then nothing is claimed of it
        earlier[output] = float(np.log(likely).sum())

    def judge(self, notes: Notes, level: float) -> None:
        """Write down every repeat, the least likely first, if together they are beyond chance."""
        capital = float(np.logaddexp.reduce(self.log_capital)) - math.log(len(_STAKES))
        if capital > -math.log(level):
            for log_q, request in sorted(self.kept, key=lambda kept: kept[0]):
                text = f"the same text as in an earlier sample, by chance once in {_odds(log_q)}"
                notes.add("repeated output", request, detail=text)


def _odds(log_p: float) -> str:
    return f"10^{abs(round(log_p / math.log(10)))}"
