"""The page of the speed benchmark: ratios ours to theirs, tokens per second, and whether outputs are equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from selector.engines.reference import ReferenceEngine
from selector.equality import NEAR_TIE_GAP, first_difference
from tests.benchmarks.header import header

Key = tuple[str, str, str]
COMPARED = ("none", "ngram", "draft_model")


@dataclass(frozen=True)
class Run:
    """One prompt decoded once by one arm; `output` ends at the stop token, which is counted."""

    side: str
    method: str
    setting: str
    request_class: str
    prompt: tuple[int, ...]
    repeat: int
    seconds: float
    output: tuple[int, ...]

    @property
    def arm(self) -> Key:
        """Side, method, setting."""
        return self.side, self.method, self.setting


def page(engine: ReferenceEngine, runs: Sequence[Run], command: str) -> str:
    """Markdown."""
    classes = list(dict.fromkeys(r.request_class for r in runs))
    repeats, prompts = len({r.repeat for r in runs}), len({r.prompt for r in runs})
    text = [
        "# Tokens per second against transformers' generate",
        "",
        header(engine.info, command),
        "",
        f"{prompts} prompts of {len(classes)} classes x {repeats} repeats, greedy, natural stop, at most "
        f"{max(len(r.output) for r in runs)} tokens; all arms in one process, by turns, their order turned; "
        "seconds run from prompt ids to the last output id, prefill included. transformers loads the same folder with "
        "its own linear layers. Ours packs them for oneDNN; `ours unpacked` does not: loop and forward pass.",
        "",
        "## Ours to theirs",
        "",
        "Ratio of tokens per second, median over repeats [least .. most]. Theirs is the faster of its settings in that "
        "column, or plain where it has no such method.",
        "",
        *_ratios(runs, classes),
        "",
        "## Tokens per second",
        "",
        f"Median over repeats, (most - least) / median of all prompts. Outputs against plain decoding in transformers: "
        f"near-ties part where the other token scores less than {NEAR_TIE_GAP:g} below the best.",
        "",
        *_rates(engine, runs, classes),
    ]
    return "\n".join(text)


def _rate(runs: Sequence[Run], arm: Key, name: str | None, repeat: int) -> float:
    own = [r for r in runs if r.arm == arm and r.repeat == repeat and name in (None, r.request_class)]
    return sum(len(r.output) for r in own) / sum(r.seconds for r in own)


def _by_repeat(runs: Sequence[Run], arm: Key, name: str | None) -> list[float]:
    return [_rate(runs, arm, name, repeat) for repeat in sorted({r.repeat for r in runs})]


def _ratios(runs: Sequence[Run], classes: Sequence[str]) -> Iterator[str]:
    arms = list(dict.fromkeys(r.arm for r in runs))
    theirs = [a for a in arms if a[0] == "theirs"]
    yield _row(["", "method", "against", *classes, "all"])
    yield "|---" * (len(classes) + 4) + "|"
    for arm in arms:
        if arm[0] == "theirs":
            continue
        method = arm[1] if arm[1] in COMPARED else "none"
        rivals = [a for a in theirs if a[1] == method]
        cells = []
        for name in [*classes, None]:
            rival = max(rivals, key=lambda a: median(_by_repeat(runs, a, name)))
            pairs = zip(_by_repeat(runs, arm, name), _by_repeat(runs, rival, name), strict=True)
            r = [a / b for a, b in pairs]
            cells.append(f"{median(r):.2f} [{min(r):.2f} .. {max(r):.2f}]")
        yield _row([arm[0], f"{arm[1]} {arm[2]}", f"their {'plain' if method == 'none' else method}", *cells])


def _rates(engine: ReferenceEngine, runs: Sequence[Run], classes: Sequence[str]) -> Iterator[str]:
    yield _row(["side", "method", *classes, "all", "spread", "outputs", "equal", "near-tie", "different"])
    yield "|---" * (len(classes) + 8) + "|"
    truth = {r.prompt: r.output for r in runs if r.arm == ("theirs", "none", "")}
    for arm in dict.fromkeys(r.arm for r in runs):
        rates = [_by_repeat(runs, arm, name) for name in [*classes, None]]
        whole = rates[-1]
        verdicts = Counter(_verdict(engine, r, truth[r.prompt]) for r in runs if r.arm == arm)
        counts = [str(verdicts[v]) for v in ("equal", "near-tie", "different")]
        spread = f"{(max(whole) - min(whole)) / median(whole):.0%}"
        cells = [*(f"{median(r):.1f}" for r in rates), spread, str(verdicts.total()), *counts]
        yield _row([arm[0], f"{arm[1]} {arm[2]}", *cells])


def _verdict(engine: ReferenceEngine, run: Run, plain: tuple[int, ...]) -> str:
    where = first_difference(plain, run.output)
    if where is None:
        return "equal"
    if where in (len(plain), len(run.output)):
        return "different"
    ids = torch.tensor([[*run.prompt, *plain[:where]]])
    engine.model.tap(())
    logits = engine.model.forward(ids, engine.model.new_cache(1, ids.shape[1]), keep=1)[0][0, -1]
    return "near-tie" if float(logits.max() - logits[run.output[where]]) < NEAR_TIE_GAP else "different"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(c.strip() for c in cells)} |"
