"""Prints what acceptance by branch-mask replay costs, and that it equals drafting step by step.

python -m tests.benchmarks.replay > docs/benchmarks/replay.md
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median

from selector.embedded import TARGET_NAME, embedded_drafters, embedded_target
from selector.engines.base import Generation
from selector.engines.reference import ReferenceEngine
from selector.measure.plan import families, pick_prompts
from selector.strategy import PLAIN, Strategy
from selector.walks import walk
from selector.workload import Request, load_workload
from tests.benchmarks.header import header

PROMPTS_PER_CLASS, TOKENS, K, REPEATS = 1, 128, 8, 3
NGRAM = Strategy(method="ngram", lookup_min=2, lookup_max=4, num_speculative_tokens=K)
Arm = Callable[[], object]


def main() -> None:
    """Time every arm on the same recordings, interleaved, and print a Markdown page."""
    engine = ReferenceEngine(embedded_target(), TARGET_NAME, embedded_drafters())
    requests = prompts()
    plain = [engine.generate(r, PLAIN, seed=0) for r in requests]
    strategies = [NGRAM, *families(engine, K)]
    seconds: dict[str, list[float]] = {}
    for repeat in range(REPEATS):
        arms = list(arms_of(engine, requests, plain, strategies).items())
        turn = repeat % len(arms)
        for name, arm in arms[turn:] + arms[:turn]:
            start = time.perf_counter()
            arm()
            seconds.setdefault(name, []).append(time.perf_counter() - start)
            print(f"repeat {repeat + 1}/{REPEATS}: {name} {seconds[name][-1]:.1f} s", file=sys.stderr, flush=True)
    print(page(engine, seconds, sum(len(g.output_ids) for g in plain), len(plain)))
    print(equality(engine, requests, plain, strategies))


def prompts() -> list[Request]:
    """Greedy requests of every class."""
    classes = [rs for rs in load_workload().by_class().values() if rs[0].temperature == 0]
    picked = [r for rs in classes for r in pick_prompts(rs, PROMPTS_PER_CLASS, 5)]
    return [r.model_copy(update={"max_tokens": TOKENS}) for r in picked]


def arms_of(
    engine: ReferenceEngine, requests: list[Request], plain: list[Generation], strategies: list[Strategy]
) -> dict[str, Arm]:
    """What is timed: plain decoding, and each replay at k = 8 (drawn drafts too, as if recorded at temperature 1)."""
    arms: dict[str, Arm] = {
        "plain decoding, one by one": lambda: [engine.generate(r, PLAIN, seed=0) for r in requests],
        f"plain decoding, batches of {min(8, len(requests))}": lambda: [
            engine.record(requests[i : i + 8], seed=0) for i in range(0, len(requests), 8)
        ],
    }
    for s in strategies:
        arms[f"replay {s.label}"] = lambda s=s: [engine.replay(g, s) for g in plain]  # type: ignore[misc]  # bound now
    for s in strategies[1:]:
        arms[f"replay {s.drawing.label}, as at temperature 1"] = lambda s=s: [  # type: ignore[misc]  # bound now
            engine.replay(g, s.drawing, temperature=1.0) for g in plain
        ]
    return arms


def page(engine: ReferenceEngine, seconds: dict[str, list[float]], tokens: int, outputs: int) -> str:
    """Seconds per 1,000 output tokens and the share of plain decoding, median and range over repeats."""
    first = next(iter(seconds))
    lines = [
        "# What acceptance by replay costs",
        "",
        header(engine.info, "python -m tests.benchmarks.replay"),
        "",
        f"{outputs} recorded outputs of six classes, {tokens} tokens; acceptance of k = {K} at every position. "
        f"{REPEATS} repeats, arms interleaved in one process, their order turned; medians, and the range of the "
        "ratio to plain decoding of the same repeat. Replaying a head includes the target's own pass.",
        "",
        "| arm | seconds per 1,000 output tokens | share of plain decoding |",
        "|---|---|---|",
    ]
    for name, own in seconds.items():
        ratios = [a / b for a, b in zip(own, seconds[first], strict=True)]
        lines.append(
            f"| {name} | {1000 * median(own) / tokens:.2f} | {median(ratios):.1%} "
            f"({min(ratios):.1%} to {max(ratios):.1%}) |"
        )
    return "\n".join(lines)


def equality(
    engine: ReferenceEngine, requests: list[Request], plain: list[Generation], strategies: list[Strategy]
) -> str:
    """Live decoding with each strategy at every k against the walk of its one replay."""
    lines = [
        "",
        f"Live steps against the walk of the replay at k = {K} (drafted and accepted counts of every step):",
        "",
    ]
    lines += ["| strategy | runs | steps | runs that differ |", "|---|---|---|---|"]
    for s in strategies:
        runs = steps = wrong = 0
        ks: set[int] = set()
        for i, (request, g) in enumerate(zip(requests, plain, strict=True)):
            k = 1 + i % K
            ks.add(k)
            replayed = engine.replay(g, s)
            live = engine.generate(request, s.with_k(k), seed=0)
            walked = walk(replayed.accepted, k, replayed.proposed)
            runs, steps = runs + 1, steps + live.decode_steps
            wrong += live.output_ids != g.output_ids or walked.accepted_per_step != live.accepted_per_step
        lines.append(f"| {s.with_k(1).family}, k = {min(ks)}..{max(ks)} | {runs} | {steps} | {wrong} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
