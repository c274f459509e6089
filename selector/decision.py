"""Where one request goes, and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from selector.strategy import Strategy


@dataclass(frozen=True, slots=True)
class Decision:
    """Where one request goes.

    `strategy` is what the pool runs; `num_speculative_tokens` what the policy expects there at its load.
    `fallbacks` are the other pools, plain ones first, then by share of servers. `confidence` is 1 for a class
    that the caller named. `speculative_config` is vLLM's dictionary for the pool (None: plain); decisions
    share it, so copy before changing it.
    """

    request_class: str
    strategy: Strategy
    num_speculative_tokens: int
    pool: str
    base_url: str | None
    fallbacks: tuple[str, ...]
    confidence: float
    reason: str
    policy_fingerprint: str
    speculative_config: dict[str, Any] | None = field(hash=False)


def explained(d: Decision, confidence: float, reason: str) -> Decision:
    """A copy with its own confidence and reason; spelled out, `dataclasses.replace` takes twice as long."""
    return Decision(
        d.request_class, d.strategy, d.num_speculative_tokens, d.pool, d.base_url, d.fallbacks,
        confidence, reason, d.policy_fingerprint, d.speculative_config,
    )  # fmt: skip
