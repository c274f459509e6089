"""What a served measurement was asked for, and what that means in launches, probes and minutes."""

from __future__ import annotations

from dataclasses import dataclass

from selector.engines.served.base import Servers
from selector.errors import SelectorError
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
from selector.strategy import METHODS, MODEL_METHODS, PLAIN, Method, Strategy
from selector.workload import Request, Workload

#: Window of the n-gram launch that times steps; acceptance of every window comes from replay.
NGRAM_WINDOW = (2, 4)
#: Methods beside n-gram lookup that need no drafter of the user's.
DRAFTERLESS = tuple(m for m in METHODS if m not in MODEL_METHODS and m not in ("none", "ngram"))


@dataclass(frozen=True)
class ServedSettings:
    """`methods`: measure these only; None: n-gram lookup, every drafter's, and what needs no drafter and is seen to be
    available. `prompts_per_class` overrides what the budget would give.
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
        #: Methods that will not be measured, and why.
        self.unavailable: dict[str, str] = {}
        self._strategies = self._find()
        if servers.running is None:
            if settings.methods and not self._strategies:
                raise SelectorError("; ".join(f"--method {m}: {why}" for m, why in self.unavailable.items()))
            methods = [x for s in self._strategies for x in measuring_launches(s, settings.loads)]
            self.launches = [plain_launch("none", settings.loads), *methods]
        else:  # each at the k it runs with; the first one writes the outputs
            order = sorted(servers.running, key=lambda s: s != PLAIN)
            self.launches = [fixed_launch(s, settings.loads) for s in order]
        self.probes = {launch.name: self._probes(launch) for launch in self.launches}

    def strategies(self) -> list[Strategy]:
        """Every method to measure, at its largest k: drafters in the order given, n-gram lookup, then the others."""
        return self._strategies

    def valid_k(self) -> dict[str, tuple[int, ...]]:
        """By family, the k that its checkpoints allow, where they do not allow all up to k_max."""
        if self.servers.running is not None:
            return {}
        every = tuple(range(1, self.settings.k_max + 1))
        allowed = {s.family: self.servers.valid_k(s) for s in self._strategies}
        return {family: ks for family, ks in allowed.items() if ks != every}

    def _find(self) -> list[Strategy]:
        if self.servers.running is not None:
            return [s for s in self.servers.running if s != PLAIN]
        wanted, drafters = self.settings.methods, self.servers.drafters
        for method in wanted or ():
            if method in MODEL_METHODS and not any(d.method == method for d in drafters.values()):
                self.unavailable[method] = f"no drafter for it was given (--drafter {method}=PATH)"
        k, (low, high) = self.settings.k_max, NGRAM_WINDOW
        tried = [Strategy(method=d.method, drafter=n, num_speculative_tokens=k) for n, d in drafters.items()]
        tried.append(Strategy(method="ngram", lookup_min=low, lookup_max=high, num_speculative_tokens=k))
        tried += [Strategy(method=m, num_speculative_tokens=k) for m in DRAFTERLESS]
        found = [self._usable(s) for s in tried if wanted is None or s.method in wanted]
        return [s for s in found if s is not None]

    def _usable(self, strategy: Strategy) -> Strategy | None:
        """The strategy at the largest k that its checkpoints allow; None, and the reason kept, if it cannot run."""
        asked = strategy.method not in DRAFTERLESS or self.settings.methods is not None
        if reason := self.servers.unmet(strategy.method, asked=asked):
            self.unavailable[strategy.proposer] = reason
            return None
        allowed = self.servers.valid_k(strategy)
        return strategy.with_k(max(allowed))

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
        """Launches on which acceptance is seen live."""
        return sum(launch.live for launch in self.launches)

    def _guess(self) -> ServedSpeed:
        """Before any server ran: a step reads all weights once, a start takes half a minute."""
        bandwidth = sample_hardware().read_bandwidth_bytes_per_second
        step = 0.003 + 1.2 * self.servers.target.weight_bytes / bandwidth
        return ServedSpeed(launch=30.0, step=step, per_request=0.1 * step)
