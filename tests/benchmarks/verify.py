"""Prints what the losslessness check says of broken decoders and of right ones, on the real embedded model.

python -m tests.benchmarks.verify > docs/benchmarks/verify.md
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence

from selector.cli.strategies import strategies
from selector.embedded import EAGLE3_NAME, TARGET_NAME, embedded_drafters, embedded_target
from selector.engines.reference import ReferenceEngine
from selector.strategy import Strategy
from selector.verify import DEFAULT_ALPHA, DEFAULT_SETTINGS, Setting, StrategyReport, choose, verify_lossless
from selector.workload import load_workload
from tests.benchmarks.header import header
from tests.sabotage import SABOTAGES

HEAD = Strategy(method="eagle3", drafter=EAGLE3_NAME, num_speculative_tokens=4)
#: Which strategy shows a fault, and the sampling under which it does (None: greedy outputs are enough).
SHOWN: dict[str, Sequence[tuple[Strategy, Setting | None]]] = {
    "KV crop, one too many": [(HEAD, None)],
    "KV crop, one too few": [(HEAD, None)],
    "stale drafter state": [(HEAD, None)],
    "bonus token lost": [(HEAD, None)],
    "bonus token never emitted": [(HEAD, None)],
    "wrong residual": [(HEAD, Setting(temperature=1.0)), (HEAD.drawing, Setting(temperature=0.7))],
    "drawn drafts taken for greedy ones": [(HEAD.drawing, Setting(temperature=1.0))],
    "temperature ignored in verification": [(HEAD, Setting(temperature=0.4)), (HEAD.drawing, Setting(temperature=0.4))],
    "stop token overrun, to the step's end": [(HEAD, None)],
    "stop token overrun, no stop at all": [(HEAD, None)],
}


def main() -> None:
    """Broken decoders first, then seeded runs of right ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="seeded runs of unmodified adapters")
    parser.add_argument("--prompts", type=int, default=1, help="prompts per task in each of them")
    parser.add_argument("--tokens", type=int, default=48)
    options = parser.parse_args()
    engine = ReferenceEngine(embedded_target(), TARGET_NAME, embedded_drafters())
    print("# What the losslessness check catches", end="\n\n")
    print(header(engine.info, " ".join(["python -m tests.benchmarks.verify", *sys.argv[1:]])), end="\n\n")
    print("\n".join(broken(engine, 3, 64)), flush=True)
    print("\n".join(clean(engine, options.runs, options.prompts, options.tokens)))


def broken(engine: ReferenceEngine, prompts: int, tokens: int) -> Iterator[str]:
    """Each sabotage of `tests/sabotage.py`."""
    yield from ("## Broken decoders", "")
    yield (
        "Each decodes wrongly in one way. Greedy: one prompt per task where the fault shows in greedy outputs (two and "
        f"128 tokens for stop tokens); sampled: {prompts} prompts per task, at most {tokens} tokens, one sampling."
    )
    yield from ("", "| fault | strategy | sampling | verdict | drafter's steps | smallest corrected p | evidence |")
    yield "|---|---|---|---|---|---|---|"
    for fault, cases in SHOWN.items():
        for strategy, setting in cases:
            per_task, most = (prompts, tokens) if setting else (2, 128) if "stop" in fault else (1, tokens)
            requests = choose(load_workload().requests, per_task, most, 1)
            settings = [setting] if setting else []
            (found,) = verify_lossless(
                SABOTAGES[fault](engine), [strategy], requests, settings=settings, seed=1
            ).strategies
            say(f"{fault}, {strategy.label}: {'caught' if found.failed else 'NOT CAUGHT'}")
            sampling = f"t={setting.temperature:g}" if setting else "greedy"
            counts = ", ".join(f"{kind} {n}" for kind, n in found.evidence_counts.items()) or "–"
            caught = found.verdict if found.verdict == "not lossless" else f"{found.verdict} (outputs)"
            answer = f"{caught} | {found.drafting.verdict} | {smallest(found)} | {counts}"
            yield f"| {fault} | {strategy.label} | {sampling} | {answer} |"


def clean(engine: ReferenceEngine, runs: int, prompts: int, tokens: int) -> Iterator[str]:
    """Unmodified adapters: strategies and samplings take turns, every run with a seed and prompts of its own."""
    every = strategies((), engine.drafters, 4)
    yield from ("", f"## {runs} seeded runs of unmodified adapters", "")
    yield (
        f"{prompts} prompts per task, at most {tokens} tokens, greedy and one sampling each; alpha {DEFAULT_ALPHA:g} "
        "within a run. An alarm is a verdict of not lossless, or steps not as replayed."
    )
    yield from ("", "| seed | strategy | t / top-p | verdict | drafter's steps | smallest corrected p | tokens |")
    yield "|---|---|---|---|---|---|---|"
    alarms = 0
    for seed in range(runs):
        strategy, setting = every[seed % len(every)], DEFAULT_SETTINGS[seed % len(DEFAULT_SETTINGS)]
        start = time.monotonic()
        requests = choose(load_workload().requests, prompts, tokens, seed)
        (found,) = verify_lossless(engine, [strategy], requests, settings=[setting], seed=seed).strategies
        alarms += found.failed
        say(f"seed {seed}, {strategy.label}: {found.verdict}, {time.monotonic() - start:.0f} s")
        tokens_seen = f"{found.greedy.tokens} greedy, {found.sampled_tokens} sampled"
        answer = f"{found.verdict} | {found.drafting.verdict} | {smallest(found)} | {tokens_seen}"
        yield f"| {seed} | {strategy.label} | {setting.temperature:g} / {setting.top_p:g} | {answer} |"
    yield from ("", f"Alarms: {alarms} of {runs}.")


def smallest(found: StrategyReport) -> str:
    """Of all tests; a dash without any."""
    return f"{min(t.corrected_p for t in found.tests):.2g}" if found.tests else "–"


def say(text: str) -> None:
    """Progress on stderr."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
