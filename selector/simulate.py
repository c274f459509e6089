"""Step-by-step simulation of a closed load: the slow, exact counterpart of `selector.compose`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from selector.acceptance import Acceptances, sampling_kind
from selector.profile import Profile, Sampling
from selector.stepcost import StepCosts
from selector.strategy import Strategy


@dataclass(frozen=True)
class Simulation:
    """Figures of one simulated run: requests per second of the server, mean request seconds per class."""

    requests_per_second: float
    request_seconds: dict[str, float]
    requests: int


@dataclass
class _Slot:
    """One request being decoded."""

    request_class: str
    widths: tuple[int, ...]
    emitted_per_step: float
    context: float
    sampling: Sampling
    started: float
    step: int = 0


def simulate(
    profile: Profile,
    strategy: Strategy,
    mix: Mapping[str, float],
    load: int,
    *,
    requests: int = 2000,
    seed: int = 0,
) -> Simulation:
    """Decode `requests` requests of a mix, `load` at a time in lock step, each with its own recorded walk.

    A step costs the measured seconds of its mean width, context and sampling kinds; a finished request is replaced
    by a random one of the mix whose prefill stalls all others (closed load). The first fifth of the requests warms
    the batch up and is not counted.
    """
    world = _World(profile, strategy, mix, load, seed)
    now, measured_from = 0.0, 0.0
    slots: list[_Slot] = []
    done, counted, spans = 0, 0, dict[str, list[float]]()
    while done < requests:
        while len(slots) < load:
            slot, prefill = world.draw(now)
            now += prefill
            slots.append(slot)
        now += world.step(slots)
        for slot in [s for s in slots if s.step >= len(s.widths)]:
            slots.remove(slot)
            done += 1
            if done <= requests // 5:
                measured_from = now
            else:
                counted += 1
                spans.setdefault(slot.request_class, []).append(now - slot.started)
    means = {c: float(np.mean(s)) for c, s in spans.items()}
    return Simulation(counted / (now - measured_from), means, counted)


class _World:
    """What the simulation draws from: walks per prompt, prefill seconds, step seconds by total width."""

    def __init__(self, profile: Profile, strategy: Strategy, mix: Mapping[str, float], load: int, seed: int) -> None:
        acceptances, costs = Acceptances(profile), StepCosts(profile)
        self._rng = np.random.default_rng(seed)
        self._classes = list(mix)
        self._shares = np.array([mix[c] for c in mix]) / sum(mix.values())
        self._load = load
        infos = {c.name: c for c in profile.classes}
        self._kinds = {c: sampling_kind(infos[c].temperature, infos[c].top_p) for c in mix}
        # no prompt of one token: it would finish without a step
        self._prompts = {
            c: [
                (
                    acceptances.drafted_per_step(strategy, c, r),
                    r,
                    float(costs.prefill_seconds(strategy.method, strategy.drafter, r.prompt_tokens).seconds[0]),
                )
                for r in acceptances.recordings(c)
                if r.output_tokens > 1
            ]
            for c in mix
        }
        widths = np.arange(strategy.k * load + 1) / load
        fixed = all(d == strategy.k for prompts in self._prompts.values() for steps, _, _ in prompts for d in steps)
        if fixed:
            widths = np.array([float(strategy.k)])
        self._fixed = fixed
        self._lines = {
            s: costs.line(strategy.method, strategy.drafter, widths, load, s, strategy.draft_sample_method)
            for s in set(self._kinds.values())
        }

    def draw(self, now: float) -> tuple[_Slot, float]:
        """A new request and its prefill seconds."""
        name = self._classes[int(self._rng.choice(len(self._classes), p=self._shares))]
        prompts = self._prompts[name]
        widths, r, prefill = prompts[int(self._rng.integers(len(prompts)))]
        rate = (r.output_tokens - 1) / len(widths)
        return _Slot(name, widths, rate, float(r.prompt_tokens), self._kinds[name], now), prefill

    def step(self, slots: list[_Slot]) -> float:
        """Seconds of one step of all slots, each moved one step on."""
        total = 0 if self._fixed else sum(s.widths[s.step] for s in slots)
        context = sum(s.context for s in slots) / len(slots)
        seconds = 0.0
        for kind, line in self._lines.items():
            share = sum(s.sampling == kind for s in slots) / len(slots)
            seconds += share * float(line.seconds[0, total] + line.slope[0] * (context - line.context))
        for s in slots:
            s.context += s.emitted_per_step
            s.step += 1
        return seconds
