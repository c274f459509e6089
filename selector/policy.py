"""The policy: what was decided, per pool and per request class. Plain data; loading it runs nothing."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, ValidationError, model_validator

from selector.errors import PolicyError
from selector.profile import DrafterInfo, EngineInfo, ModelInfo, read_json
from selector.strategy import Frozen, Strategy
from selector.workload import first_problem

POLICY_SCHEMA: Literal[1] = 1
#: Where a figure comes from, firmest first. inferred: composed from acceptance or step costs between measured points.
Basis = Literal["measured", "composed, checked", "composed", "inferred", "extrapolated"]
BASES: tuple[Basis, ...] = get_args(Basis)
#: Sums of shares may end a rounding error above 1.
Share = Annotated[float, Field(ge=0, le=1 + 1e-9)]
Objective = Literal["latency", "throughput"]


class Estimate(Frozen):
    """A ratio against plain decoding with its 95% interval and where it comes from."""

    value: float
    low: float
    high: float
    basis: Basis

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.low <= self.high:
            raise ValueError(f"low {self.low:g} is above high {self.high:g}")
        return self


class Pool(Frozen):
    """Servers that share one engine config.

    `schedule`: k by batch size as (first, last, k), both ends inclusive, from 1 to `max_batch`; None: fixed k.
    """

    name: Annotated[str, Field(min_length=1)]
    strategy: Strategy
    schedule: tuple[tuple[int, int, int], ...] | None = None
    expected_batch: Annotated[float, Field(gt=0)]
    max_batch: Annotated[int, Field(ge=1, le=1_000_000)]
    max_context_tokens: Annotated[int, Field(ge=1)]
    memory_bytes: Annotated[int, Field(ge=0)]
    traffic_share: Share
    server_share: Share
    base_url: str | None = None

    @model_validator(mode="after")
    def _schedule_covers(self) -> Self:
        if self.schedule is None:
            return self
        expected = 1
        for first, last, k in self.schedule:
            if first != expected or last < first or not 0 <= k <= self.strategy.k:
                raise ValueError(
                    f"schedule entry {(first, last, k)}: ranges must follow each other from 1, "
                    f"k within 0..{self.strategy.k}"
                )
            expected = last + 1
        if expected != self.max_batch + 1:
            raise ValueError(f"schedule ends at {expected - 1}, max_batch is {self.max_batch}")
        return self

    def k_at(self, batch: int) -> int:
        """k this pool uses at a batch size; the last range carries on beyond `max_batch`, as in vLLM."""
        if self.schedule is None:
            return self.strategy.k
        for first, last, k in self.schedule:
            if first <= batch <= last:
                return k
        return self.schedule[-1][2]


class ClassDecision(Frozen):
    """What one request class gets."""

    request_class: str
    task: str
    temperature: Annotated[float, Field(ge=0)]
    top_p: Annotated[float, Field(gt=0, le=1)]
    traffic_share: Share
    pool: str
    num_speculative_tokens: Annotated[int, Field(ge=0, le=128)]
    speedup: Estimate
    tau: float
    break_even_tau: float
    own_best: Strategy
    own_best_speedup: Estimate
    tie_set: tuple[str, ...]
    looping_share: Share
    speedup_without_loops: float | None
    reason: str


class Regret(Frozen):
    """How much of the objective the choice may lose against the best cell considered."""

    p95: float
    cells_considered: int
    cells_measured: int
    composition_error: float | None
    not_considered: tuple[str, ...] = ()


class PoolPlan(Frozen):
    """What another number of pools would give, with the same total number of servers."""

    pools: int
    assignment: dict[str, str]
    strategies: dict[str, Strategy]
    gain: Estimate
    tie: bool


class Classifier(Frozen):
    """A linear text classifier as plain numbers: see `selector.classify`."""

    classes: tuple[str, ...]
    buckets: int
    max_chars: int
    idf: tuple[float, ...]
    weights: tuple[tuple[float, ...], ...]
    bias: tuple[float, ...]
    min_confidence: float
    cross_validated_accuracy: float
    trained_on: int
    confusion: tuple[tuple[int, ...], ...]


class Policy(Frozen):
    """Everything `Router` and the exporters need; read with `load_policy`."""

    schema_version: Literal[1] = POLICY_SCHEMA
    target: ModelInfo
    engine: EngineInfo
    drafters: dict[str, DrafterInfo]
    objective: Objective
    load: Annotated[int, Field(ge=1)]
    pools: Annotated[tuple[Pool, ...], Field(min_length=1)]
    classes: tuple[ClassDecision, ...]
    fallback_pool: str
    speedup: Estimate
    regret: Regret
    alternatives: tuple[PoolPlan, ...] = ()
    aa_noise: Annotated[float, Field(ge=0)]
    classifier: Classifier | None = None
    notes: tuple[str, ...] = ()
    profile_fingerprint: str
    selector_version: str
    command: str
    created: str

    @model_validator(mode="after")
    def _names_resolve(self) -> Self:
        names = [p.name for p in self.pools]
        if len(set(names)) != len(names):
            raise ValueError(f"pool names repeat: {names}")
        wanted = {"fallback_pool": self.fallback_pool} | {
            f"classes.{c.request_class}.pool": c.pool for c in self.classes
        }
        for key, name in wanted.items():
            if name not in names:
                raise ValueError(f"{key} is {name!r}, which is not a pool ({', '.join(names)})")
        for p in self.pools:
            if p.strategy.drafter is not None and p.strategy.drafter not in self.drafters:
                raise ValueError(f"pool {p.name!r} uses drafter {p.strategy.drafter!r}, which 'drafters' does not hold")
        return self

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the policy's content (16 hex digits)."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]

    def pool(self, name: str) -> Pool:
        """The pool of that name; raises `PolicyError` when there is none."""
        for p in self.pools:
            if p.name == name:
                return p
        raise PolicyError(f"no pool {name!r} in this policy; there are {', '.join(p.name for p in self.pools)}")


def load_policy(path: str | Path) -> Policy:
    """Read a policy file; raises `PolicyError` naming the file and the key."""
    return parse_policy(read_json(path, POLICY_SCHEMA, PolicyError), str(path))


def parse_policy(data: dict[str, Any], source: str = "policy") -> Policy:
    """Validate a policy given as plain data; raises `PolicyError` naming the key."""
    try:
        return Policy.model_validate(data)
    except ValidationError as error:
        raise PolicyError(f"{source}: {first_problem(error)}") from error
