"""Prints EAGLE-3, EAGLE-1, draft model and n-gram beside each other: acceptance, tau(k), speedup and memory per class.

python -m tests.benchmarks.methods > docs/benchmarks/methods.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from statistics import median

import numpy as np

from selector.acceptance import sampling_kind
from selector.embedded import TARGET_NAME, embedded_drafters, embedded_target
from selector.engines.base import Acceptance, Generation
from selector.engines.reference import ReferenceEngine
from selector.measure.plan import families, pick_prompts
from selector.strategy import PLAIN, Strategy
from selector.walks import pooled_tau, walk
from selector.workload import Request, load_workload
from tests.benchmarks.header import header

PROMPTS, RUN_PROMPTS, TOKENS, K, REPEATS = 6, 2, 64, 8, 3
CONTEXT, STEP_WIDTHS = 256, (1, 2, 4, 8)
NGRAM = Strategy(method="ngram", lookup_min=2, lookup_max=4, num_speculative_tokens=K)
Replays = dict[tuple[str, Strategy], list[Acceptance]]
Classes = Mapping[str, list[Request]]


def main() -> None:
    """Record, replay, time steps, run end to end, print a Markdown page."""
    engine = ReferenceEngine(embedded_target(), TARGET_NAME, embedded_drafters())
    classes = {
        name: [r.model_copy(update={"max_tokens": TOKENS}) for r in pick_prompts(rs, PROMPTS, 7)]
        for name, rs in load_workload().by_class().items()
    }
    strategies = [NGRAM, *families(engine, K)]
    recorded = {name: engine.record(rs, seed=0) for name, rs in classes.items()}
    replays = replay_all(engine, classes, recorded, strategies)
    cost = step_ratios(engine, strategies)
    chosen = {key: best_k(found, cost[key[1].proposer]) for key, found in replays.items()}
    runs = run_all(engine, classes, strategies, chosen)
    print(
        "\n".join([
            *head(engine, classes),
            *acceptance_table(engine, replays, classes, strategies),
            *tau_table(replays, chosen),
            *cost_table(cost),
            *speed_table(runs, classes, strategies, chosen, replays),
            *memory_table(engine),
        ])
    )  # fmt: skip


def replay_all(
    engine: ReferenceEngine, classes: Classes, recorded: Mapping[str, list[Generation]], strategies: list[Strategy]
) -> Replays:
    """Acceptance at every position; sampled classes with drawn drafts too."""
    found: Replays = {}
    for name, rs in classes.items():
        drawn = [s.drawing for s in strategies[1:]] if rs[0].temperature > 0 else []
        for s in [*strategies, *drawn]:
            found[name, s] = [
                engine.replay(g, s, temperature=rs[0].temperature, top_p=rs[0].top_p, seed=i)
                for i, g in enumerate(recorded[name])
            ]
        say(f"replayed {name}")
    return found


def step_ratios(engine: ReferenceEngine, strategies: list[Strategy]) -> dict[str, dict[int, float]]:
    """Cost of a greedy step in plain steps, by proposer and k: medians of ratios to a plain step just before."""
    times: dict[tuple[str, int], list[float]] = {}
    for _ in range(7):
        for s in strategies:
            for k in STEP_WIDTHS:
                plain, own = (
                    engine.step_seconds(x, batch=1, context=CONTEXT, sampling="greedy", repeats=1)[0]
                    for x in (PLAIN, s.with_k(k))
                )
                times.setdefault((s.proposer, k), []).append(own / plain)
    return {s.proposer: {k: median(times[s.proposer, k]) for k in STEP_WIDTHS} for s in strategies}


def best_k(replays: list[Acceptance], cost: Mapping[int, float]) -> int:
    """argmax of tau(k) x T0 / T(k); steps without a proposal cost a plain step."""
    return max(range(1, K + 1), key=lambda k: emitted_per_plain_step(replays, cost, k))


def emitted_per_plain_step(replays: list[Acceptance], cost: Mapping[int, float], k: int) -> float:
    """Tokens per plain step's time at this k, over whole walks."""
    nodes = [0, *cost]
    values = [1.0, *cost.values()]
    walks = [walk(a.accepted, k, a.proposed) for a in replays if a.accepted]
    time = sum(float(np.interp(d, nodes, values)) for w in walks for d in w.drafted_per_step)
    return sum(w.steps + w.accepted for w in walks) / time


def run_all(
    engine: ReferenceEngine, classes: Classes, strategies: list[Strategy], chosen: Mapping[tuple[str, Strategy], int]
) -> dict[tuple[str, str], list[list[tuple[float, int]]]]:
    """(class, arm) -> per repeat, (seconds, tokens) of each prompt; arms interleaved prompt by prompt."""
    runs: dict[tuple[str, str], list[list[tuple[float, int]]]] = {}
    for repeat in range(REPEATS):
        for name, rs in classes.items():
            arms = {"none": PLAIN, "none again": PLAIN} | {
                s.family: s.with_k(k) for (c, s), k in chosen.items() if c == name
            }
            for i, r in enumerate(rs[:RUN_PROMPTS]):
                order = list(arms.items())
                turn = (repeat + i) % len(order)
                for label, s in order[turn:] + order[:turn]:
                    g = engine.generate(r, s, seed=repeat)
                    row = runs.setdefault((name, label), [[] for _ in range(REPEATS)])
                    row[repeat].append((g.prefill_seconds + g.decode_seconds, len(g.output_ids)))
            say(f"repeat {repeat + 1}/{REPEATS}: {name}")
    return runs


