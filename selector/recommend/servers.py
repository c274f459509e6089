"""Servers: the pools of a plan as they would be deployed."""

from __future__ import annotations

from selector.policy import Pool
from selector.profile import Profile
from selector.recommend.arena import Arena
from selector.recommend.pools import Group, Plan, names
from selector.recommend.schedule import schedule


def servers(arena: Arena, adopted: Plan, seed: int) -> tuple[list[Pool], list[str]]:
    """The pools of a plan, and what to watch out for when deploying them.

    Memory: weights of target and drafter, and their cache for `max_batch` requests of `max_context_tokens`. A pool's
    share of the servers follows its engine seconds.
    """
    profile, pools, notes = arena.profile, [], []
    max_batch, max_context = max(profile.loads), _max_context(profile)
    busy = [_engine_seconds(arena, g) for g in adopted.groups]
    for i, (name, g) in enumerate(zip(names([g.choice.strategy for g in adopted.groups]), adopted.groups, strict=True)):
        strategy, ranges, slower = schedule(arena, g.choice.strategy, g.mix, seed)
        if slower:
            notes.append(slower_note(name, slower, arena.load))
        drafter = profile.drafters.get(strategy.drafter or "")
        kv = profile.target.kv_bytes_per_token + (drafter.kv_bytes_per_token if drafter else 0)
        pools.append(
            Pool(
                name=name,
                strategy=strategy,
                schedule=ranges,
                expected_batch=arena.load,
                max_batch=max_batch,
                max_context_tokens=max_context,
                traffic_share=sum(g.mix.values()),
                server_share=busy[i] / sum(busy),
                memory_bytes=profile.target.weight_bytes
                + (drafter.weight_bytes if drafter else 0)
                + kv * max_batch * max_context,
            )
        )
    return pools, notes


def slower_note(name: str, slower: list[int], load: int) -> str:
    """Which batches decode faster plainly, and where to keep the pool because of it."""
    below, above = [b for b in slower if b < load], [b for b in slower if b > load]
    keep = f"at load {load} or below" if above and not below else f"at load {load} or above" if not above else ""
    return (
        f"pool {name}: plain decoding is faster at batch {', '.join(map(str, slower))}; keep this pool"
        f" {keep or f'at load {load}'}, or ask again with --load {slower[-1]}"
    )


def _engine_seconds(arena: Arena, group: Group) -> float:
    """Engine seconds of the group's part of one request of the traffic: servers are shared out in proportion."""
    times = arena.times(group.choice.strategy, group.mix)
    return sum(w * float(times.engine[c][0]) for c, w in group.mix.items())


def _max_context(profile: Profile) -> int:
    """The next power of two above the longest request seen, as far as the target goes (0: not known how far)."""
    longest = max(r.prompt_tokens + r.output_tokens for r in profile.recordings) + profile.k_max
    wanted = 1 << (longest - 1).bit_length()
    return min(profile.target.max_model_len or wanted, wanted)
