"""Per class: what it gets, what it would rather have, and why, in words."""

from __future__ import annotations

import numpy as np

from selector.compose import Composer
from selector.policy import ClassDecision
from selector.recommend.arena import Arena, Mix
from selector.recommend.choose import Choice, choose
from selector.stepcost import Array, StepCosts
from selector.strategy import PLAIN, Strategy

#: How the reason of a class begins that its pool makes slower than plain decoding.
SLOWER = "slower than plain decoding"


def decide_class(
    arena: Arena, request_class: str, share: float, pool: str, strategy: Strategy, mix: Mix, traffic: Mix
) -> ClassDecision:
    """The decision for one class in a pool of the given mix that runs `strategy` at the load asked for."""
    alone = {request_class: 1.0}
    own = choose(arena, alone)
    speedup = arena.class_speedup(strategy, request_class, mix, traffic)
    info = next(c for c in arena.profile.classes if c.name == request_class)
    looping = arena.acceptances.looping(request_class)
    return ClassDecision(
        request_class=request_class,
        task=info.task,
        temperature=info.temperature,
        top_p=info.top_p,
        traffic_share=share,
        pool=pool,
        num_speculative_tokens=strategy.k,
        speedup=arena.speedup(strategy, speedup, alone),
        tau=arena.times(strategy, alone).tau[request_class],
        break_even_tau=_break_even(arena, strategy, request_class),
        own_best=own.strategy,
        own_best_speedup=arena.speedup(own.strategy, own.value, alone),
        tie_set=tuple(s.label for s in own.ties),
        looping_share=float(looping.mean()),
        speedup_without_loops=_without_loops(arena, strategy, request_class, float(speedup[0])),
        reason=_reason(arena, request_class, strategy, own, float(speedup[0])),
    )


def _break_even(arena: Arena, strategy: Strategy, request_class: str) -> float:
    """T(k) / T0: tokens a step must emit to pay for itself."""
    alone = {request_class: 1.0}
    own, plain = (arena.times(s, alone).step[request_class][0] for s in (strategy, PLAIN))
    return float(own / plain)  # corrected by what was confirmed, as the speedup is


def _without_loops(arena: Arena, strategy: Strategy, request_class: str, speedup: float) -> float | None:
    """The speedup scaled by what composition says prompts with looping outputs add to it; None when all loop."""
    looping = arena.acceptances.looping(request_class)
    if strategy == PLAIN or not looping.any():
        return speedup
    if looping.all():
        return None
    straight = np.array([~looping], dtype=float)
    every = np.ones_like(straight)
    with_loops, without = (_composed(arena, strategy, request_class, w / w.sum()) for w in (every, straight))
    return speedup * without / with_loops


def _composed(arena: Arena, strategy: Strategy, request_class: str, weights: Array) -> float:
    composer = Composer(arena.acceptances, StepCosts(arena.profile), {request_class: weights})
    plain, own = (
        composer.times(s, {request_class: 1.0}, arena.load).engine[request_class][0] for s in (PLAIN, strategy)
    )
    return float(plain / own)


def _reason(arena: Arena, request_class: str, strategy: Strategy, own: Choice, speedup: float) -> str:
    rivals = {s: float(v[0]) for s, v in own.values.items() if s != PLAIN}
    shown = strategy if strategy != PLAIN else max(rivals, key=lambda s: rivals[s], default=PLAIN)
    if shown == PLAIN:
        return "no speculative strategy was measured"
    tau = arena.times(shown, {request_class: 1.0}).tau[request_class]
    need = _break_even(arena, shown, request_class)
    facts = f"{shown.label} emits {tau:.2f} tokens per step and needs {need:.2f} to break even"
    alone = rivals.get(shown, 1.0)
    if (tau - need) * (alone - 1) < 0:
        facts += f" in its steps, {alone:.2f}x with prefill"
    if strategy != PLAIN and speedup < min(0.995, 1 - arena.class_noise):
        facts = f"{SLOWER} here ({speedup:.2f}x): {facts}"
    if strategy == PLAIN:
        lead = "plain decoding is not beaten for certain" if own.strategy == PLAIN else "this pool decodes plainly"
        return f"{lead}: {facts} ({rivals[shown]:.2f}x)"
    if own.strategy == PLAIN:
        alone_here = f"{facts}; on a server of its own {alone:.2f}x, not for certain better than plain decoding"
        return alone_here + (f" ({speedup:.2f}x beside the other classes)" if abs(speedup - alone) > 0.005 else "")
    if own.strategy == strategy:
        others = [s.label for s in own.ties if s != strategy]
        return facts + (f"; ties with {', '.join(others)}" if others else "")
    better = float(own.value[0]) / speedup - 1
    return (
        f"{facts}; {own.strategy.label} on a server of its own would be {better:.1%} faster for it"
        if better > arena.band
        else f"{facts}; ties with its own best, {own.strategy.label}"
    )