def head(engine: ReferenceEngine, classes: Classes) -> Iterator[str]:
    """Title and provenance."""
    yield "# EAGLE-3, EAGLE-1, draft model and n-gram on the embedded model"
    yield ""
    yield header(engine.info, "python -m tests.benchmarks.methods")
    yield ""
    yield (
        f"Acceptance: {PROMPTS} prompts per class, {len(classes)} classes, at most {TOKENS} tokens, replayed on plain "
        f"outputs. Speed: {RUN_PROMPTS} prompts per class x {REPEATS} repeats, arms interleaved in one process, order "
        "turned; prefill included; at the k that the walks and the greedy step costs below say is best for the class "
        "(drawn drafts cost more than that, and the timed prompts are among those that chose k)."
    )


def acceptance_table(
    engine: ReferenceEngine, replays: Replays, classes: Classes, strategies: list[Strategy]
) -> Iterator[str]:
    """Share of drafts accepted, two ways people quote it."""
    yield from ("", "## Acceptance", "")
    yield (
        "At position 1: share of steps whose first draft is accepted (k = 1, steps with a proposal). Of all drafts: "
        "accepted / drafted at k = 4."
    )
    yield from ("", "| class | " + " | ".join(f"{s.proposer}: 1st / all" for s in strategies) + " |")
    yield "|---|" + "---|" * len(strategies)
    for name in [*classes, "all greedy"]:
        members = [c for c in classes if c == name or (name == "all greedy" and classes[c][0].temperature == 0)]
        row = []
        for s in strategies:
            found = [a for c in members for a in replays[c, s] if a.accepted]
            one, four = ([walk(a.accepted, k, a.proposed) for a in found] for k in (1, 4))
            rates = [sum(w.accepted for w in ws) / max(1, sum(w.drafted for w in ws)) for ws in (one, four)]
            row.append(f"{rates[0]:.0%} / {rates[1]:.0%}")
        yield f"| {name} | " + " | ".join(row) + " |"


def tau_table(replays: Replays, chosen: Mapping[tuple[str, Strategy], int]) -> Iterator[str]:
    """tau(k) of every class and family."""
    yield from ("", "## tau(k): tokens per step, bonus token included", "")
    yield "| class | strategy | " + " | ".join(f"k={k}" for k in range(1, K + 1)) + " | best k |"
    yield "|---|---|" + "---|" * (K + 1)
    for (name, s), found in replays.items():
        taus = [pooled_tau([walk(a.accepted, k, a.proposed) for a in found if a.accepted]) for k in range(1, K + 1)]
        yield f"| {name} | {s.family} | " + " | ".join(f"{t:.2f}" for t in taus) + f" | {chosen[name, s]} |"


def cost_table(cost: Mapping[str, Mapping[int, float]]) -> Iterator[str]:
    """Greedy step cost at batch 1."""
    yield from ("", f"## Step cost in plain steps (batch 1, context {CONTEXT}, greedy; medians of 7)", "")
    yield "| strategy | " + " | ".join(f"k={k}" for k in STEP_WIDTHS) + " |"
    yield "|---|" + "---|" * len(STEP_WIDTHS)
    for name, own in cost.items():
        yield f"| {name} | " + " | ".join(f"{own[k]:.2f}" for k in STEP_WIDTHS) + " |"


def speed_table(
    runs: Mapping[tuple[str, str], list[list[tuple[float, int]]]],
    classes: Classes,
    strategies: list[Strategy],
    chosen: Mapping[tuple[str, Strategy], int],
    replays: Replays,
) -> Iterator[str]:
    """Ratio of tokens per second to plain decoding of the same repeat: median and range over repeats."""
    yield from ("", "## End-to-end speedup over plain decoding (tokens per second; median, range over repeats)", "")
    labels = ["none again", *dict.fromkeys(s.family for _, s in replays)]
    yield "| class | " + " | ".join(labels) + " |"
    yield "|---|" + "---|" * len(labels)
    by_family = {(c, s.family): k for (c, s), k in chosen.items()}
    for name in classes:
        row = []
        for label in labels:
            if (name, label) not in runs:
                row.append("–")
                continue
            ratios = [rate(a) / rate(b) for a, b in zip(runs[name, label], runs[name, "none"], strict=True)]
            k = f"k={by_family[name, label]}: " if (name, label) in by_family else ""
            row.append(f"{k}{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
        yield f"| {name} | " + " | ".join(row) + " |"


def rate(runs: list[tuple[float, int]]) -> float:
    """Tokens per second of one repeat."""
    return sum(n for _, n in runs) / sum(s for s, _ in runs)


def memory_table(engine: ReferenceEngine) -> Iterator[str]:
    """What each drafter adds to the target's memory."""
    yield from ("", f"## Memory ({engine.info.dtype})", "")
    yield "| | weights, MB | share of the target | KV bytes per context token | share of the target |"
    yield "|---|---|---|---|---|"
    target = engine.target
    for name, m in {"target": target, **engine.drafters}.items():
        yield (
            f"| {name} | {m.weight_bytes / 1e6:.1f} | {m.weight_bytes / target.weight_bytes:.1%} | "
            f"{m.kv_bytes_per_token:,} | {m.kv_bytes_per_token / target.kv_bytes_per_token:.1%} |"
        )
    yield from ("", "n-gram lookup holds token ids only. Sampling kinds of the classes: " + ", ".join(
        f"{name} {sampling_kind(rs[0].temperature, rs[0].top_p)}" for name, rs in load_workload().by_class().items()
    ) + ".")  # fmt: skip


def say(text: str) -> None:
    """Progress on stderr."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
