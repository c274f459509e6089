"""Prints what a profile of real vLLM servers holds: predicted against measured, acceptance against ours, its cost.

selector profile --engine vllm --vllm PATH --dtype float32 --engine-arg enforce-eager --max-model-len 2048 \
    --out vllm.profile.json
python -m tests.benchmarks.served vllm.profile.json > docs/benchmarks/vllm.md
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from selector.acceptance import Acceptances
from selector.compose import Composer
from selector.embedded import TARGET_NAME, embedded_drafters, embedded_target
from selector.engines.base import Generation
from selector.engines.reference import ReferenceEngine
from selector.measure.plan import pick_prompts
from selector.profile import ConfirmedCell, Profile, load_profile
from selector.stepcost import StepCosts
from selector.strategy import PLAIN, Strategy
from selector.walks import Walk, decode, pooled_tau, walk
from selector.workload import load_workload
from tests.benchmarks.header import header


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("profile", help="made by selector profile --engine vllm with the embedded model")
    options = parser.parse_args()
    profile = load_profile(options.profile)
    p = profile.provenance
    print("# vLLM as a measured engine\n")
    print(header(profile.engine, _portable(p.command), profile.hardware, p.started[:10]))
    print(f"\nThis page: `python -m tests.benchmarks.served PROFILE`. Runner {profile.engine.runner}. ", end="")
    prompts = ", ".join(f"{c.name} {c.prompts}" for c in profile.classes)
    print(f"Prompts per class: {prompts}. Between the two plain launches: +-{profile.aa_noise:.1%}.\n")
    for section in (predicted, acceptance, steps, launches, skipped):
        print("\n".join(section(profile)), end="\n\n")


def _portable(command: str) -> str:
    """The command without this machine's folders."""
    return re.sub(r"(?<= )/\S*/", "", command)


@dataclass(frozen=True)
class Row:
    """One cell: seconds per output token, measured and composed, and those of plain decoding of the same prompts."""

    cell: ConfirmedCell
    measured: float
    composed: float
    plain_measured: float
    plain_composed: float

    @property
    def error(self) -> float:
        """Of the composed speedup."""
        return (self.plain_composed / self.composed) / (self.plain_measured / self.measured) - 1


