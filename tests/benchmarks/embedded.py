"""Prints the embedded model's figures from a recorded profile: tau by k, composed against measured, time by stage.

selector profile --budget 35m --out embedded.profile.json
python -m tests.benchmarks.embedded embedded.profile.json > docs/benchmarks/embedded.md
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator
from statistics import median

import numpy as np

from selector.acceptance import Acceptances
from selector.compose import Composer
from selector.profile import ConfirmedCell, Profile, load_profile
from selector.recommend.arena import Arena
from selector.stepcost import StepCosts
from selector.strategy import PLAIN, Strategy
from selector.walks import Walk, decode, pooled_tau, walk
from tests.benchmarks.header import header


def main(path: str) -> None:
    """Print the page."""
    profile = load_profile(path)
    p = profile.provenance
    print("# The embedded model, measured\n")
    print(header(profile.engine, p.command, profile.hardware, p.started[:10]))
    print(f"\nThis page: `python -m tests.benchmarks.embedded PROFILE`. {_extent(profile)}\n")
    for section in (taus, confirmed, reasons, stages):
        print("\n".join(section(profile)), end="\n\n")


def _extent(profile: Profile) -> str:
    loops = sum(r.looping for r in profile.recordings) / len(profile.recordings)
    prompts = ", ".join(f"{c.name} {c.prompts}" for c in profile.classes)
    return f"Prompts per class: {prompts}. {loops:.0%} of the plain outputs end in an exact repeat (a loop)."


def taus(profile: Profile) -> Iterator[str]:
    """tau(k) of every class and family, with and without looping outputs."""
    ks = range(1, profile.k_max + 1)
    yield "## Tokens per step, tau(k)\n"
    yield "Pooled over prompts (ratio of totals), bonus token included; `(no loops)`: without looping outputs.\n"
    yield "| class | drafter | " + " | ".join(f"k={k}" for k in ks) + " |"
    yield "|---|---|" + "---|" * len(ks)
    loops = {(r.request_class, r.id) for r in profile.recordings if r.looping}
    for c in profile.classes:
        for family in dict.fromkeys(r.family for r in profile.replays):
            for kept in (False, True):
                rows = [_walks(profile, c.name, family, k, loops if kept else set()) for k in ks]
                if not rows[0] or (kept and not any(name == c.name for name, _ in loops)):
                    continue
                values = " | ".join(f"{pooled_tau(ws):.2f}" for ws in rows)
                yield f"| {c.name}{' (no loops)' if kept else ''} | {family} | {values} |"


def _walks(profile: Profile, name: str, family: str, k: int, left_out: set[tuple[str, str]]) -> list[Walk]:
    return [
        walk(decode(r.accepted), k, None if r.proposed is None else decode(r.proposed))
        for r in profile.replays
        if r.request_class == name and r.family == family and r.accepted and (name, r.id) not in left_out
    ]


def confirmed(profile: Profile) -> Iterator[str]:
    """Composed against measured tokens/s at every confirmed cell, gains and losses alike."""
    yield "## Composed against measured, load 1\n"
    yield (
        "Composed from acceptance and step cost alone, nothing fitted to these runs. tokens/s over prefill and decode "
        "of the prompts that were run; speedup against plain decoding of the same prompts, interleaved. loops: how "
        "many of the prompts loop when decoded plainly, where every drafter shines.\n"
    )
    columns = [
        "class", "strategy", "prompts x repeats", "loops", "measured tok/s", "composed tok/s", "error",
        "measured speedup", "composed", "spread of repeats",
    ]  # fmt: skip
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    errors, ratios, losses = [], [], 0
    cells = [c for c in profile.confirmed if c.arm == "main"]
    for cell in sorted(cells, key=lambda c: (c.request_class, c.strategy.family)):
        plain = next(c for c in cells if c.request_class == cell.request_class and c.strategy == PLAIN)
        real, made = _rate(cell), _composed(profile, cell)
        speedup, guess = real / _rate(plain, cell), made / _composed(profile, plain, cell)
        errors.append(made / real - 1)
        if cell.strategy != PLAIN:
            ratios.append(abs(guess / speedup - 1))
            losses += speedup < 1
        prompts, repeats = len({r.id for r in cell.runs}), len({r.repeat for r in cell.runs})
        yield (
            f"| {cell.request_class} | {cell.strategy.label} | {prompts} x {repeats} | {_loops(profile, cell)} | "
            f"{real:.1f} | {made:.1f} | "
            f"{made / real - 1:+.1%} | {speedup:.2f}x | {guess:.2f}x | {_spread(cell):.1%} |"
        )
    yield (
        f"\nMean absolute error: tokens/s {sum(map(abs, errors)) / len(errors):.1%} over {len(errors)} cells "
        f"(signed mean {sum(errors) / len(errors):+.1%}, worst {max(errors, key=abs):+.1%}); "
        f"speedup {sum(ratios) / len(ratios):.1%} over {len(ratios)} cells "
        f"(worst {max(ratios):.1%}). {losses} of {len(ratios)} confirmed strategies lost to plain decoding. "
        f"A/A noise band of plain against plain: +-{profile.aa_noise:.1%}."
    )


def _loops(profile: Profile, cell: ConfirmedCell) -> str:
    """How many of the cell's prompts have a plain output that ends in an exact repeat."""
    loops = {r.id for r in profile.recordings if r.looping and r.request_class == cell.request_class}
    count = len({r.id for r in cell.runs} & loops)
    return f"{count} of them" if count else "none"


