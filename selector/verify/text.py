"""What a person reads of a comparison: the answer per strategy, the tests, and the evidence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from selector.verify.report import Evidence, LosslessReport, SampledTest, StrategyReport


def report_text(report: LosslessReport) -> str:
    """The whole page."""
    sampling = ", ".join(f"{s.temperature:g}/{s.top_p:g}" for s in report.settings)
    lines = [
        f"{report.target.name} in {report.engine.name} {report.engine.version}, {report.engine.dtype}: "
        f"{report.prompts} prompts, at most {report.max_tokens} tokens; sampled at temperature/top-p {sampling}, "
        f"{report.samples} outputs per prompt; seed {report.seed}; a false alarm in at most {report.alpha:g} of runs",
    ]
    if report.interrupted:
        lines.append("interrupted: this is what was found until then")
    for s in report.strategies:
        lines += ["", *_strategy(s)]
    return "\n".join(lines)


def _strategy(s: StrategyReport) -> Iterator[str]:
    g, d = s.greedy, s.drafting
    name = f"{s.strategy.label} ({s.strategy.drafter})" if s.strategy.drafter else s.strategy.label
    yield f"{name}: {s.verdict}"
    yield f"  why       {s.reason}"
    yield (
        f"  greedy    {g.prompts} outputs, {g.tokens} tokens compared: {g.equal} equal, {g.near_tie} near-tie, "
        f"{g.different} different"
    )
    rule = f"; the rejection rule at {s.first_drafts} places"
    yield f"  sampled   {s.sampled_outputs} outputs, {s.sampled_tokens} tokens{rule}{_power(s.tests)}"
    steps = f"{d.differing} of {d.steps} steps differ, {d.tolerated} may" if d.steps else "no greedy step yet"
    miscounted = f"; {d.miscounted} outputs hold other than accepted + 1 tokens per step" if d.miscounted else ""
    yield f"  drafter   steps {d.verdict}: {steps}{miscounted}{_hint(s)}"
    if s.tests:
        titles = f"{'plain':>7} {'here':>7} {'effect':>8} {'p':>8} {'corrected':>10}"
        yield f"  {'temp':>6} {'top-p':>6}  {'test':<17} {titles}"
        yield from (_test(t) for t in s.tests)
    for e in s.evidence:
        yield f"  - {_spoken(e)}"
    for kind, count in s.evidence_counts.items():
        shown = sum(e.kind == kind for e in s.evidence)
        if count > shown:
            yield f"  - {kind}: {count - shown} more"


def _power(tests: Sequence[SampledTest]) -> str:
    distances = [t.noticeable for t in tests if t.noticeable is not None]
    if not distances:
        return ": too few tokens for a test"
    least, most = min(distances), max(distances)
    return f"; a distance of {least:.2f} in the longest test, {most:.2f} in the shortest, is found 9 times in 10"


def _hint(s: StrategyReport) -> str:
    d = s.drafting
    if d.verdict != "not as replayed" or not d.differing:
        return ""
    if d.missing_bonus == d.differing:
        return "; each accepted all drafts but the last: the bonus token is missing"
    return "; the drafter drafts behind another text than the output (stale state)"


def _test(t: SampledTest) -> str:
    where = ("all", "") if t.temperature is None else (f"{t.temperature:g}", f"{t.top_p:g}")
    return (
        f"  {where[0]:>6} {where[1]:>6}  {t.statistic:<17} {t.plain_tokens:>7} {t.strategy_tokens:>7} "
        f"{t.effect:>8.3f} {t.p_value:>8.2g} {t.corrected_p:>10.2g}"
    )


def _spoken(e: Evidence) -> str:
    place = "" if e.position is None else f" at output token {e.position}"
    tokens = "" if e.got is None else f": token {e.got}" + ("" if e.expected is None else f", not {e.expected}")
    return f"{e.kind}, {e.request_class}, prompt {e.prompt}{place}{tokens}" + (f" ({e.detail})" if e.detail else "")
