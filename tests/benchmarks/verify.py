"""Prints what the losslessness check says of broken decoders and of right ones.

Broken ones and a few right ones decode with the real embedded model; twenty more seeds with a tiny random one.

python -m tests.benchmarks.verify > docs/benchmarks/verify.md
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from selector.cli.strategies import strategies
from selector.embedded import EAGLE3_NAME, TARGET_NAME, embedded_drafters, embedded_target
from selector.engines.reference import ReferenceEngine
from selector.strategy import Strategy
from selector.verify import DEFAULT_ALPHA, DEFAULT_SETTINGS, Setting, StrategyReport, choose, verify_lossless
from selector.workload import Request, load_workload
from tests import tiny
from tests.benchmarks.header import header
from tests.sabotage import SABOTAGES

HEAD = Strategy(method="eagle3", drafter=EAGLE3_NAME, num_speculative_tokens=4)
COLD, ONE = Setting(temperature=0.4), Setting(temperature=1.0)
#: Outputs per prompt: enough places where a rejection rule is tested, and a seed that is ignored shows in two.
SAMPLES, TINY_SAMPLES = 2, 4
#: Whether drafts are drawn and the sampling under which a fault shows (None: greedy outputs are enough).
SHOWN: dict[str, Sequence[tuple[bool, Setting | None]]] = {
    "KV crop, one too many": [(False, None)],
    "KV crop, one too few": [(False, None)],
    "stale drafter state": [(False, None)],
    "bonus token lost": [(False, None)],
    "bonus token never emitted": [(False, None)],
    "stop token overrun, to the step's end": [(False, None)],
    "stop token overrun, no stop at all": [(False, None)],
    "wrong residual": [(False, ONE), (True, COLD)],
    "drawn drafts taken for greedy ones": [(True, ONE)],
    "temperature ignored in verification": [(False, COLD), (True, COLD)],
    "same random numbers at every step": [(False, ONE), (True, ONE)],
    "same random numbers at every step of all": [(False, ONE), (True, ONE)],
    "seed ignored": [(False, ONE), (True, ONE)],
    "garbage now and then": [(False, COLD), (True, COLD)],
}


def main() -> None:
    """Broken decoders first, then seeded runs of right ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--per-task", type=int, default=1, help="prompts per task where sampling is compared")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--real-runs", type=int, default=4, help="seeded runs of right adapters, embedded model")
    parser.add_argument("--without-clean", action="store_true", help="leave the right adapters on the tiny model out")
    parser.add_argument("--without-real", action="store_true", help="leave the embedded model out")
    options = parser.parse_args()
    engine = ReferenceEngine(embedded_target(), TARGET_NAME, embedded_drafters())
    print("# What the losslessness check catches", end="\n\n")
    print(header(engine.info, " ".join(["python -m tests.benchmarks.verify", *sys.argv[1:]])), end="\n\n")
    with tempfile.TemporaryDirectory() as scratch:
        small = tiny.engine(Path(scratch))
        if not options.without_clean:
            for line in clean("a tiny random model", small, 20, lambda most: tiny.requests(14), 3, TINY_SAMPLES):
                print(line, flush=True)
        for line in broken("a tiny random model", small, tiny.DRAFT, lambda most: tiny.requests(24), TINY_SAMPLES):
            print(line, flush=True)
    if options.without_real:
        return
    chosen = partial(choose, load_workload().requests, 1, options.tokens)
    print("\n".join(clean("the embedded model", engine, options.real_runs, chosen, 4, SAMPLES)), flush=True)
    shipped = load_workload().requests
    asked = partial(choose, shipped, options.per_task, seed=1)
    for line in broken("the embedded model", engine, HEAD, asked, SAMPLES):
        print(line, flush=True)


def broken(
    name: str, engine: ReferenceEngine, head: Strategy, requests: Callable[[int], list[Request]], samples: int
) -> Iterator[str]:
    """Each sabotage of `tests/sabotage.py`; `requests`: by their longest output."""
    yield from ("", f"## Broken decoders, {name}", "")
    yield (
        f"Each decodes wrongly in one way. {len(requests(64))} prompts, greedy, and {samples} samples of each at one "
        "setting where it takes that."
    )
    yield from ("", "| fault | strategy | sampling | verdict | drafter's steps | smallest corrected p | evidence |")
    yield "|---|---|---|---|---|---|---|"
    for fault, cases in SHOWN.items():
        for drawn, setting in cases:
            strategy, settings = head.drawing if drawn else head, [setting] if setting else []
            asked = requests(128 if "stop" in fault else 48)
            (found,) = verify_lossless(
                SABOTAGES[fault](engine), [strategy], asked, settings=settings, samples=samples, seed=1
            ).strategies
            say(f"{name}, {fault}, {strategy.label}: {'caught' if found.failed else 'NOT CAUGHT'}")
            sampling = f"t={setting.temperature:g}" if setting else "greedy"
            counts = ", ".join(f"{kind} {n}" for kind, n in found.evidence_counts.items()) or "–"
            caught = found.verdict if found.verdict == "not lossless" else "outputs right"
            answer = f"{caught} | {found.drafting.verdict} | {smallest(found)} | {counts}"
            yield f"| {fault} | {strategy.label} | {sampling} | {answer} |"


def clean(
    name: str, engine: ReferenceEngine, runs: int, requests: Callable[[int], list[Request]], k: int, samples: int
) -> Iterator[str]:
    """Unmodified adapters: strategies and samplings take turns, every run with a seed of its own."""
    every = strategies((), engine.drafters, k)
    yield from ("", f"## {runs} seeded runs of unmodified adapters, {name}", "")
    yield (
        f"{len(requests(0))} prompts, greedy and {samples} samples of each at one setting; alpha {DEFAULT_ALPHA:g} in "
        "a run. An alarm is a verdict of not lossless, or steps not as replayed."
    )
    yield from ("", "| seed | strategy | t / top-p | verdict | drafter's steps | smallest corrected p | tokens |")
    yield "|---|---|---|---|---|---|---|"
    alarms = 0
    for seed in range(runs):
        strategy, setting = every[seed % len(every)], DEFAULT_SETTINGS[seed % len(DEFAULT_SETTINGS)]
        start = time.monotonic()
        (found,) = verify_lossless(
            engine, [strategy], requests(seed), settings=[setting], samples=samples, seed=seed
        ).strategies
        alarms += found.failed
        say(f"{name}, seed {seed}, {strategy.label}: {found.verdict}, {time.monotonic() - start:.0f} s")
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
