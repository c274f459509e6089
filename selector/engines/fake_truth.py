"""What is true in the fake engine's world: acceptance per task, seconds per step and prefill."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from selector.profile import Sampling


@dataclass(frozen=True)
class FakeClass:
    """Truth about one task: mean lengths (tokens), share of looping outputs, acceptance.

    `accept[method]`: chance of the first draft and of every later one, given that all before it were accepted;
    `overlap`: chance that n-gram finds a proposal at a position; `drawn`: what drawing drafts of sampled requests does
    to every chance (a factor).
    """

    prompt_tokens: int = 80
    output_tokens: int = 100
    loops: float = 0.0
    overlap: float = 0.3
    accept: Mapping[str, tuple[float, float]] = field(
        default_factory=lambda: {"ngram": (0.5, 0.7), "eagle3": (0.7, 0.65), "draft_model": (0.75, 0.7)}
    )
    drawn: float = 1.1


@dataclass(frozen=True)
class FakeCost:
    """Truth about time, in seconds. A step costs

        fixed + max(weights, per_token B (d + 1)) + per_context B context + sampler B (d + 1)
              + draft_fixed[method] + draft_pass[method] d + draft_token[method] B d

    (memory-bound until the ridge weights / per_token); `noise`: sd of the log of a timing.
    """

    fixed: float = 0.002
    weights: float = 0.020
    per_token: float = 0.0012
    per_context: float = 2e-6
    sampler: float = 2e-4
    prefill_token: float = 2.5e-4
    draft_fixed: Mapping[str, float] = field(
        default_factory=lambda: {"ngram": 0.0005, "eagle3": 0.001, "eagle": 0.001, "draft_model": 0.001}
    )
    draft_pass: Mapping[str, float] = field(
        default_factory=lambda: {"eagle3": 0.0025, "eagle": 0.004, "draft_model": 0.006}
    )
    draft_token: Mapping[str, float] = field(
        default_factory=lambda: {"eagle3": 1e-4, "eagle": 1e-4, "draft_model": 2e-4}
    )
    noise: float = 0.015

    def step(self, method: str, drafted: float, batch: int, context: float, sampling: Sampling) -> float:
        """True seconds of one step."""
        tokens = batch * (drafted + 1)
        seconds = self.fixed + max(self.weights, self.per_token * tokens) + self.per_context * batch * context
        if sampling != "greedy":
            seconds += self.sampler * tokens
        if method != "none":
            seconds += self.draft_fixed.get(method, 0.0) + self.draft_pass.get(method, 0.0) * drafted
            seconds += self.draft_token.get(method, 0.0) * batch * drafted
        return seconds

    def prefill(self, method: str, prompt_tokens: int) -> float:
        """True seconds of one prefill; a drafter with weights prefills too (a tenth of the target's time)."""
        own = 1.1 if method in ("eagle3", "eagle", "draft_model") else 1.0
        return own * (self.fixed + self.weights + self.prefill_token * prompt_tokens)


#: Truth about the tasks of the shipped workload; any other task decodes like FakeClass().
TASKS: Mapping[str, FakeClass] = MappingProxyType(
    {
        "chat": FakeClass(
            40, 110, 0.1, 0.10, {"ngram": (0.35, 0.5), "eagle3": (0.62, 0.58), "draft_model": (0.70, 0.66)}
        ),
        "code": FakeClass(
            60, 120, 0.1, 0.30, {"ngram": (0.55, 0.7), "eagle3": (0.80, 0.76), "draft_model": (0.80, 0.78)}
        ),
        "edit": FakeClass(
            220, 120, 0.0, 0.75, {"ngram": (0.85, 0.9), "eagle3": (0.72, 0.66), "draft_model": (0.76, 0.72)}
        ),
        "extract": FakeClass(
            250, 60, 0.0, 0.50, {"ngram": (0.65, 0.75), "eagle3": (0.66, 0.60), "draft_model": (0.72, 0.68)}
        ),
        "math": FakeClass(
            70, 120, 0.1, 0.25, {"ngram": (0.5, 0.6), "eagle3": (0.75, 0.70), "draft_model": (0.80, 0.76)}
        ),
        "translate": FakeClass(
            60, 60, 0.0, 0.08, {"ngram": (0.3, 0.4), "eagle3": (0.40, 0.35), "draft_model": (0.45, 0.40)}
        ),
    }
)
