"""The plan of a served measurement: how many prompts, repeats and confirming launches fit the budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from selector.workload import Workload

MIN_PROMPTS, REPEATS = 3, 3
PREFILL_LENGTHS = (32, 128, 384)
PREFILL_REPEATS = 3
#: Output tokens of one step probe.
PROBE_TOKENS = 32
#: What a drafting step costs more than a plain one, and emits more, before anything is known (a small model on two
#: cores, mean of k = 1 and k = 8).
_STEP_RATIO, _TAU = 2.2, 1.25
#: Requests of a cell at load B: so many times B, that slots are refilled while others decode.
ROUNDS = 1.5


@dataclass(frozen=True)
class ServedSpeed:
    """Seconds that a launch takes until it answers, of one plain step, and of what one request more adds to it."""

    launch: float
    step: float
    per_request: float

    def token(self, load: int) -> float:
        """Seconds per output token of a full plain server."""
        return (self.step + self.per_request * (load - 1)) / load


@dataclass(frozen=True)
class ServedPlan:
    """What will be measured; seconds are estimates."""

    prompts_per_class: int
    step_repeats: int
    confirm_prompts: int
    confirm_launches: int
    launches: int
    launch_seconds: float
    record_seconds: float
    live_seconds: float
    step_seconds: float
    confirm_seconds: float

    @property
    def total_seconds(self) -> float:
        """The whole run."""
        return (
            self.launches * self.launch_seconds
            + self.record_seconds + self.live_seconds + self.step_seconds + self.confirm_seconds
        )  # fmt: skip

    def as_dict(self) -> dict[str, Any]:
        """Plain data for the journal and `--plan --json`."""
        return asdict(self) | {"total_seconds": self.total_seconds}


def make_served_plan(
    workload: Workload, loads: Sequence[int], methods: int, drafters: int, probes: int, speed: ServedSpeed,
    budget_seconds: float, *, prompts_per_class: int | None = None, confirm: bool = True,
) -> ServedPlan:  # fmt: skip
    """Fit the budget: launches and step costs first, half of the rest for acceptance, half for confirmation.

    `methods`: launches that measure methods, n-gram included; `drafters`: those of them whose acceptance is seen live;
    `probes`: step probes of all launches together. Where the budget is too small the plan is the smallest one, and
    exceeds it.
    """
    classes = workload.by_class()
    tokens = sum(max(r.max_tokens for r in rs) for rs in classes.values()) * 0.85  # of one prompt of every class
    full = max(loads)
    fixed = (1 + methods + (2 if confirm else 0)) * speed.launch
    probe = PROBE_TOKENS * (speed.step + speed.per_request * full / 2) * _STEP_RATIO / _TAU
    steps = REPEATS * probes * probe
    prefill = (1 + methods) * len(PREFILL_LENGTHS) * PREFILL_REPEATS * 2 * speed.step
    left = max(0.0, budget_seconds - fixed - steps - prefill)
    record = tokens * speed.token(full)
    live = drafters * record * _STEP_RATIO / _TAU
    share = 0.5 if confirm else 1.0
    prompts = prompts_per_class or max(MIN_PROMPTS, int(share * left / (record + live)))
    prompts = min(prompts, max(len(rs) for rs in classes.values()))
    acceptance = prompts * (record + live)
    arms, each, per_launch = _confirmation(tokens, loads, speed, left - acceptance) if confirm else (0, 0, 0.0)
    return ServedPlan(
        prompts_per_class=prompts,
        step_repeats=REPEATS,
        confirm_prompts=min(each, prompts),
        confirm_launches=arms,
        launches=1 + methods + (1 + arms if confirm else 0),
        launch_seconds=speed.launch,
        record_seconds=prompts * record,
        live_seconds=prompts * live,
        step_seconds=steps + prefill,
        confirm_seconds=(2 + arms) * per_launch if confirm else 0.0,
    )


def rounds(load: int, prompts: int) -> int:
    """How often the prompts of a cell are sent, so that a load of many at once is refilled (`ROUNDS`)."""
    return max(1, math.ceil(ROUNDS * load / prompts)) if load > 1 else 1


def _confirmation(tokens: float, loads: Sequence[int], speed: ServedSpeed, seconds: float) -> tuple[int, int, float]:
    """Confirming launches, prompts of a class in each, and the seconds one takes; a plain server runs the same twice.

    Every class at the smallest and the largest load; at load B, B - 1 requests more keep the last counted ones company.
    """
    low, full = min(loads), max(loads)

    def one(prompts: int) -> float:
        requests = prompts * rounds(full, prompts) + full - 1
        return tokens * (prompts * speed.token(low) + (requests * speed.token(full) if full != low else 0.0))

    best = (1, 2, one(2))
    for arms in (1, 2, 3, 4):
        for prompts in (2, 3, 4, 6, 8, 12):
            cost = (2 + arms) * one(prompts) + (arms - 1) * speed.launch
            if cost <= seconds and (prompts >= 3 or arms == 1) and (arms, prompts) > (best[0], 0):
                best = (arms, prompts, one(prompts))
    return best
