"""What speaks against a strategy, counted by kind, the first few kept as evidence."""

from __future__ import annotations

from collections import Counter

from selector.verify.report import Evidence, EvidenceKind
from selector.workload import Request

#: Evidence kept of each kind; all of it is counted.
KEPT = 5


class Notes:
    """Grows; a copy can grow on its own."""

    def __init__(self, counts: Counter[str] | None = None, evidence: list[Evidence] | None = None) -> None:
        self.counts, self.evidence = Counter(counts), list(evidence or ())

    def copy(self) -> Notes:
        """What is added to it stays out of this one."""
        return Notes(self.counts, self.evidence)

    def add(
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
