"""Running totals of what routed requests really did, per request class and pool."""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass
from threading import Lock


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over requests: drafted and accepted draft tokens, output tokens, seconds to the last token."""

    requests: int = 0
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    seconds: float = 0.0


class Feedback:
    """Thread-safe totals; never more entries than the policy has classes x pools, whatever is recorded."""

    def __init__(self, classes: Set[str], pools: Set[str]) -> None:
        self._classes, self._pools = frozenset(classes), frozenset(pools)
        self._lock = Lock()
        self._totals: dict[tuple[str, str], Totals] = {}

    def add(self, request_class: str, pool: str, drafted: int, accepted: int, tokens: int, seconds: float) -> None:
        """Add one request; raises `ValueError` for impossible numbers or names the policy does not hold."""
        if request_class not in self._classes or pool not in self._pools:
            raise ValueError(f"class {request_class!r} in pool {pool!r} is not in this policy")
        if not 0 <= accepted <= drafted or tokens < 0:
            raise ValueError(
                f"drafted {drafted}, accepted {accepted}, tokens {tokens}: need 0 <= accepted <= drafted, tokens >= 0"
            )
        if not 0 <= seconds < math.inf:  # nan fails too
            raise ValueError(f"seconds {seconds!r} must be finite and not negative")
        key = (request_class, pool)
        with self._lock:
            t = self._totals.get(key, Totals())
            self._totals[key] = Totals(
                t.requests + 1,
                t.drafted + drafted,
                t.accepted + accepted,
                t.tokens + tokens,
                t.seconds + seconds,
            )

    def totals(self) -> dict[tuple[str, str], Totals]:
        """A copy of the totals."""
        with self._lock:
            return dict(self._totals)
