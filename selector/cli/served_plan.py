"""What a person reads of a served measurement's plan."""

from __future__ import annotations

from selector.cli.summary import drafters_text
from selector.measure.served import ServedMeasurement


def served_plan_text(run: ServedMeasurement) -> str:
    """The launches with what each visits, and minutes per part."""
    plan, settings = run.plan(), run.settings
    classes = len(run.workload.by_class())
    lines = ["launches"]
    for launch in run.scope.launches:
        visits = ", ".join(f"batch {b}: k = {k}" for b, k in launch.visits.items() if k) or "the floor"
        lines.append(
            f"  {launch.name}: {visits}; {len(run.scope.probes[launch.name])} steps x {plan.step_repeats} repeats"
        )
    lines += [f"  not {what}: {reason}" for what, reason in run.scope.unavailable.items()]
    if settings.confirm:
        lines.append(f"  the likeliest {plan.confirm_launches} at a fixed k, then plain decoding again (A/A)")
    loads = " and ".join(str(n) for n in sorted({min(settings.loads), max(settings.loads)}))
    rows = [
        (f"{plan.launches} starts", plan.launches * plan.launch_seconds),
        (f"plain outputs   {plan.prompts_per_class} prompts x {classes} classes", plan.record_seconds),
        ("acceptance      the same prompts, on every launch with a drafter", plan.live_seconds),
        ("step and prefill cost", plan.step_seconds),
    ]
    if settings.confirm:
        rows.append(
            (
                f"confirmation    {plan.confirm_prompts} prompts x {classes} classes at load {loads}",
                plan.confirm_seconds,
            )
        )
    lines += ["", *(f"{seconds / 60:6.1f} min  {text}" for text, seconds in rows)]
    lines.append(f"{plan.total_seconds / 60:6.1f} min  in all (estimated: nothing was started)")
    return "\n".join([*lines, *drafters_text(run.servers.drafters)])