def predicted(profile: Profile) -> Iterator[str]:
    """Composed against measured at every confirmed cell, gains and losses alike."""
    rows = list(_rows(profile))
    yield "## Predicted against measured, class by load\n"
    yield (
        "Closed load of one class on a server at a fixed k. Predicted from acceptance, step and prefill cost of the "
        "measuring launches, nothing fitted to these runs. ms per token: a request's whole time, prefill included, "
        "over its output tokens (medians over the runs); speedup: against the plain server's runs of the same prompts. "
        "The plain rows are predictions too: prefill and steps put together.\n"
    )
    yield (
        "| class | load | strategy | runs | measured ms per token | predicted | error | measured speedup | predicted | "
        "error |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for r in sorted(rows, key=lambda r: (r.cell.request_class, r.cell.load, r.cell.strategy != PLAIN)):
        c = r.cell
        yield (
            f"| {c.request_class} | {c.load} | {c.strategy.label} | {len(c.runs)} | {1000 * r.measured:.1f} | "
            f"{1000 * r.composed:.1f} | {r.composed / r.measured - 1:+.1%} | {r.plain_measured / r.measured:.2f}x | "
            f"{r.plain_composed / r.composed:.2f}x | {r.error:+.1%} |"
        )
    times = [r.composed / r.measured - 1 for r in rows]
    ratios = [r.error for r in rows if r.cell.strategy != PLAIN]
    lost = sum(r.plain_measured < r.measured for r in rows if r.cell.strategy != PLAIN)
    yield (
        f"\nMean absolute error: time {_mean(times):.1%} over {len(times)} cells (signed {np.mean(times):+.1%}, worst "
        f"{max(times, key=abs):+.1%}); speedup {_mean(ratios):.1%} over {len(ratios)} cells (signed "
        f"{np.mean(ratios):+.1%}, worst {max(ratios, key=abs):+.1%}). {lost} of {len(ratios)} lost to plain decoding."
    )


def _rows(profile: Profile) -> Iterator[Row]:
    cells = {(c.request_class, c.load, c.strategy): c for c in profile.confirmed if c.arm == "main"}
    for cell in cells.values():
        plain = cells.get((cell.request_class, cell.load, PLAIN))
        if plain is not None:
            ids = {r.id for r in cell.runs} & {r.id for r in plain.runs}
            yield Row(
                cell, _per_token(cell, ids), _composed(profile, cell, cell.strategy, ids), _per_token(plain, ids),
                _composed(profile, cell, PLAIN, ids),
            )  # fmt: skip


def _per_token(cell: ConfirmedCell, ids: set[str]) -> float:
    return median((r.prefill_seconds + r.decode_seconds) / r.output_tokens for r in cell.runs if r.id in ids)


def _composed(profile: Profile, cell: ConfirmedCell, strategy: Strategy, ids: set[str]) -> float:
    acceptances = Acceptances(profile)
    known = acceptances.ids(cell.request_class)
    weights = np.array([[float(i in ids) for i in known]])
    composer = Composer(acceptances, StepCosts(profile), {cell.request_class: weights / weights.sum()})
    seconds = composer.times(strategy, {cell.request_class: 1.0}, cell.load).request[cell.request_class][0]
    outputs = [r.output_tokens for r in profile.recordings if r.id in ids and r.request_class == cell.request_class]
    return float(seconds) / float(np.mean(outputs))


def acceptance(profile: Profile) -> Iterator[str]:
    """tau of the same prompts: live in vLLM, by replay of our own plain outputs, and how many outputs are equal."""
    engine = ReferenceEngine(embedded_target(), TARGET_NAME, embedded_drafters())
    yield "## Acceptance: vLLM live against replay in the reference engine\n"
    yield (
        "tokens per step, pooled over the same prompts. Replay of *our* plain outputs; where the outputs differ "
        "(near-ties, sampling) the two walk different texts. equal: tau over the prompts whose live output has the "
        "replay's length and whose class is greedy.\n"
    )
    yield "| class | drafter | k | vLLM | replay | difference | equal | vLLM there | replay there | difference |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    by_class, seed = load_workload().by_class(), profile.provenance.seed
    for c in profile.classes:
        requests = {r.digest: r for r in pick_prompts(by_class[c.name], c.prompts, seed)}
        outputs = {i: g for i, g in zip(requests, engine.record(list(requests.values()), seed=seed), strict=True)}
        for family in dict.fromkeys(w.family for w in profile.live):
            yield from _acceptance_rows(profile, engine, c.name, family, outputs, c.temperature)


def _acceptance_rows(
    profile: Profile,
    engine: ReferenceEngine,
    name: str,
    family: str,
    outputs: dict[str, Generation],
    temperature: float,
) -> Iterator[str]:
    lengths = {r.id: r.output_tokens for r in profile.recordings if r.request_class == name}
    for k in sorted({w.k for w in profile.live if w.family == family}):
        live = {w.id: w for w in profile.live if (w.request_class, w.family, w.k) == (name, family, k)}
        drafter = next(n for n in profile.drafters if family.split()[1] == n)
        strategy = Strategy(method=profile.drafters[drafter].method, drafter=drafter, num_speculative_tokens=k)
        ours = {i: walk(engine.replay(outputs[i], strategy).accepted, k) for i in live if i in outputs}
        same = [
            i
            for i in ours
            if temperature == 0 and live[i].output_tokens == len(outputs[i].output_ids) == lengths.get(i)
        ]
        theirs = {i: _tau([live[i].accepted]) for i in live}
        both = [_tau([live[i].accepted for i in ours]), pooled_tau(list(ours.values()))]
        there = [_tau([live[i].accepted for i in same]), pooled_tau([ours[i] for i in same])] if same else None
        shown = (
            "| – | – | – |"
            if there is None
            else f"| {there[0]:.3f} | {there[1]:.3f} | {there[0] / there[1] - 1:+.1%} |"
        )
        assert theirs
        yield (
            f"| {name} | {family.split()[0]} | {k} | {both[0]:.3f} | {both[1]:.3f} | {both[0] / both[1] - 1:+.1%} | "
            f"{len(same)} of {len(ours)} {shown}"
        )


def _tau(accepted: Sequence[str]) -> float:
    counts = [a for text in accepted for a in decode(text)]
    return 1 + sum(counts) / len(counts) if counts else float("nan")


def steps(profile: Profile) -> Iterator[str]:
    """Step cost of every method in plain steps of the same batch; what was timed and what the fit says."""
    rows = [c for c in profile.step_costs if c.sampling == "greedy"]
    near = max({c.context for c in rows}, key=lambda n: sum(c.context == n for c in rows))
    cells = {(c.method, c.drafted, c.batch): c for c in rows if c.context == near}
    batches = sorted({b for _, _, b in cells})
    plain = {b: median(cells["none", 0, b].step_seconds) for b in batches if ("none", 0, b) in cells}
    yield f"## Step cost, greedy, context {near}\n"
    yield "In plain steps of the same batch (the plain row: ms); in brackets what the fit infers, the rest was timed.\n"
    yield "| step | " + " | ".join(f"batch {b}" for b in batches) + " |"
    yield "|---" * (len(batches) + 1) + "|"
    for method, drafted in sorted({(m, d) for m, d, _ in cells}):
        texts = []
        for b in batches:
            c = cells.get((method, drafted, b))
            if c is None:
                texts.append("")
                continue
            seconds = median(c.step_seconds)
            text = f"{1000 * seconds:.1f} ms" if method == "none" else f"{seconds / plain[b]:.2f}"
            texts.append(f"[{text}]" if c.inferred else text)
        yield f"| {method} k={drafted} | " + " | ".join(texts) + " |"


def launches(profile: Profile) -> Iterator[str]:
    """Minutes by stage, against running every strategy at every k and load."""
    p = profile.provenance
    families = {w.family for w in profile.live} | {r.family.split()[0] for r in profile.replays}
    spent = sum(p.seconds_by_stage.values())
    confirmed = {c.strategy for c in profile.confirmed}
    arms = len(confirmed) + any(c.arm == "aa" for c in profile.confirmed)
    whole = sum(r.prefill_seconds + r.decode_seconds for c in profile.confirmed for r in c.runs)
    busy = sum((r.prefill_seconds + r.decode_seconds) / c.load for c in profile.confirmed for r in c.runs) / arms
    started = len(set(p.seconds_by_stage) - {"confirmation"}) + arms - 1
    grid = 1 + len(families) * profile.k_max
    loads = len({c.load for c in profile.confirmed})
    each = busy * len(profile.loads) / max(1, loads)
    yield "## What it cost\n"
    for name, seconds in p.seconds_by_stage.items():
        yield f"- {name}: {seconds / 60:.1f} min"
    assert whole
    yield (
        f"- in all {spent / 60:.1f} min and {started} launches. Every method at every k up to {profile.k_max} on a "
        f"server of its own, each class at each of loads {', '.join(map(str, profile.loads))} as the confirming "
        f"launches ran them ({each:.0f} s a launch and 30 s to start), is {grid} launches and "
        f"{grid * (each + 30) / 60:.0f} min: "
        f"{started / grid:.0%} of the launches, {spent / (grid * (each + 30)):.0%} of the time."
    )


def skipped(profile: Profile) -> Iterator[str]:
    """What was not measured."""
    yield "## Not measured\n"
    yield from (f"- {s.what}: {s.reason}" for s in profile.skipped)
    if not profile.skipped:
        yield "Nothing was skipped."


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(np.abs(values)))


__all__ = ["Walk", "main"]

if __name__ == "__main__":
    main()