def _rate(cell: ConfirmedCell, like: ConfirmedCell | None = None) -> float:
    """Tokens per second, medians over repeats; over the prompts of `like` if given."""
    ids = {r.id for r in (like or cell).runs}
    tokens = seconds = 0.0
    for prompt in ids:
        runs = [r for r in cell.runs if r.id == prompt]
        tokens += median(r.output_tokens for r in runs)
        seconds += median(r.prefill_seconds + r.decode_seconds for r in runs)
    return tokens / seconds


def _composed(profile: Profile, cell: ConfirmedCell, like: ConfirmedCell | None = None) -> float:
    """Composed tokens per second of the recorded outputs of the prompts that were run."""
    acceptances = Acceptances(profile)

    wanted = {r.id for r in (like or cell).runs}
    ids = acceptances.ids(cell.request_class)
    weights = np.array([[float(i in wanted) for i in ids]])
    weights /= weights.sum()
    composer = Composer(acceptances, StepCosts(profile), {cell.request_class: weights})
    seconds = composer.times(cell.strategy, {cell.request_class: 1.0}, 1).request[cell.request_class][0]
    outputs = {r.id: r.output_tokens for r in profile.recordings if r.request_class == cell.request_class}
    return float(sum(outputs[i] for i in wanted) / len(wanted) / seconds)


def _spread(cell: ConfirmedCell) -> float:
    """Median over prompts of (max - min) / median of the repeats' seconds; 0 with one repeat."""
    spreads = []
    for prompt in {r.id for r in cell.runs}:
        times = [r.prefill_seconds + r.decode_seconds for r in cell.runs if r.id == prompt]
        spreads.append((max(times) - min(times)) / median(times))
    return median(spreads)


def reasons(profile: Profile) -> Iterator[str]:
    """Per class, each method's best k: tau against break-even tau says why it wins or loses."""
    arena = Arena(profile, "throughput", 1, 200, 0)
    yield "## Why: tau against break-even, load 1\n"
    yield "Break-even tau is T(k)/T0, the step's cost in plain steps: a method wins where its tau is higher.\n"
    yield "Each family at its best k.\n"
    yield "| class | strategy | tau | break-even tau | speedup [95%] | basis |"
    yield "|---|---|---|---|---|---|"
    for name in arena.classes:
        mix = {name: 1.0}
        for family in arena.acceptances.families:
            own = [s for s in arena.candidates if s.family == family]
            best: Strategy = max(own, key=lambda s: float(arena.value(s, mix)[0]))
            value = arena.speedup(best, arena.value(best, mix), mix)
            times, plain = arena.composer.times(best, mix, 1), arena.composer.times(PLAIN, mix, 1)
            cost = float(times.step[name][0] / plain.step[name][0])
            label = f"{best.family} k={best.k}"
            yield (
                f"| {name} | {label} | {times.tau[name]:.2f} | {cost:.2f} | {value.value:.2f}x "
                f"[{value.low:.2f}, {value.high:.2f}] | {value.basis} |"
            )


def stages(profile: Profile) -> Iterator[str]:
    """Seconds by stage, and each step's cost in plain steps by batch."""
    yield "## Step cost in plain steps of the same batch (medians)\n"
    batches = sorted({c.batch for c in profile.step_costs})
    near = Counter(c.context for c in profile.step_costs).most_common(1)[0][0]
    cells = {
        (c.method, c.drafted, c.batch): c for c in profile.step_costs if c.context == near and c.sampling == "greedy"
    }
    yield "| step | " + " | ".join(f"batch {b}" for b in batches) + " | spread of repeats |"
    yield "|---|" + "---|" * (len(batches) + 1)
    for method, drafted in sorted({(m, d) for m, d, _ in cells}):
        row = [cells.get((method, drafted, b)) for b in batches]
        plain = [median(cells[("none", 0, b)].step_seconds) for b in batches]
        values = " | ".join(
            "" if c is None
            else f"{median(c.step_seconds) * 1000:.0f} ms" if method == "none" else f"{median(c.step_seconds) / p:.2f}"
            for c, p in zip(row, plain, strict=True)
        )  # fmt: skip
        spread = median(_mad(c.step_seconds) for c in row if c is not None)
        yield f"| {method} k={drafted} | {values} | {spread:.1%} |"
    yield "\n## Time by stage\n"
    for name, seconds in profile.provenance.seconds_by_stage.items():
        yield f"- {name}: {seconds:.0f} s"
    total = sum(profile.provenance.seconds_by_stage.values())
    yield f"- in all: {total / 60:.1f} min, after {profile.provenance.interruptions} interruptions"


def _mad(times: tuple[float, ...]) -> float:
    middle = median(times)
    return median(abs(t - middle) for t in times) / middle if not math.isnan(middle) else math.nan


if __name__ == "__main__":
    main(sys.argv[1])
