"""Prints how many greedy fp32 outputs of every adapter equal plain decoding's, on 42 prompts x 128 tokens.

python -m tests.benchmarks.lossless > docs/benchmarks/lossless.md
"""

from __future__ import annotations

import sys
from collections import Counter

from selector.embedded import TARGET_NAME, embedded_drafters, embedded_target
from selector.engines.reference import ReferenceEngine
from selector.equality import NEAR_TIE_GAP, Comparison, compare
from selector.measure.plan import pick_prompts
from selector.strategy import PLAIN, Strategy
from selector.workload import Request, load_workload
from tests.benchmarks.header import header

PROMPTS_PER_CLASS, TOKENS = 7, 128
STRATEGIES = [
    Strategy(method="ngram", lookup_min=2, lookup_max=4, num_speculative_tokens=6),
    Strategy(method="draft_model", drafter="draft2-smollm2-135m", num_speculative_tokens=3),
    Strategy(method="eagle3", drafter="eagle3-smollm2-135m", num_speculative_tokens=4),
]


def main() -> None:
    """Run and print a Markdown page."""
    engine = ReferenceEngine(embedded_target(), TARGET_NAME, embedded_drafters())
    found: list[Comparison] = []
    requests = prompts()
    for i, request in enumerate(requests):
        plain = engine.generate(request, PLAIN, seed=0)
        found += [compare(engine, request, plain, s)[0] for s in STRATEGIES]
        print(f"{i + 1}/{len(requests)}", file=sys.stderr, flush=True)
    print(page(engine, found, len(requests)))


def prompts() -> list[Request]:
    """Greedy requests of every class, the output cap set to the benchmark's."""
    classes = [rs for rs in load_workload().by_class().values() if rs[0].temperature == 0]
    return [
        r.model_copy(update={"max_tokens": TOKENS}) for rs in classes for r in pick_prompts(rs, PROMPTS_PER_CLASS, 11)
    ]


def page(engine: ReferenceEngine, found: list[Comparison], prompts: int) -> str:
    """The table, and every output that was not equal."""
    lines = [
        "# Greedy outputs against plain decoding",
        "",
        header(engine.info, "python -m tests.benchmarks.lossless"),
        "",
        f"{prompts} prompts (six classes), at most {TOKENS} tokens, natural stop. Near-tie: the outputs part where the "
        f"two best logits of plain decoding lie less than {NEAR_TIE_GAP:g} apart.",
        "",
        "| strategy | prompts | equal | near-tie | different | tokens compared |",
        "|---|---|---|---|---|---|",
    ]
    for s in STRATEGIES:
        own = [c for c in found if c.strategy == s]
        n = Counter(c.verdict for c in own)
        tokens = sum(c.output_tokens if c.position is None else c.position for c in own)
        lines.append(f"| {s.label} | {len(own)} | {n['equal']} | {n['near-tie']} | {n['different']} | {tokens} |")
    odd = [c for c in found if c.verdict != "equal"]
    lines += [""] + [
        f"- {c.strategy.label}, class {c.request_class}, prompt {c.prompt}: {c.verdict} at token {c.position}, "
        + ("one output merely ends there" if c.gap is None else f"gap {c.gap:.2g}")
        for c in odd
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
