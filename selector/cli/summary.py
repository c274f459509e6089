"""What a person reads of a plan and of a profile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from statistics import median

from selector.acceptance import family_strategy
from selector.live import LiveAcceptance
from selector.measure.plan import ARMS, Plan
from selector.measure.run import Measurement
from selector.profile import DrafterInfo, Profile
from selector.strategy import PLAIN, greedy_family
from selector.walks import decode, pooled_tau, walk
from selector.workload import Workload


def plan_text(plan: Plan, run: Measurement, workload: Workload) -> str:
    """Cells and minutes per stage, and what the drafters are."""
    classes, k, loads = workload.by_class(), run.settings.k_max, ", ".join(map(str, run.settings.loads))
    drafters, cells = len(run.engine.drafters), len(run.cells)
    arms = ARMS if plan.confirm_rivals else ARMS - 1
    confirmed = f"{plan.confirm_prompts} prompts x {plan.confirm_repeats} repeats x {arms} arms"
    rows = [
        (f"plain outputs   {plan.prompts_per_class} prompts x {len(classes)} classes", plan.record_seconds),
        (f"acceptance      {drafters} drafters and n-gram windows at every position, k up to {k}", plan.replay_seconds),
        (f"step cost       {cells} cells x {plan.step_repeats} repeats, loads {loads}", plan.step_cost_seconds),
        ("prefill cost", plan.prefill_seconds),
    ]
    if run.settings.confirm:
        text = f"confirmation    up to {len(classes)} classes at load 1, {confirmed}, as time allows"
        rows.append((text, plan.confirm_seconds))
    lines = [f"{seconds / 60:6.1f} min  {text}" for text, seconds in rows]
    total = sum(s for _, s in rows) / 60
    lines.append(f"{total:6.1f} min  in all (estimated from two timed steps)")
    return "\n".join([*lines, *drafters_text(run.engine.drafters)])


def drafters_text(drafters: Mapping[str, DrafterInfo]) -> list[str]:
    """What they were taken for, and what is wrong with them."""
    named = [f"{name} ({info.method})" for name, info in drafters.items()]
    return [f"drafters: {', '.join(named) or 'none'}", *_warnings(drafters)]


def profile_text(profile: Profile) -> str:
    """Per class: prompts, lengths, loops, and tau of every family at k = 4; then what a step costs."""
    families = list(dict.fromkeys([*(w.family for w in profile.live), *(r.family for r in profile.replays)]))
    k = min(4, profile.k_max)
    head = [
        "class",
        "prompts",
        "prompt",
        "output",
        "loops",
        *(f"tau({k}) {family_strategy(f, k).label.removesuffix(f' k={k}')}" for f in families),
    ]
    rows = [head]
    for c in profile.classes:
        recordings = [r for r in profile.recordings if r.request_class == c.name]
        row = [
            c.name, f"{c.prompts}/{c.prompts_available}", f"{median(r.prompt_tokens for r in recordings):.0f}",
            f"{median(r.output_tokens for r in recordings):.0f}",
            f"{sum(r.looping for r in recordings) / len(recordings):.0%}",
        ]  # fmt: skip
        row += [f"{_tau(profile, c.name, greedy_family(f) if c.temperature == 0 else f, k):.2f}" for f in families]
        rows.append(row)
    widths = [max(len(r[i]) for r in rows) for i in range(len(head))]
    table = [
        "  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(r, widths, strict=True)))
        for r in rows
    ]
    cells = [
        f"{c.request_class}: {c.strategy.label}" + (f" at load {c.load}" if c.load > 1 else "")
        for c in profile.confirmed
        if c.arm == "main" and c.strategy != PLAIN
    ]
    return "\n".join([
        *table, "", _costs(profile),
        f"A/A noise band +-{profile.aa_noise:.1%}; confirmed end to end: {'; '.join(cells) or 'nothing'}",
        *(f"skipped {s.what}: {s.reason}" for s in profile.skipped), *_warnings(profile.drafters),
    ])  # fmt: skip


def _warnings(drafters: Mapping[str, DrafterInfo]) -> list[str]:
    return [f"warning about {name}: {warning}" for name, info in drafters.items() for warning in info.warnings]


def _tau(profile: Profile, request_class: str, family: str, k: int) -> float:
    if live := [w for w in profile.live if (w.request_class, w.family) == (request_class, family)]:
        seen = LiveAcceptance(live)
        lengths = {r.id: r.output_tokens - 1 for r in profile.recordings if r.id in seen.ids}
        taus = seen.tau(min(k, seen.k_max), list(lengths))
        steps = sum(n / t for n, t in zip(lengths.values(), taus, strict=True))
        return sum(lengths.values()) / steps if steps else float("nan")
    walks = [
        walk(decode(r.accepted), k, None if r.proposed is None else decode(r.proposed))
        for r in profile.replays
        if r.request_class == request_class and r.family == family and r.accepted
    ]
    return pooled_tau(walks) if walks else float("nan")


def _costs(profile: Profile) -> str:
    """Step cost of each method at its smallest and largest width, as multiples of a plain step."""
    if not any(c.method == "none" for c in profile.step_costs):
        return "step costs were not measured"
    near = Counter(c.context for c in profile.step_costs).most_common(1)[0][0]
    rows = [c for c in profile.step_costs if (c.batch, c.sampling, c.context) == (1, "greedy", near)]
    plain = next(median(c.step_seconds) for c in rows if c.method == "none")
    parts = []
    for method in dict.fromkeys(c.method for c in rows if c.method != "none"):
        costs = {c.drafted: median(c.step_seconds) / plain for c in rows if c.method == method}
        parts.append(f"{method} " + ", ".join(f"{costs[k]:.2f}x (k={k})" for k in sorted(costs)))
    return f"plain step {plain * 1000:.0f} ms at batch 1; with speculation: " + "; ".join(sorted(parts))
