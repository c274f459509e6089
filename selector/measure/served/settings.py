"""What a served measurement was asked for, and what that means in launches, probes and minutes."""

from __future__ import annotations

from dataclasses import dataclass

from selector.engines.served.base import Servers
from selector.measure.hardware import sample_hardware
from selector.measure.plan import pick_prompts, samplings
from selector.measure.served.launches import (
    Launch,
    StepProbe,
    fixed_launch,
    measuring_launches,
    plain_launch,
    step_probes,
)  # fmt: skip
from selector.measure.served.plan import PROBE_TOKENS, ServedPlan, ServedSpeed, make_served_plan
from selector.strategy import PLAIN, Method, Strategy
from selector.workload import Request, Workload

#: Window of the n-gram launch that times steps; acceptance of every window comes from replay.
NGRAM_WINDOW = (2, 4)


@dataclass(frozen=True)
class ServedSettings:
    """`methods`: measure these only; None: n-gram lookup and every drafter's. `prompts_per_class` overrides what the
    budget would give.
    """

    budget_seconds: float = 1200.0
    k_max: int = 8
    loads: tuple[int, ...] = (1, 4)
    seed: int = 0
    prompts_per_class: int | None = None
    confirm: bool = True
    methods: tuple[Method, ...] | None = None
    command: str = ""


class Scope:
    """What will be launched and probed for a workload on some servers."""

    def __init__(self, servers: Servers, workload: Workload, settings: ServedSettings) -> None:
        self.servers, self.workload, self.settings = servers, workload, settings
        if servers.running is None:
            methods = [x for s in self.strategies() for x in measuring_launches(s, settings.loads)]
            self.launches = [plain_launch("none", settings.loads), *methods]
        else:  # each at the k it runs with; the first one writes the outputs
            order = sorted(servers.running, key=lambda s: s != PLAIN)
            self.launches = [fixed_launch(s, settings.loads) for s in order]
        self.probes = {launch.name: self._probes(launch) for launch in self.launches}

    def strategies(self) -> list[Strategy]:
        """Every method to measure, at k_max: drafters in the order given, then n-gram lookup."""
        k, wanted = self.settings.k_max, self.settings.methods
        if self.servers.running is not None:
            return [s for s in self.servers.running if s != PLAIN]
        found = [
            Strategy(method=d.method, drafter=n, num_speculative_tokens=k) for n, d in self.servers.drafters.items()
        ]
        low, high = NGRAM_WINDOW
        found.append(Strategy(method="ngram", lookup_min=low, lookup_max=high, num_speculative_tokens=k))
        return [s for s in found if wanted is None or s.method in wanted]

    def _probes(self, launch: Launch) -> list[StepProbe]:
        return step_probes(launch, *self.contexts(), samplings(self.workload))

    def contexts(self) -> tuple[int, int]:
        """The workload's middle context and three times it, in multiples of 64 tokens.

        Prompts are counted by their characters, four to a token: no tokenizer is needed, and a step's cost changes
        little over such an error.
        """
        lengths = sorted(
            sum(len(str(m.get("content"))) for m in r.chat) / 4 + 20 + r.max_tokens / 2 for r in self.workload.requests
        )
        longest = (self.servers.target.max_model_len or 1 << 20) - 2 * PROBE_TOKENS
        near = min(longest, max(64, round(lengths[len(lengths) // 2] / 64) * 64))
        return near, min(longest, 3 * near)

    def prompts(self, plan: ServedPlan) -> dict[str, list[Request]]:
        """The prompts of every class that the plan has time for."""
        by_class = self.workload.by_class()
        return {name: pick_prompts(rs, plan.prompts_per_class, self.settings.seed) for name, rs in by_class.items()}

    def plan(self, speed: ServedSpeed | None = None) -> ServedPlan:
        """What fits the budget at a speed; without one, at what the machine's memory bandwidth suggests."""
        s = self.settings
        return make_served_plan(
            self.workload, s.loads, len(self.launches) - 1, self.drafters, sum(map(len, self.probes.values())),
            speed or self._guess(), s.budget_seconds, prompts_per_class=s.prompts_per_class, confirm=s.confirm,
        )  # fmt: skip

    @property
    def drafters(self) -> int:
        """Launches with a drafter that is a model."""
        return sum(bool(launch.strategy.drafter) for launch in self.launches)

    def _guess(self) -> ServedSpeed:
        """Before any server ran: a step reads all weights once, a start takes half a minute."""
        bandwidth = sample_hardware().read_bandwidth_bytes_per_second
        step = 0.003 + 1.2 * self.servers.target.weight_bytes / bandwidth
        return ServedSpeed(launch=30.0, step=step, per_request=0.1 * step)
