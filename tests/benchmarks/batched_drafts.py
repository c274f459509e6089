"""Prints whether model drafters in a batch of real vLLM decode what they decode alone: outputs, and accepted counts.

Four requests at a time, greedy ones alone and mixed with sampled ones, asynchronous scheduling on and off. The accepted
count of every step of every greedy request is compared with the walk of our own replay.

SELECTOR_VLLM=PATH python -m tests.benchmarks.batched_drafts > docs/benchmarks/batched-drafts.md
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from selector.embedded import TARGET_NAME, embedded_drafters, embedded_target
from selector.engines.base import Generation
from selector.engines.reference import ReferenceEngine
from selector.engines.served.base import OpenServer
from selector.engines.served.command import find_launcher
from selector.engines.served.load_result import Finished
from selector.engines.served.options import ServeOptions, engine_args
from selector.engines.served.vllm import VllmServers
from selector.errors import ServerFailed
from selector.measure.plan import pick_prompts
from selector.measure.served.probes import decode_all, taking_turns
from selector.strategy import Strategy
from selector.walks import walk
from selector.workload import Request, load_workload
from tests.benchmarks.header import header

CONCURRENCY, PROMPTS, SAMPLED = 4, 6, "chat, t=0.8"
GREEDY = ("chat", "math")
STRATEGIES = (
    Strategy(method="eagle3", drafter="eagle3-smollm2-135m", num_speculative_tokens=3),
    Strategy(method="draft_model", drafter="draft2-smollm2-135m", num_speculative_tokens=2),
)
Outputs = dict[str, Generation]


def main() -> None:
    """A server per strategy and kind of scheduling; a Markdown table at the end."""
    engine = ReferenceEngine(embedded_target(), TARGET_NAME, embedded_drafters())
    by_class = load_workload().by_class()
    prompts = {name: pick_prompts(by_class[name], PROMPTS, 0) for name in (*GREEDY, SAMPLED)}
    greedy = {name: prompts[name] for name in GREEDY}
    requests = [r for rs in greedy.values() for r in rs]
    outputs = {r.digest: g for r, g in zip(requests, engine.record(requests, seed=0), strict=True)}
    rows = []
    for strategy in STRATEGIES:
        for scheduling in ("async-scheduling", "no-async-scheduling"):
            for mix, wanted in (("greedy", greedy), ("with sampled", prompts)):
                row = _row(engine, strategy, scheduling, wanted, outputs)
                rows.append(f"| {strategy.label} | {scheduling} | {mix} | {row} |")
                print(rows[-1], file=sys.stderr, flush=True)
    print("# Model drafters in a batch of vLLM\n")
    print(header(engine.info, "python -m tests.benchmarks.batched_drafts"), end="\n\n")
    print(
        f"vLLM 0.32.0 on CPU, float32, enforce_eager, {CONCURRENCY} requests at a time, a server a row; "
        f"{len(requests)} greedy prompts of {' and '.join(GREEDY)}, with sampled: {PROMPTS} of {SAMPLED} between them. "
        "Steps are compared up to the output's last one, where the engine may count less; of outputs unlike plain "
        "decoding's up to the first step that differs.\n"
    )
    print("| strategy | scheduling | batch | failed | outputs equal | steps until the first unlike replay | of |")
    print("|---|---|---|---|---|---|---|")
    print("\n".join(rows))


def _row(
    engine: ReferenceEngine, strategy: Strategy, scheduling: str, wanted: dict[str, list[Request]], outputs: Outputs
) -> str:
    """Failed greedy requests, equal outputs, and agreeing steps of all."""
    failed, equal, agreed, steps = 0, 0, 0, 0

    def done(_: str, request: Request, finished: Finished) -> None:
        nonlocal failed, equal, agreed, steps
        if request.temperature > 0:  # some prompts are asked both ways
            return
        answer, ours = finished.answer, outputs[request.digest]
        if answer is None:
            failed += 1
            return
        equal += list(answer.output_ids or ()) == list(ours.output_ids)
        replayed = walk(engine.replay(ours, strategy).accepted, strategy.k).accepted_per_step[:-1]
        steps += len(replayed)
        agreed += _agreeing(answer.accepted_per_step or (), replayed)

    try:
        with _server(strategy, scheduling) as server:
            decode_all(server, list(taking_turns(wanted)), CONCURRENCY, 0, done, keep_full=True)
    except ServerFailed as error:
        return f"the server failed: {error} | | |"
    return f"{failed} | {equal} of {len(outputs)} | {agreed} | {steps}"


def _agreeing(seen: Sequence[int], replayed: Sequence[int]) -> int:
    """Steps before the first whose accepted count differs."""
    differs = (i for i, (a, b) in enumerate(zip(seen, replayed, strict=False)) if a != b)
    return next(differs, min(len(seen), len(replayed)))


@contextmanager
def _server(strategy: Strategy, scheduling: str) -> Iterator[OpenServer]:
    options = ServeOptions(
        dtype="float32", max_model_len=2048, engine_args=engine_args(["enforce-eager", scheduling]),
        environment={"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": "0-1", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    launcher = find_launcher(os.environ["SELECTOR_VLLM"])
    with tempfile.TemporaryDirectory() as logs:
        servers = VllmServers(
            launcher, str(embedded_target()), TARGET_NAME, embedded_drafters(), options, logs=Path(logs)
        )
        with servers.open(strategy, schedule=None, max_batch=CONCURRENCY) as server:
            yield server


if __name__ == "__main__":
    main()
