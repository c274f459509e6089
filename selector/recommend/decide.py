"""Recommendation: from a profile to a policy."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path

from selector import __version__
from selector.errors import MeasurementFailed, NotMeasured
from selector.policy import ClassDecision, Estimate, Objective, Policy, Pool, PoolPlan
from selector.profile import Profile
from selector.recommend.arena import Arena
from selector.recommend.choose import regret
from selector.recommend.current import read_current
from selector.recommend.decisions import decide_class
from selector.recommend.pools import Plan, names, plan
from selector.recommend.servers import servers
from selector.recommend.text import train_classifier
from selector.recommend.traffic import traffic_shares
from selector.stepcost import StepCosts
from selector.strategy import Strategy

#: Fewer prompts of a class than this say little: a bootstrap of so few is too narrow.
FEW_PROMPTS = 5


def recommend(
    profile: Profile,
    *,
    objective: Objective = "throughput",
    load: int = 1,
    traffic: Mapping[str, float] | None = None,
    max_pools: int = 1,
    current: str | Path | None = None,
    draws: int = 400,
    seed: int = 0,
    workload: str | Path | None = None,
    command: str = "",
) -> Policy:
    """Decide a strategy per request class and pool at a closed load of `load` concurrent requests per server.

    `traffic`: request share per class or task (scaled to 1; default as in the workload). `max_pools`: pools that may
    be used; what further ones would give is listed in `alternatives` all the same. `current`: a policy or vLLM
    configuration to compare with, reported in `notes`. `draws`: joint bootstrap draws. `workload`: where the
    profile's workload lies now, for the text classifier.

    Raises `MeasurementFailed` without a plain run, `NotMeasured` for a load, class or strategy that was not measured.
    """
    _check(profile, load, max_pools)
    arena = Arena(profile, objective, load, draws, seed)
    shares, stated = traffic_shares(profile, arena.classes, traffic)
    one = plan(arena, shares, 1, seed)
    adopted, alternatives = _compare(arena, shares, one, max_pools, seed)
    classifier, why_not = train_classifier(profile, workload, seed)
    pools, notes = servers(arena, adopted, seed)
    notes = [stated, *_doubts(arena), *notes]
    if len(pools) > 1:
        group = one.groups[0]
        value = arena.speedup(group.choice.strategy, group.choice.value, shares)
        notes.append(f"one server at load {load} would run {group.choice.strategy.label}: {_spoken(value)}")
    if current is not None:
        notes.append(_gain(arena, shares, adopted, read_current(current, profile, load), str(current)))
    if why_not:
        notes.append(why_not)
    plain = arena.cost(arena.candidates[0], shares, shares)
    speedup = arena.estimate(plain / adopted.cost, adopted.basis(arena))
    if len(pools) == 1:
        speedup = arena.speedup(one.groups[0].choice.strategy, one.groups[0].choice.value, shares)
    used = {p.strategy.drafter for p in pools} | {s.drafter for a in alternatives for s in a.strategies.values()}
    return Policy(
        target=profile.target,
        engine=profile.engine,
        drafters={n: d for n, d in profile.drafters.items() if n in used},
        objective=objective,
        load=load,
        pools=tuple(pools),
        classes=_classes(arena, adopted, pools, shares),
        fallback_pool=_fallback(arena, adopted, pools, shares),
        speedup=speedup,
        regret=regret(arena, one.groups[0].choice),
        alternatives=tuple(alternatives),
        aa_noise=profile.aa_noise,
        classifier=classifier,
        notes=tuple(notes),
        profile_fingerprint=profile.fingerprint,
        selector_version=__version__,
        command=command,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def _check(profile: Profile, load: int, max_pools: int) -> None:
    if not StepCosts(profile).has_plain:
        raise MeasurementFailed("refuse to say that speculation helps: no plain run in this profile; profile again")
    if not profile.recordings:
        raise MeasurementFailed("no prompt was decoded in this profile: profile again, or resume it")
    if not min(profile.loads) <= load <= max(profile.loads):
        known = [str(n) for n in profile.loads]
        raise NotMeasured(
            f"load {load} was not measured (measured: {', '.join(known)}):"
            f" profile again with --loads {','.join([*known, str(load)])}"
        )
    if max_pools < 1:
        raise NotMeasured(f"max_pools is {max_pools}: at least one pool is needed")


def _compare(
    arena: Arena, shares: dict[str, float], one: Plan, max_pools: int, seed: int
) -> tuple[Plan, list[PoolPlan]]:
    """The plan to adopt and all alternatives; a further pool has to gain more than the tie band, for certain."""
    adopted, listed = one, []
    for count in range(2, min(max(2, max_pools), sum(w > 0 for w in shares.values())) + 1):
        candidate = plan(arena, shares, count, seed)
        gain = arena.estimate(one.cost / candidate.cost, candidate.basis(arena))
        step = arena.estimate(adopted.cost / candidate.cost, gain.basis)
        tie = step.value <= 1 + arena.band or step.low < 1 or len(candidate.groups) <= len(adopted.groups)
        pool_names = names([g.choice.strategy for g in candidate.groups])
        listed.append(
            PoolPlan(
                pools=count,
                gain=gain,
                tie=tie,
                assignment={c: n for n, g in zip(pool_names, candidate.groups, strict=True) for c in g.mix},
                strategies={n: g.choice.strategy for n, g in zip(pool_names, candidate.groups, strict=True)},
            )
        )
        if not tie and count <= max_pools:
            adopted = candidate
    return adopted, listed


def _classes(arena: Arena, adopted: Plan, pools: list[Pool], shares: dict[str, float]) -> tuple[ClassDecision, ...]:
    owner = {c: (p, g) for p, g in zip(pools, adopted.groups, strict=True) for c in g.mix}
    return tuple(
        decide_class(arena, c, shares[c], owner[c][0].name, owner[c][1].choice.strategy, owner[c][1].mix, shares)
        for c in shares
    )


def _fallback(arena: Arena, adopted: Plan, pools: list[Pool], shares: dict[str, float]) -> str:
    """Where an unknown request goes: the pool whose strategy does best on the whole traffic."""
    every = arena.candidates_for(shares)
    values = [
        float(arena.value(g.choice.strategy, shares)[0]) if g.choice.strategy in every else 0.0 for g in adopted.groups
    ]
    return pools[values.index(max(values))].name


def _gain(arena: Arena, shares: dict[str, float], adopted: Plan, running: Mapping[str, Strategy], source: str) -> str:
    """What the adopted plan gains over what runs now."""
    mixes: dict[Strategy, dict[str, float]] = {}
    for c, w in shares.items():
        mixes.setdefault(running.get(c, running[""]), {})[c] = w
    cost = sum(arena.cost(s, mix, shares) for s, mix in mixes.items())
    gain = arena.estimate(cost / adopted.cost, "composed")
    spoken = ", ".join(s.label for s in mixes)
    return f"against {source} ({spoken}): {_spoken(gain)}"


def _doubts(arena: Arena) -> list[str]:
    engine = arena.profile.engine
    if engine.name in ("reference", "fake"):
        out = [
            f"step costs and gains were measured on the {engine.name} engine; vLLM's own step costs differ:"
            " check the exported config against a plain server before relying on the gain"
        ]
    else:
        out = [f"step costs and gains were measured on {engine.name} {engine.version}"]
    few = [c for c in arena.classes if arena.acceptances.prompts[c] < FEW_PROMPTS]
    out += [f"class {c} has {arena.acceptances.prompts[c]} prompts: its interval is too narrow to trust" for c in few]
    if not arena.confirmed.checks:
        out.append("composition was not checked by any confirmed cell: its error is not in the intervals")
    if not arena.profile.provenance.complete:
        out.append("the profile is incomplete: resume it with selector profile --resume")
    return out


def _spoken(gain: Estimate) -> str:
    return f"{gain.value - 1:+.1%} [{gain.low - 1:+.1%}, {gain.high - 1:+.1%}]"
