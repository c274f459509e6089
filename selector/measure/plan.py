"""The plan: which prompts, step costs and confirmations fit the budget, and how long each part takes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from selector.acceptance import sampling_kind
from selector.engines.base import Engine
from selector.profile import Sampling
from selector.strategy import PLAIN, Strategy
from selector.workload import Request, Workload

BATCH_RECORDED = 8
SHARE_OF_ACCEPTANCE, SHARE_OF_STEP_COST = 0.35, 0.25
SHARE_OF_CONFIRMATION = 0.15
MIN_PROMPTS = 3
#: Engine steps that one step-cost timing takes: the cell and its plain anchor, each with a warm-up.
STEPS_PER_CELL = 6
#: Arms of a confirmation: plain twice (A/A), the candidate, and with time enough its rival.
ARMS = 4
PREFILL_REPEATS = 3
PREFILL_LENGTHS = (32, 128, 384)
TYPICAL_CONTEXT = 256


@dataclass(frozen=True)
class StepCell:
    """One step-cost cell: the strategy's k is the width asked for."""

    strategy: Strategy
    batch: int
    context: int
    sampling: Sampling

    @property
    def key(self) -> str:
        """Journal key without the repeat."""
        return f"step/{self.strategy.family}/{self.strategy.k}/{self.batch}/{self.context}/{self.sampling}"


@dataclass(frozen=True)
class Speed:
    """Seconds of one plain step at batch 1 and at the recording batch, measured before planning."""

    one: float
    batch: float

    @classmethod
    def of(cls, engine: Engine) -> Self:
        """Two quick timings."""
        times = [
            min(engine.step_seconds(PLAIN, batch=b, context=TYPICAL_CONTEXT, sampling="greedy", repeats=2))
            for b in (1, BATCH_RECORDED)
        ]
        return cls(*times)


