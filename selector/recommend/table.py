"""The answer as a table that a person reads in ten seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from selector.policy import ClassDecision, Estimate, Policy, Pool, PoolPlan
from selector.recommend.decisions import SLOWER
from selector.strategy import Strategy

_GAINS = {"throughput": "requests/s", "latency": "request speed"}


def render(policy: Policy, form: Literal["text", "md"] = "text") -> str:
    """The policy as plain text or Markdown, without a trailing newline."""
    rows = [
        ("class", "share", "its own best", "speedup", _gives(policy), "basis"),
        *(_row(c, policy) for c in policy.classes),
    ]
    table = _markdown(rows) if form == "md" else _aligned(rows)
    blocks = [
        _headline(policy),
        table,
        _loops(policy),
        _further(policy),
        [f"note: {n}" for n in policy.notes if n not in _one_server(policy)],
    ]
    if form == "md":
        return "\n\n".join("  \n".join(b) if b is not table else "\n".join(b) for b in blocks if b)
    return "\n\n".join("\n".join(b) for b in blocks if b)


def _headline(policy: Policy) -> list[str]:
    gain = f"{_percent(policy.speedup)} {_GAINS[policy.objective]}"
    if policy.speedup.value == 1:
        gain = "no speculation beats it for certain"
    if len(policy.pools) == 1:
        lines = [f"One server at load {policy.load}: {describe(policy.pools[0])}      {gain}"]
    else:
        lines = [note[0].upper() + note[1:] for note in _one_server(policy)]
        lines += [f"{len(policy.pools)} pools at load {policy.load} per server:      {gain}"]
        lines += [
            f"  {p.name}: {describe(p)}, {p.server_share:.0%} of the servers for {p.traffic_share:.0%} of the requests"
            for p in policy.pools
        ]
    r = policy.regret
    error = "not checked" if r.composition_error is None else f"error where checked: {r.composition_error:.1%}"
    which = "" if len(policy.pools) == 1 else "the one-server answer is "
    strategies = max(1, r.cells_considered // max(1, len(policy.classes)))  # each is a cell in every class
    lines.append(
        f"{which}within {max(r.p95, 0.001):.1%} of the best of {strategies} strategies considered (95%);"
        f" {r.cells_measured} of their {r.cells_considered} cells measured, the rest composed ({error})"
    )
    return lines


def _one_server(policy: Policy) -> list[str]:
    """What one server would do: comes first even where more pools were adopted."""
    return [n for n in policy.notes if len(policy.pools) > 1 and n.startswith("one server at load")]


def describe(pool: Pool) -> str:
    """A pool's strategy with its schedule: `eagle3, k = 3 up to batch 2, k = 1 up to batch 8`."""
    if pool.schedule is None:
        return describe_strategy(pool.strategy)
    head = describe_strategy(pool.strategy).rsplit(",", 1)[0]
    return head + "".join(f", k = {k} up to batch {last}" for _, last, k in pool.schedule)


def describe_strategy(strategy: Strategy) -> str:
    """`eagle3 my-head, k = 3`; plain decoding is `none (plain decoding)`."""
    return "none (plain decoding)" if strategy.k == 0 else f"{strategy.family}, k = {strategy.k}"


def _gives(policy: Policy) -> str:
    return "this server gives" if len(policy.pools) == 1 else "its pool gives"


def _row(c: ClassDecision, policy: Policy) -> tuple[str, ...]:
    best = c.own_best_speedup
    given = f"{c.speedup.value:.2f}x"
    if len(policy.pools) > 1:
        given += f" ({c.pool})"
    if c.reason.startswith(SLOWER):
        given += "  slower"
    speedup = "1.00x" if c.own_best.k == 0 else f"{best.value:.2f}x [{best.low:.2f}, {best.high:.2f}]"
    others = [t for t in c.tie_set if t != c.own_best.label]
    own = c.own_best.label
    if others:
        own += f" (ties: {', '.join(others)})" if len(others) <= 2 else f" (ties with {len(others)} others)"
    return c.request_class, f"{c.traffic_share:.0%}", own, speedup, given, c.speedup.basis


def _loops(policy: Policy) -> list[str]:
    """Looping outputs flatter every drafter: the speedups without them."""
    parts = [
        f"{c.request_class} {c.speedup_without_loops:.2f}x ({c.looping_share:.0%} loop)"
        for c in policy.classes
        if c.looping_share and c.num_speculative_tokens and c.speedup_without_loops is not None
    ]
    return [f"without looping outputs: {', '.join(parts)}"] if parts else []


def _further(policy: Policy) -> list[str]:
    return [_plan_line(p, policy) for p in policy.alternatives if p.pools > len(policy.pools)]


def _plan_line(plan: PoolPlan, policy: Policy) -> str:
    count = "a second pool" if plan.pools == 2 else f"{plan.pools} pools"
    if plan.tie:
        return f"{count}: {_percent(plan.gain)} over one server, a tie with fewer pools"
    parts = []
    for name, strategy in plan.strategies.items():
        members = [c for c, p in plan.assignment.items() if p == name]
        parts.append(f"{strategy.label} for {', '.join(members)}")
    gain = f"would add {_percent(plan.gain)}"
    if policy.objective == "latency":
        gain = f"would add {_percent(plan.gain)} request speed"
    return f"{count} ({'; '.join(parts)}) {gain} with the same number of servers      --max-pools {plan.pools}"


def _percent(e: Estimate) -> str:
    return f"{100 * (e.value - 1):+.0f}% [{100 * (e.low - 1):.0f}, {100 * (e.high - 1):.0f}]"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(w) if i == 1 else cell.ljust(w) for i, (cell, w) in enumerate(zip(r, widths, strict=True))
        ).rstrip()
        for r in rows
    ]


def _markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in r) + " |" for r in rows]
    return [lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]
