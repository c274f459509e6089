"""Composition: acceptance per class and step costs, put together into seconds per request under load."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from selector.acceptance import Acceptances, Counts
from selector.profile import Sampling
from selector.stepcost import Array, StepCosts, StepLine
from selector.strategy import Strategy

#: Up to this batch the spread of a step's total width is convolved; above it the mean says the same.
_MAX_CONVOLVED_BATCH = 32


@dataclass(frozen=True)
class Times:
    """One strategy in one request mix at one closed load, every array [draws + 1] with the point value first.

    engine: engine seconds that one request of a class takes from the server (prefill + its share of steps);
    request: seconds from a request's start to its end; step: seconds of a step that it takes part in. `inferred`:
    acceptance or step cost stands between measured points.
    """

    engine: dict[str, Array]
    request: dict[str, Array]
    step: dict[str, Array]
    tau: dict[str, float]
    extrapolated: dict[str, bool]
    inferred: dict[str, bool]


@dataclass(frozen=True)
class _Demand:
    """What one class asks of a strategy: steps, widths, context, prefill (means over prompts, [draws + 1])."""

    steps: Array
    widths: Array  # [draws + 1, k + 1]: share of steps that draft 0..k tokens
    context: Array
    prefill: Array
    tau: float
    sampling: Sampling
    extrapolated: bool
    inferred: bool


class Composer:
    """Composes step costs with acceptance for given weights over each class's prompts.

    `weights[class]`: [draws + 1, prompts], each row sums to 1; the number of rows is that of `costs`. A joint
    bootstrap is then matrix algebra: every figure below is computed for all draws at once.
    """

    def __init__(self, acceptances: Acceptances, costs: StepCosts, weights: Mapping[str, Array]) -> None:
        self.acceptances = acceptances
        self.costs = costs
        self.weights = weights
        self._demands: dict[tuple[Strategy, str], _Demand] = {}

    def times(self, strategy: Strategy, mix: Mapping[str, float], load: int) -> Times:
        """Closed load: `load` requests decode in lock step, a finished one is replaced at its prefill cost.

        `mix`: share of requests per class. With w the shares, s the steps per request and p the prefill,

            E_c = p_c + s_c T_c / B                      engine seconds of one request of class c
            R_c = p_c + s_c (T_c + (B - 1) mean(p) / mean(s))     request seconds (others' prefills stall it)

        where T_c is the mean step of a class-c request with B - 1 others of the mix; sum(w R) = B sum(w E) up to
        the steps' spread (Little's law). Raises `NotMeasured` for a cell outside the step costs.
        """
        demands = {c: self._demand(strategy, c) for c in mix}
        total = sum(mix.values())
        shares = {c: w / total if total else 1 / len(mix) for c, w in mix.items()}
        steps = _sum(shares[c] * d.steps for c, d in demands.items())
        prefill = _sum(shares[c] * d.prefill for c, d in demands.items())
        slots = {c: shares[c] * d.steps / np.maximum(steps, 1e-12) for c, d in demands.items()}
        lines = self._lines(strategy, demands, load)
        spreads = _spreads(demands, slots, load, next(iter(lines.values())).seconds.shape[1])
        stall = (load - 1) * prefill / np.maximum(steps, 1e-12)
        out = Times({}, {}, {}, {}, {}, {})
        for c, own in demands.items():
            step = self._step(own, demands, slots, lines, spreads[c], load)
            out.step[c] = step
            out.engine[c] = own.prefill + own.steps * step / load
            out.request[c] = own.prefill + own.steps * (step + stall)
            out.tau[c] = own.tau
            out.extrapolated[c] = own.extrapolated or any(
                line.extrapolated or line.is_outside(float(own.context[0])) for line in lines.values()
            )
            out.inferred[c] = own.inferred or any(line.inferred for line in lines.values())
        return out

    def _demand(self, strategy: Strategy, request_class: str) -> _Demand:
        key = (strategy, request_class)
        if key not in self._demands:
            counts = self.acceptances.counts(strategy, request_class)
            self._demands[key] = self._weigh(strategy, counts, self.weights[request_class])
        return self._demands[key]

    def _weigh(self, strategy: Strategy, counts: Counts, weights: Array) -> _Demand:
        steps = weights @ counts.steps
        safe = np.maximum(steps, 1e-12)
        middle = counts.prompt_tokens + counts.output_tokens / 2
        nodes, seconds, flag = self.costs.prefill_weights(strategy.method, strategy.drafter, counts.prompt_tokens)
        point = weights[0]
        emitted = float(point @ (counts.output_tokens - 1))
        return _Demand(
            steps=steps,
            widths=(weights @ counts.widths) / safe[:, None],
            context=(weights @ (counts.steps * middle)) / safe,
            prefill=np.sum((weights @ nodes) * seconds, axis=1),
            tau=emitted / float(steps[0]) if steps[0] else 1.0,
            sampling=counts.sampling,
            extrapolated=flag,
            inferred=counts.inferred,
        )

    def _lines(self, strategy: Strategy, demands: Mapping[str, _Demand], load: int) -> dict[Sampling, StepLine]:
        """The step cost at every mean width the batch can have, per sampling kind in the mix."""
        widths = np.arange(strategy.k * load + 1) / load
        if all(_is_fixed(d) for d in demands.values()):
            widths = np.array([float(strategy.k)])
        elif load > _MAX_CONVOLVED_BATCH:
            widths = np.linspace(0, strategy.k, 8 * strategy.k + 1)
        kinds = {d.sampling for d in demands.values()}
        return {
            s: self.costs.line(strategy.method, strategy.drafter, widths, load, s, strategy.draft_sample_method)
            for s in kinds
        }

    def _step(
        self,
        own: _Demand,
        demands: Mapping[str, _Demand],
        slots: Mapping[str, Array],
        lines: Mapping[Sampling, StepLine],
        spread: Array,
        load: int,
    ) -> Array:
        """Mean seconds of a step with one request of this class and load - 1 of the mix."""
        others = load - 1
        context = (own.context + others * _sum(slots[c] * d.context for c, d in demands.items())) / load
        step = np.zeros(len(own.steps))
        for kind, line in lines.items():
            share = _sum(slots[c] for c, d in demands.items() if d.sampling == kind)
            step = step + (float(own.sampling == kind) + others * share) / load * np.sum(
                spread * line.at(context), axis=1
            )
        return step


def _spreads(demands: Mapping[str, _Demand], slots: Mapping[str, Array], load: int, n: int) -> dict[str, Array]:
    """Per class, the probability [draws + 1, n] of each mean width: one of its requests with load - 1 of the mix."""
    if n == 1:
        return {c: np.ones((len(d.steps), 1)) for c, d in demands.items()}
    if load == 1:
        return {c: d.widths for c, d in demands.items()}
    mixed = _sum(slots[c][:, None] * d.widths for c, d in demands.items())
    if load > _MAX_CONVOLVED_BATCH:
        return {c: _around_mean((d.widths + (load - 1) * mixed) / load, n) for c, d in demands.items()}
    size = 1 << (n - 1).bit_length()  # a power of two is what the transform is fast at
    others = np.fft.rfft(mixed, size, axis=1) ** (load - 1)
    spreads = {c: np.fft.irfft(np.fft.rfft(d.widths, size, axis=1) * others, size, axis=1) for c, d in demands.items()}
    return {c: _normalised(np.maximum(s[:, :n], 0.0)) for c, s in spreads.items()}


def _around_mean(widths: Array, n: int) -> Array:
    """All probability at the mean width, shared between its two neighbours on a grid of n."""
    k = widths.shape[1] - 1
    at = np.clip(widths @ np.arange(k + 1) * (n - 1) / k, 0, n - 1)
    return np.asarray(np.maximum(0.0, 1 - np.abs(at[:, None] - np.arange(n))))


def _normalised(spread: Array) -> Array:
    return np.asarray(spread / np.maximum(spread.sum(axis=1, keepdims=True), 1e-12))


def _is_fixed(demand: _Demand) -> bool:
    return not demand.widths[:, :-1].any()


def _sum(terms: Iterable[Array]) -> Array:
    return np.asarray(sum(terms))


def uniform_weights(acceptances: Acceptances) -> dict[str, Array]:
    """Every prompt of a class counts the same; shape [1, prompts]."""
    return {c: np.full((1, n), 1 / n) for c, n in acceptances.prompts.items()}


def bootstrap_weights(acceptances: Acceptances, draws: int, seed: int) -> dict[str, Array]:
    """Weights [draws + 1, prompts] per class: row 0 uniform, then prompts drawn with replacement.

    All strategies and plain decoding share them, which pairs the comparison.
    """
    rng = np.random.default_rng(seed)
    uniform = uniform_weights(acceptances)
    return {
        c: np.concatenate([uniform[c], rng.multinomial(n, np.full(n, 1 / n), size=draws) / n])
        for c, n in acceptances.prompts.items()
    }
