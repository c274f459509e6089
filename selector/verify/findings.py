"""What was found about one strategy so far, and the answer it makes."""

from __future__ import annotations

from collections import Counter

from selector.equality import Comparison
from selector.strategy import MODEL_METHODS, Strategy
from selector.verify.arms import LEAST_TOKENS, Arm
from selector.verify.notes import Notes
from selector.verify.rarities import RareTokens, Repeats
from selector.verify.report import (
    STEP_FAULTS,
    DraftingCheck,
    GreedyCounts,
    SampledTest,
    Setting,
    StrategyReport,
    Verdict,
)
from selector.verify.steps import Misstep, tolerated
from selector.workload import Request

#: What a kind of evidence suggests, where its name alone does not.
MEANING = {"repeated output": ": is the seed ignored?"}


class Findings:
    """Grows with every output that is looked at; `report` can be asked for at any time."""

    def __init__(self, strategy: Strategy, dtype: str) -> None:
        self.strategy, self.dtype = strategy, dtype
        self.arms: dict[Setting, Arm] = {}
        self.notes, self.rare, self.repeats = Notes(), RareTokens(), Repeats()
        self.compared: list[Comparison] = []
        self.sampled_outputs = self.steps = self.missteps = self.missing_bonus = self.miscounted = 0

    def note_steps(self, request: Request, steps: int, found: list[Misstep]) -> None:
        """A greedy output's steps against its replay."""
        self.steps += steps
        self.missteps += len(found)
        self.missing_bonus += sum(m.foretold == self.strategy.k == m.live + 1 for m in found)
        for m in found:
            text = f"{m.live} drafts accepted where the replay has {m.foretold}"
            self.notes.add("steps not as replayed", request, m.position, text)

    def tests_failed(self, tests: list[SampledTest], alpha: float) -> int:
        """How many tests stay significant when corrected."""
        return sum(t.corrected_p < alpha for t in tests)

    def report(self, tests: list[SampledTest], alpha: float, *, rare_level: float, interrupted: bool) -> StrategyReport:
        """The answer; `tests` are this strategy's, corrected over all strategies, as `rare_level` is."""
        notes = self.notes.copy()
        self.rare.judge(notes, rare_level)
        self.repeats.judge(notes, rare_level)
        verdict, reason = self._verdict(notes, tests, alpha, interrupted)
        verdicts = Counter(c.verdict for c in self.compared)
        return StrategyReport(
            strategy=self.strategy,
            verdict=verdict,
            reason=reason,
            greedy=GreedyCounts(
                prompts=len(self.compared),
                tokens=sum(c.output_tokens if c.position is None else c.position for c in self.compared),
                equal=verdicts["equal"],
                near_tie=verdicts["near-tie"],
                different=verdicts["different"],
            ),
            sampled_outputs=self.sampled_outputs,
            sampled_tokens=sum(a.tokens for a in self.arms.values()),
            first_drafts=self.first_drafts,
            tests=tuple(tests),
            drafting=self._drafting(),
            evidence_counts=dict(notes.counts),
            evidence=tuple(notes.evidence),
        )

    @property
    def first_drafts(self) -> int:
        """Sampled places where the rejection rule can be tested."""
        return sum(arm.first_drafts(self.strategy.family) for arm in self.arms.values())

    def _verdict(self, notes: Notes, tests: list[SampledTest], alpha: float, interrupted: bool) -> tuple[Verdict, str]:
        faults = {k: n for k, n in notes.counts.items() if k not in STEP_FAULTS and k != "near-tie"}
        reasons = [f"{kind} ({n}){MEANING.get(kind, '')}" for kind, n in faults.items()]
        if failed := self.tests_failed(tests, alpha):
            reasons.append(f"another distribution by {failed} tests at a family-wise {alpha:g}")
        if reasons:
            return "not lossless", "; ".join(reasons)
        if interrupted:
            return "inconclusive", "interrupted before all was compared; nothing against it so far"
        if missing := self._missing(tests):
            return "inconclusive", f"{missing}; nothing against it so far"
        gap = self._rule_untested(tests)
        untested = f"; {gap}" if gap else ""
        if near := notes.counts["near-tie"]:
            found = f"{near} greedy outputs part at a near-tie; no test finds a difference"
            return "near-tie differences only", found + untested
        return "lossless", "all greedy outputs are equal, no test finds a difference" + untested

    def _missing(self, tests: list[SampledTest]) -> str:
        """What there was too little of for an answer."""
        if not self.compared:
            return "too few greedy outputs to say"
        if not any(t.statistic == "rank" for t in tests):
            return "too few sampled tokens to say"
        # n-gram lookup finds a draft now and then only; a model drafts always, and its rule is the likeliest fault.
        return self._rule_untested(tests) if self.strategy.method in MODEL_METHODS else ""

    def _rule_untested(self, tests: list[SampledTest]) -> str:
        if any(t.statistic == "drafter's favour" for t in tests):
            return ""
        return f"the rejection rule was not tested ({self.first_drafts} of {LEAST_TOKENS} places)"

    def _drafting(self) -> DraftingCheck:
        allowed = tolerated(self.strategy.method, self.steps, self.dtype)
        wrong = self.missteps > allowed or self.miscounted > 0
        return DraftingCheck(
            verdict="not as replayed" if wrong else "as replayed" if self.steps else "not checked",
            steps=self.steps,
            differing=self.missteps,
            missing_bonus=self.missing_bonus,
            tolerated=allowed,
            miscounted=self.miscounted,
        )
