"""Tokens per second of our decoding against transformers' `generate`, interleaved in one process.

python -m tests.benchmarks.speed > docs/benchmarks/speed.md

--prompts and --tokens make it longer (defaults: one prompt per class, 64 tokens), --quick shorter.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from selector.adapters import adapter
from selector.embedded import TARGET_NAME, embedded_drafters, embedded_target
from selector.engines.reference import ReferenceEngine
from selector.engines.reference.loop import decode
from selector.engines.reference.model import DecoderModel
from selector.engines.reference.stepper import Sampler
from selector.measure.plan import pick_prompts
from selector.strategy import METHODS, PLAIN, SERVED_METHODS, Method, Strategy
from selector.workload import Request, load_workload
from tests.benchmarks.speed_page import Run, page

CLASSES = ("chat", "code", "edit", "extract", "math")
REPEATS = 3
WINDOW = (2, 4)
#: A weak draft model is best at k=1 (see embedded.md), on either side.
K: dict[Method, int] = {"none": 0, "ngram": 6, "draft_model": 1, "eagle3": 4, "eagle": 4}
#: What transformers uses when the caller names no number (its lookup has no default, 10 and 2 are the generator's own).
LOOKUP_DEFAULTS = {"prompt_lookup_num_tokens": 10, "max_matching_ngram_size": 2}

Decode = Callable[[list[int]], list[int]]


@dataclass(frozen=True)
class Arm:
    """Anything that turns prompt ids into output ids. `side`: ours, ours unpacked, theirs."""

    side: str
    method: str
    setting: str
    decode: Decode


def ours(engine: ReferenceEngine, model: DecoderModel, side: str, methods: list[Method], tokens: int) -> list[Arm]:
    """Our loop with every method that has a drafter here."""
    paths = {method: (name, path) for name, (method, path) in embedded_drafters().items()}
    arms = []
    for method in methods:
        name, path = paths.get(method, (None, None))
        if method not in ("none", "ngram") and name is None:
            continue
        low, high = WINDOW if method == "ngram" else (None, None)
        strategy = PLAIN if method == "none" else Strategy(
            method=method, drafter=name, lookup_min=low, lookup_max=high, num_speculative_tokens=K[method]
        )  # fmt: skip
        arms.append(Arm(side, method, _setting(strategy), _our_decode(engine, model, strategy, path, tokens)))
    return arms


def _setting(strategy: Strategy) -> str:
    window = f", window {WINDOW[0]}..{WINDOW[1]}" if strategy.method == "ngram" else ""
    return f"k={strategy.k}{window}" if strategy.k else ""


def _our_decode(
    engine: ReferenceEngine, model: DecoderModel, strategy: Strategy, path: Path | None, tokens: int
) -> Decode:
    drafter = adapter(strategy.method).drafter(model, path, strategy)

    def run(prompt: list[int]) -> list[int]:
        out = decode(
            model, drafter, prompt, k=strategy.k, max_tokens=tokens, stop_ids=engine.stop_ids, sampler=Sampler()
        )
        return list(out.output_ids)

    return run


def theirs(engine: ReferenceEngine, tokens: int) -> list[Arm]:
    """`generate` of the same folder: its linear layers, cache and loop as they come."""
    model = _load(embedded_target())
    draft = next(path for method, path in embedded_drafters().values() if method == "draft_model")
    same_k, default = _load(draft), _load(draft)
    same_k.generation_config.num_assistant_tokens = K["draft_model"]
    same_k.generation_config.num_assistant_tokens_schedule = "constant"
    same_k.generation_config.assistant_confidence_threshold = 0.0
    lookup = {"prompt_lookup_num_tokens": K["ngram"], "max_matching_ngram_size": WINDOW[1]}

    def arm(method: str, setting: str, options: dict[str, Any], **models: Any) -> Arm:
        stop = sorted(engine.stop_ids)
        config = GenerationConfig(  # type: ignore[no-untyped-call]  # transformers' own
            do_sample=False, max_new_tokens=tokens, eos_token_id=stop, pad_token_id=stop[0], use_cache=True, **options
        )

        def run(prompt: list[int]) -> list[int]:
            ids = torch.tensor([prompt])
            out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config, **models)
            return [int(i) for i in out[0, len(prompt) :].tolist()]

        return Arm("theirs", method, setting, run)

    return [
        arm("none", "", {}),
        arm("ngram", f"k={K['ngram']}, window 1..{WINDOW[1]}", lookup),
        arm("ngram", "defaults: k=10, window 1..2", LOOKUP_DEFAULTS),
        arm("draft_model", f"k={K['draft_model']}, constant, no threshold", {}, assistant_model=same_k),
        arm("draft_model", "defaults: k=20, confidence 0.4", {}, assistant_model=default),
    ]


def _load(path: Path) -> Any:
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, local_files_only=True)
    return model.eval()


def timed(arm: Arm, request: Request, prompt: list[int], stop_ids: frozenset[int], repeat: int) -> Run:
    """The one place where seconds are taken and tokens are counted, for both sides."""
    start = time.perf_counter()
    output = arm.decode(prompt)
    seconds = time.perf_counter() - start
    stop = next((i for i, t in enumerate(output) if t in stop_ids), len(output) - 1)
    return Run(arm.side, arm.method, arm.setting, request.request_class, tuple(prompt), repeat, seconds,
               tuple(output[: stop + 1]))  # fmt: skip


def main(prompts: int, tokens: int, repeats: int, classes: Sequence[str], command: str) -> None:
    """Run all arms on all prompts, each time in another order, and print the page."""
    workload = load_workload().by_class()
    requests = [r for c in classes for r in pick_prompts(workload[c], prompts, 5)]
    engine = ReferenceEngine(embedded_target(), TARGET_NAME, {})
    unpacked = DecoderModel(embedded_target(), "float32", "cpu", pack=False)
    arms = [
        *ours(engine, engine.model, "ours", [m for m in METHODS if m not in SERVED_METHODS], tokens),
        *ours(engine, unpacked, "ours unpacked", ["none", "ngram", "draft_model"], tokens),
        *theirs(engine, tokens),
    ]
    for arm in arms:
        timed(arm, requests[0], engine.prompt_ids(requests[0])[:32], engine.stop_ids, 0)
    runs, start = [], time.perf_counter()
    for turn, (repeat, request) in enumerate((n, r) for n in range(repeats) for r in requests):
        prompt, first = engine.prompt_ids(request), turn % len(arms)
        runs += [timed(a, request, prompt, engine.stop_ids, repeat) for a in arms[first:] + arms[:first]]
        done = f"{turn + 1}/{repeats * len(requests)}, {time.perf_counter() - start:.0f} s"
        print(done, file=sys.stderr, flush=True)
    print(page(engine, runs, command))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--prompts", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--quick", action="store_true")
    told = parser.parse_args()
    line = " ".join(["python -m tests.benchmarks.speed", *sys.argv[1:]])
    if told.quick:
        main(1, 16, 1, CLASSES[:2], line)
    else:
        main(told.prompts, told.tokens, REPEATS, CLASSES, line)
