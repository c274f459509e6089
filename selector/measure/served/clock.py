"""The budget as it runs down: what is left of it, and what the rest of the run will need at the pace seen so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from selector.measure.journal import Journal
from selector.measure.served.launches import Launch
from selector.measure.served.plan import ServedPlan

#: Time of a cell beside its counted requests: those that only keep the load full, and the start of the first ones.
_BESIDE = 1.25
#: Probes of speculating steps take longer than plain ones of the same plan.
_STEPS_SLACK = 1.3


class Clock:
    """Seconds of the budget. Time that earlier sessions of a resumed run took is spent; `now`: for tests."""

    def __init__(self, budget_seconds: float, journal: Journal, now: Callable[[], float] = time.monotonic) -> None:
        self._journal, self._now = journal, now
        self._end = now() + budget_seconds - sum(float(e["seconds"]) for e in journal.under("stage"))

    def left(self) -> float:
        """Seconds left; below zero once the budget is used up."""
        return self._end - self._now()

    def launch_seconds(self, plan: ServedPlan) -> float:
        """What a start takes: the mean of those seen, or the plan's."""
        seen = [float(e["seconds"]) for e in self._journal.under("launch")]
        return sum(seen) / len(seen) if seen else plan.launch_seconds

    def cell_seconds(self, plan: ServedPlan) -> float:
        """All end-to-end cells of one launch, as the plain server's took; the plan's estimate before that."""
        plain = [e for e in self._journal.under("confirm") if e["strategy"]["method"] == "none" and e["arm"] == "main"]
        seen = sum((r["prefill_seconds"] + r["decode_seconds"]) / e["load"] for e in plain for r in e["runs"])
        return _BESIDE * seen if seen else plan.confirm_seconds / (2 + plan.confirm_launches)

    def confirmation(self, plan: ServedPlan, arms: int) -> float:
        """Seconds of so many confirming launches and of the plain one after them."""
        return (arms + 1) * (self.launch_seconds(plan) + self.cell_seconds(plan))

    def arms(self, plan: ServedPlan) -> int:
        """Confirming launches that still fit, at least one and at most the plan's."""
        fitting = [n for n in range(1, plan.confirm_launches + 1) if self.confirmation(plan, n) <= self.left()]
        return max(fitting, default=min(1, plan.confirm_launches))

    def for_acceptance(self, plan: ServedPlan, this: Launch, later: Sequence[Launch], step_seconds: float) -> float:
        """Seconds that live acceptance on the server `this` may take: an even share of what the launches after it, the
        step costs (`step_seconds` for one launch, as the plan has them) and one confirming launch leave.
        """
        launches = len(later) * self.launch_seconds(plan) + (len(later) + 1) * _STEPS_SLACK * step_seconds
        confirm = self.confirmation(plan, 1) if plan.confirm_launches else 0.0
        share = 1 + sum(launch.live for launch in later)
        return (self.left() - launches - confirm) / share

    def share(self, plan: ServedPlan, launches: int) -> float:
        """Seconds that the first of so many confirming launches may take, its start included: what is left shared
        among them, and never less than a start and a quarter of the cells, so that each shows something.
        """
        least = self.launch_seconds(plan) + self.cell_seconds(plan) / 4
        return max(self.left() / launches, least)

    def deadline(self, seconds: float) -> Callable[[], bool]:
        """Whether so many seconds from now are over."""
        end = self._now() + seconds
        return lambda: self._now() > end
