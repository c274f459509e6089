"""Prints where a decode step's time goes, with transformers' forward pass ("before") and with our own ("after").

python -m tests.benchmarks.where > docs/benchmarks/where.md      (--quick: few steps)
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from selector.adapters import adapter
from selector.embedded import EAGLE3_NAME, TARGET_NAME, embedded_drafters, embedded_target
from selector.engines.reference import ReferenceEngine
from selector.engines.reference.model import DecoderModel
from selector.engines.reference.stepper import Sampler, Stepper
from selector.strategy import PLAIN, Strategy
from tests.benchmarks.header import header

CONTEXT = 300
STRATEGIES = (PLAIN, Strategy(method="eagle3", drafter=EAGLE3_NAME, num_speculative_tokens=4))
PHASES = ("drafter", "target pass", "verification")
#: Operators by what they are for; anything else counts as small ones.
GROUPS = {
    "linear products": ("_linear_pointwise", "aten::mm", "aten::addmm", "aten::bmm", "aten::linear"),
    "attention": ("scaled_dot_product", "flash_attention"),
}
SMALL, OUTSIDE = "norms, rotary, elementwise, copies", "outside operators (python)"


class Watched:
    """One way to make a step, its phases timed from outside."""

    def __init__(self, label: str, target: DecoderModel, strategy: Strategy) -> None:
        self.label, self.strategy = label, strategy
        path = embedded_drafters()[strategy.drafter][1] if strategy.drafter else None
        drafter = adapter(strategy.method).drafter(target, path, strategy)
        self.stepper = Stepper(target, drafter, Sampler(), 1, CONTEXT + 4 * (strategy.k + 1))
        self.seconds: dict[str, list[float]] = defaultdict(list)
        whole: Any = self.stepper  # instance attributes in front of the methods, for this object only
        whole.target = _Proxy(target, forward=self._timed("target pass", target.forward))
        whole.sampler = _Proxy(Sampler(), verify=self._timed("verification", Sampler().verify))
        if drafter:
            whole.drafter = _Proxy(drafter, draft=self._timed("drafter", drafter.draft))

    def _timed(self, phase: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            start = time.perf_counter()
            out = call(*args, **options)
            self.seconds[phase].append(time.perf_counter() - start)
            return out

        return timed

    def step(self) -> None:
        """One step behind the same context, one draft accepted."""
        self.stepper.target.tap(self.stepper.drafter.aux_layers if self.stepper.drafter else ())
        self.stepper.pretend(CONTEXT)
        start = time.perf_counter()
        self.stepper.step(self.strategy.k, forced=min(self.strategy.k, 1))
        self.seconds["step"].append(time.perf_counter() - start)


class _Proxy:
    """The object with some of its methods replaced."""

    def __init__(self, inner: Any, **methods: Callable[..., Any]) -> None:
        self.__dict__.update(methods)
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def groups(watched: Watched, steps: int) -> dict[str, float]:
    """Milliseconds per step by group of operators, from torch's profiler (which slows small operators down)."""
    start = len(watched.seconds["step"])
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        for _ in range(steps):
            watched.step()
    found = dict.fromkeys([*GROUPS, SMALL], 0.0)
    for event in recorded.key_averages():
        name = next((g for g, parts in GROUPS.items() if any(p in event.key for p in parts)), SMALL)
        found[name] += event.self_cpu_time_total / 1000 / steps
    wall = sum(watched.seconds["step"][start:]) * 1000 / steps
    return {**found, OUTSIDE: wall - sum(found.values())}


def main(quick: bool) -> None:
    """Interleave plain steps of all four, then profile each, and print the page."""
    engine = ReferenceEngine(embedded_target(), TARGET_NAME, {})
    before = DecoderModel(embedded_target(), "float32", "cpu", lean=False)
    models = {"before": before, "after": engine.model}
    all_watched = [Watched(label, model, s) for s in STRATEGIES for label, model in models.items()]
    for _ in range(5 if quick else 40):
        for watched in all_watched:
            watched.step()
    phases = {w: {name: times[2:] for name, times in w.seconds.items()} for w in all_watched}
    profiled = {w: groups(w, 3 if quick else 20) for w in all_watched}
    print("\n".join(page(engine, phases, profiled, "python -m tests.benchmarks.where" + " --quick" * quick)))


def page(
    engine: ReferenceEngine,
    phases: dict[Watched, dict[str, list[float]]],
    profiled: dict[Watched, dict[str, float]],
    command: str,
) -> Iterator[str]:
    """Markdown lines."""
    watched = list(phases)
    names = [f"{w.strategy.method}{f' k={w.strategy.k}' if w.strategy.k else ''}, {w.label}" for w in watched]
    steps = len(phases[watched[0]]["step"])
    yield f"# Where a step's time goes\n\n{header(engine.info, command)}\n"
    yield (
        f"Greedy, batch 1, {CONTEXT} tokens of context, linear layers packed in all columns. before: transformers' "
        "forward pass of the target; after: our own.\n"
    )
    yield f"## By phase\n\nMilliseconds per step, median of {steps} steps, columns interleaved; least in brackets.\n"
    yield from _table(names)
    for phase in (*PHASES, "step"):
        yield f"| {phase} | " + " | ".join(_milliseconds(phases[w].get(phase)) for w in watched) + " |"
    yield "\n## By kind of work\n\nMilliseconds per step under torch's profiler, which itself slows small operators.\n"
    yield from _table(names)
    for kind in (*GROUPS, SMALL, OUTSIDE):
        yield f"| {kind} | " + " | ".join(f"{profiled[w][kind]:.1f}" for w in watched) + " |"


def _table(names: list[str]) -> Iterator[str]:
    yield f"| | {' | '.join(names)} |"
    yield "|---" * (len(names) + 1) + "|"


def _milliseconds(times: list[float] | None) -> str:
    return f"{median(times) * 1000:.1f} [{min(times) * 1000:.1f}]" if times else ""


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main("--quick" in sys.argv[1:])