@dataclass(frozen=True)
class Plan:
    """What will be measured. Seconds are estimates from `Speed`; the plan is frozen in the journal."""

    prompts_per_class: int
    step_repeats: int
    confirm_seconds: float
    confirm_prompts: int
    confirm_repeats: int
    confirm_rivals: bool
    record_seconds: float
    replay_seconds: float
    step_cost_seconds: float
    prefill_seconds: float

    @property
    def total_seconds(self) -> float:
        """The whole run."""
        parts = (
            self.record_seconds,
            self.replay_seconds,
            self.step_cost_seconds,
            self.prefill_seconds,
            self.confirm_seconds,
        )
        return sum(parts)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for the journal and `--plan --json`."""
        return asdict(self) | {"total_seconds": self.total_seconds}


def families(engine: Engine, k: int) -> list[Strategy]:
    """One strategy per model drafter at this k, in the order the drafters were given."""
    return [
        Strategy(method=info.method, drafter=name, num_speculative_tokens=k) for name, info in engine.drafters.items()
    ]


def replayed(engine: Engine, k: int, temperature: float) -> list[Strategy]:
    """What model drafters are replayed with: greedy drafts, and drawn ones too where the request is sampled."""
    greedy = families(engine, k)
    return greedy if temperature == 0 else greedy + [s.drawing for s in greedy]


def step_cells(engine: Engine, workload: Workload, k_max: int, loads: Sequence[int]) -> list[StepCell]:
    """Widths 1, 2, 4, ... k_max at batch 1 for every method, fewer at larger batches; further contexts and samplings
    at the smallest and the largest batch only.
    """
    near, far = contexts(engine, workload)
    widths = sorted({k for k in (1, 2, 4, 8) if k < k_max} | {k_max})
    middle = widths[len(widths) // 2]
    few = sorted({widths[0], middle, widths[-1]})
    ngram = Strategy(method="ngram", lookup_min=2, lookup_max=4, num_speculative_tokens=1)
    drafting = (ngram, *families(engine, 1))
    ends = sorted({min(loads), max(loads)})
    cells = [
        StepCell(s, b, near, "greedy")
        for b in loads
        for s in (PLAIN, *(d.with_k(k) for d in drafting for k in (widths if b == 1 else few)))
    ]
    cells += [StepCell(s, b, far, "greedy") for s in (PLAIN, ngram.with_k(middle)) for b in ends]
    for kind in samplings(workload)[1:]:
        ways = (*drafting, *(s.drawing for s in drafting[1:]))
        two = sorted({widths[0], widths[-1]})  # what a sampler adds is linear in k
        drafted = [d.with_k(k) for d in ways for k in two]
        cells += [StepCell(s, b, near, kind) for s in (PLAIN, *drafted) for b in ends]
    return list(dict.fromkeys(cells))


def contexts(engine: Engine, workload: Workload) -> tuple[int, int]:
    """The workload's middle context (prompt and half the output, a multiple of 64) and one well beyond its longest."""
    lengths = sorted(engine.prompt_tokens(r) + r.max_tokens // 2 for r in workload.requests)
    longest = engine.target.max_model_len - 64
    near = min(longest, max(64, round(lengths[len(lengths) // 2] / 64) * 64))
    return near, min(longest, max(3 * near, -(-lengths[-1] // 64) * 64))


def samplings(workload: Workload) -> list[Sampling]:
    """Greedy, then the other kinds of sampling that the workload asks for."""
    kinds = {"greedy"}.union(sampling_kind(r.temperature, r.top_p) for r in workload.requests)
    order: tuple[Sampling, ...] = ("greedy", "temperature", "top_p")
    return [k for k in order if k in kinds]


def make_plan(
    workload: Workload,
    cells: Sequence[StepCell],
    drafters: int,
    speed: Speed,
    budget_seconds: float,
    prompts_per_class: int | None = None,
) -> Plan:
    """Fit the budget: acceptance gets 35% (or what `prompts_per_class` takes), step cost 25%, confirmation the rest."""
    classes = workload.by_class()
    tokens = sum(max(r.max_tokens for r in rs) for rs in classes.values()) / len(classes)
    record = 1.25 * tokens * speed.batch / BATCH_RECORDED  # a quarter more for prompts, padding and early stops
    sampled = sum(rs[0].temperature > 0 for rs in classes.values())
    replay = drafters * 5 * speed.one * (1 + sampled / len(classes))  # sampled classes: drawn drafts as well
    per_prompt = len(classes) * (record + replay)
    available = max(len(rs) for rs in classes.values())
    fitting = max(MIN_PROMPTS, int(SHARE_OF_ACCEPTANCE * budget_seconds / per_prompt))
    prompts = min(available, prompts_per_class or fitting)
    per_row = (speed.batch - speed.one) / (BATCH_RECORDED - 1)
    plain = {b: speed.one + per_row * (b - 1) for b in {c.batch for c in cells}}
    once = sum(STEPS_PER_CELL * plain[c.batch] * (1 + 0.06 * c.strategy.k) for c in cells)
    repeats = max(3, min(15, int(SHARE_OF_STEP_COST * budget_seconds / once)))
    prefill = (drafters + 1) * len(PREFILL_LENGTHS) * PREFILL_REPEATS * 5 * speed.one
    spent = prompts * per_prompt + repeats * once + prefill
    left = max(SHARE_OF_CONFIRMATION * budget_seconds, budget_seconds - spent)
    arm = 0.8 * tokens * speed.one
    rounds = left / (len(classes) * ARMS * arm)  # every class, all arms, one prompt, once
    repeats_confirmed = 3 if rounds >= 2.5 else 2 if rounds >= 1.7 else 1
    return Plan(
        prompts_per_class=prompts,
        step_repeats=repeats,
        confirm_seconds=left,
        confirm_prompts=max(1, round(rounds / repeats_confirmed)),
        confirm_repeats=repeats_confirmed,
        confirm_rivals=rounds >= 1,
        record_seconds=prompts * len(classes) * record,
        replay_seconds=prompts * len(classes) * replay,
        step_cost_seconds=repeats * once,
        prefill_seconds=prefill,
    )


def pick_prompts(requests: Sequence[Request], count: int, seed: int) -> list[Request]:
    """A seeded sample without repeats; growing `count` only adds prompts."""
    order = sorted(requests, key=lambda r: r.digest)
    random.Random(seed).shuffle(order)
    return order[:count]
