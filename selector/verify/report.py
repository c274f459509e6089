"""What a comparison with plain decoding found: the answer, its evidence, and how much it would have noticed."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from selector.profile import DrafterInfo, EngineInfo, ModelInfo
from selector.strategy import Frozen, Strategy

Verdict = Literal["lossless", "near-tie differences only", "not lossless", "inconclusive"]
Statistic = Literal["rank", "drafter's favour", "surprisal", "token id", "step to step"]
EvidenceKind = Literal[
    "different token",
    "different length",
    "near-tie",
    "ended early",
    "stop token overrun",
    "past max_tokens",
    "impossible token",
    "improbable token",
    "repeated output",
    "missing bonus token",
    "more tokens than the steps account for",
    "steps not as replayed",
]
#: Kinds that say nothing against the output itself; all but near-ties are faults of the steps that made it.
STEP_FAULTS: frozenset[str] = frozenset(
    {"missing bonus token", "more tokens than the steps account for", "steps not as replayed"}
)


class Setting(Frozen):
    """One way to sample."""

    temperature: Annotated[float, Field(gt=0, le=5)]
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0


class Evidence(Frozen):
    """One thing that is not as it should be. `position`: output token, from 0; token ids where it is about tokens."""

    kind: EvidenceKind
    request_class: str
    prompt: str
    position: int | None = None
    expected: int | None = None
    got: int | None = None
    detail: str = ""


class GreedyCounts(Frozen):
    """Greedy outputs against plain decoding's; `tokens`: compared, i.e. up to the first difference."""

    prompts: int
    tokens: int
    equal: int
    near_tie: int
    different: int


class DraftingCheck(Frozen):
    """Whether live steps accepted what a replay of the same greedy output accepts: a stale drafter shows only here.

    `missing_bonus`: of the differing steps, those that accepted all but the last of k good drafts.
    `tolerated`: steps that may differ because the drafter's own two best tokens score almost the same.
    `miscounted`: outputs, sampled ones too, whose steps and accepted drafts do not make their length.
    """

    verdict: Literal["as replayed", "not as replayed", "not checked"]
    steps: int
    differing: int
    missing_bonus: int
    tolerated: int
    miscounted: int


class SampledTest(Frozen):
    """One two-sample test; temperature and top_p null: all settings together.

    `effect`: Kolmogorov-Smirnov distance, or nats per token for `surprisal`. `noticeable`: the distance that would be
    noticed nine times in ten (null for `surprisal`). `corrected_p`: by Holm, over all tests of the report, for the nine
    tenths of alpha that tests have (the rest is for single tokens and repeated outputs).
    """

    temperature: float | None
    top_p: float | None
    statistic: Statistic
    plain_tokens: int
    strategy_tokens: int
    effect: float
    noticeable: float | None
    p_value: float
    corrected_p: float


class StrategyReport(Frozen):
    """The answer for one strategy; of each kind of evidence the first few are kept, and all are counted.

    `first_drafts`: sampled places where a step checked its first draft, which is where the rejection rule is tested.
    """

    strategy: Strategy
    verdict: Verdict
    reason: str
    greedy: GreedyCounts
    sampled_outputs: int
    sampled_tokens: int
    first_drafts: int
    tests: tuple[SampledTest, ...]
    drafting: DraftingCheck
    evidence_counts: dict[str, int]
    evidence: tuple[Evidence, ...]

    @property
    def failed(self) -> bool:
        """Another output than plain decoding's, or a drafter that does not know what was decoded."""
        return self.verdict == "not lossless" or self.drafting.verdict == "not as replayed"


class LosslessReport(Frozen):
    """Every strategy's answer, and what was compared with which settings."""

    schema_version: Literal[1] = 1
    engine: EngineInfo
    target: ModelInfo
    drafters: dict[str, DrafterInfo]
    prompts: int
    max_tokens: int
    settings: tuple[Setting, ...]
    samples: int
    alpha: float
    near_tie_gap: float
    seed: int
    interrupted: bool
    strategies: tuple[StrategyReport, ...]
