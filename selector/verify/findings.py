"""What was found about one strategy so far, and the answer it makes."""

from __future__ import annotations

from collections import Counter

from selector.equality import Comparison
from selector.strategy import Strategy
from selector.verify.arms import Arm
from selector.verify.report import (
    STEP_FAULTS,
    DraftingCheck,
    Evidence,
    EvidenceKind,
    GreedyCounts,
    SampledTest,
    Setting,
    StrategyReport,
    Verdict,
)
from selector.verify.steps import Misstep, tolerated
from selector.workload import Request

#: Evidence kept of each kind; all of it is counted.
KEPT = 5


class Findings:
    """Grows with every output that is looked at; `report` can be asked for at any time."""

    def __init__(self, strategy: Strategy, dtype: str) -> None:
        self.strategy, self.dtype = strategy, dtype
        self.arms: dict[Setting, Arm] = {}
        self.counts: Counter[str] = Counter()
        self.evidence: list[Evidence] = []
        self.compared: list[Comparison] = []
        self.sampled_outputs = self.steps = self.missteps = self.missing_bonus = self.miscounted = 0

    def note(
        self, kind: EvidenceKind, request: Request, position: int | None = None, detail: str = "",
        expected: int | None = None, got: int | None = None,
    ) -> None:  # fmt: skip
        """Count it, and keep the first few."""
        self.counts[kind] += 1
        if self.counts[kind] <= KEPT:
            self.evidence.append(
                Evidence(
                    kind=kind, request_class=request.request_class, prompt=request.digest, position=position,
                    expected=expected, got=got, detail=detail,
                )
            )  # fmt: skip

    def note_steps(self, request: Request, steps: int, found: list[Misstep]) -> None:
        """A greedy output's steps against its replay."""
        self.steps += steps
        self.missteps += len(found)
        self.missing_bonus += sum(m.foretold == self.strategy.k == m.live + 1 for m in found)
        for m in found:
            text = f"{m.live} drafts accepted where the replay has {m.foretold}"
            self.note("steps not as replayed", request, m.position, text)

    def tests_failed(self, tests: list[SampledTest], alpha: float) -> int:
        """How many tests stay significant when corrected."""
        return sum(t.corrected_p < alpha for t in tests)

    def report(self, tests: list[SampledTest], alpha: float, *, interrupted: bool) -> StrategyReport:
        """The answer; `tests` are this strategy's, corrected over all strategies."""
        verdict, reason = self._verdict(self.tests_failed(tests, alpha), bool(tests), alpha, interrupted)
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
            tests=tuple(tests),
            drafting=self._drafting(),
            evidence_counts=dict(self.counts),
            evidence=tuple(self.evidence),
        )

    def _verdict(self, failed: int, tested: bool, alpha: float, interrupted: bool) -> tuple[Verdict, str]:
        faults = {k: n for k, n in self.counts.items() if k not in STEP_FAULTS and k != "near-tie"}
        reasons = [f"{kind} ({n})" for kind, n in faults.items()]
        if failed:
            reasons.append(f"another distribution by {failed} tests at a family-wise {alpha:g}")
        if reasons:
            return "not lossless", "; ".join(reasons)
        if interrupted:
            return "inconclusive", "interrupted before all was compared; nothing against it so far"
        if not self.compared or not tested:
            missing = "greedy outputs" if not self.compared else "sampled tokens"
            return "inconclusive", f"too few {missing} to say; nothing against it so far"
        if near := self.counts["near-tie"]:
            return "near-tie differences only", f"{near} greedy outputs part at a near-tie; no test finds a difference"
        return "lossless", "all greedy outputs are equal, no test finds a difference"

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
