"""Which measured cells may decide: every rule that keeps a bad one out, with the sentence that says so."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from selector.counters import SpeculationCounters, did_not_run
from selector.doubt import Doubt
from selector.outputs import Output, stuck_share

#: From this share of prompt tokens on, a prefix-cache hit rate is not noise.
CACHE_HIT_LIMIT = 0.01
#: Token totals that differ by more make two arms' wall times incomparable.
LENGTH_TOLERANCE = 0.01
#: Tokens in stuck outputs, beyond plain decoding's share, that disqualify an arm.
STUCK_LIMIT = 0.10
#: First-position acceptance on a very repetitive prompt: a working method is near 1 there (vllm-project/vllm#55605).
CANARY_LIMIT = 0.3


@dataclass(frozen=True)
class Cell:
    """One arm measured end to end at one load; None is what was not measured.

    load: requests kept under way (closed load); rate: requests per second sent, inf for all at once (open load).
    running_max, waiting_max: the server's gauges. prefix_cache_*: prompt tokens looked up and found.
    """

    arm: str
    load: int | None = None
    rate: float | None = None
    running_max: int | None = None
    waiting_max: int | None = None
    prefix_cache_queries: int | None = None
    prefix_cache_hits: int | None = None
    temperature: float | None = None
    output_tokens: int | None = None
    tpot_ms: float | None = None
    wall_seconds: float | None = None
    requests_per_second: float | None = None
    tokens_per_second: float | None = None
    outputs: tuple[Output, ...] = ()
    counters: SpeculationCounters | None = None

    @property
    def method(self) -> str:
        """First word of the arm's name: `ngram` of `ngram 1..4 k=3`."""
        return self.arm.partition(" ")[0]

    def __str__(self) -> str:
        if self.rate is not None:
            return f"{self.arm} at " + ("unlimited rate" if math.isinf(self.rate) else f"{self.rate:g} req/s")
        return self.arm if self.load is None else f"{self.arm} at load {self.load}"


def doubts(cell: Cell, plain: Cell | None = None) -> list[Doubt]:
    """Every doubt about a cell; `plain` is plain decoding at the same load, of the same requests and settings."""
    found = [*prefix_cache(cell), *queueing(cell)]
    if reason := did_not_run(cell.counters, cell.method):
        found.append(Doubt("did not run", reason))
    compared = plain if plain is not None and plain != cell else None
    if cell.method != "none":  # plain decoding's own loops are the model's, no arm is at fault
        found += loops(cell.outputs, () if compared is None else compared.outputs)
    return found + (lengths(cell, compared) if compared is not None else [])


def prefix_cache(cell: Cell) -> list[Doubt]:
    """Prompts seen before cost no prefill: from a hit rate of 1% on the times are those of a warm cache."""
    if not cell.prefix_cache_queries or cell.prefix_cache_hits is None:
        return []
    rate = cell.prefix_cache_hits / cell.prefix_cache_queries
    if rate < CACHE_HIT_LIMIT:
        return []
    said = f"{rate:.0%} of the prompt tokens came from the prefix cache"
    return [Doubt("contaminated", f"{said}: reset the cache or use a new seed, and measure again")]


def queueing(cell: Cell) -> list[Doubt]:
    """What the server's queue says: capacity lost, load not reached, saturated or bound by the rate of requests."""
    waiting, running = cell.waiting_max, cell.running_max
    if cell.load is not None and running is not None and running < cell.load:
        if waiting == 0:
            said = f"only {running} of {cell.load} requests were under way at once: send more requests"
            return [Doubt("load not reached", said)]
        queue = "" if waiting is None else f", {waiting} waiting"
        cause = "the server holds no more" if cell.method == "none" else "the method is charged with the rest"
        said = (
            f"{running} of {cell.load} requests ran at once{queue}: {cause}; choose it for loads up to {running} only"
        )
        return [Doubt("capacity lost", said)]
    found = []
    # In a closed load that ran in full, a request waits only for the step under way to end.
    if waiting and (cell.load is None or running is None):
        said = f"up to {waiting} requests were waiting: latency is the queue's; decide it at a lower rate"
        found.append(Doubt("saturated", said))
    if cell.rate is not None and math.isfinite(cell.rate):
        said = f"throughput is what {cell.rate:g} req/s ask for, whatever the arm: rank by TPOT, or at unlimited rate"
        found.append(Doubt("rate-bound", said))
    return found


def capacity(cells: Iterable[Cell]) -> int | None:
    """Largest load an arm may be chosen for, from the cells in which it lost capacity; None: no limit was seen."""
    lost = [c.running_max for c in cells if any(d.kind == "capacity lost" for d in queueing(c))]
    return min((n for n in lost if n is not None), default=None)


def loops(outputs: Sequence[Output], plain: Sequence[Output] = ()) -> list[Doubt]:
    """A stuck arm is easy to draft for, so its figures look best; loops that plain decoding shows too are no fault."""
    share, usual = stuck_share(outputs), stuck_share(plain)
    if share - usual <= STUCK_LIMIT:
        return []
    stuck = [o for o in outputs if o.stuck]
    beside = f" (plain decoding: {usual:.0%})" if plain else ""
    return [
        Doubt(
            "looping",
            f"{len(stuck)} of {len(outputs)} outputs repeat themselves to the end, {share:.0%} of the tokens{beside}: "
            "disqualified, loops are easy to draft; run selector verify on it",
        )
    ]


def lengths(cell: Cell, plain: Cell) -> list[Doubt]:
    """Unequal token totals under equal settings: wall time then compares different work, tokens per second do not."""
    mine, theirs = cell.output_tokens, plain.output_tokens
    if mine is None or theirs is None or abs(mine - theirs) <= LENGTH_TOLERANCE * max(mine, theirs):
        return []
    said = f"{mine} output tokens, plain decoding {theirs}"
    if cell.temperature == 0 and plain.temperature == 0:
        said += " at temperature 0: the outputs differ; run selector verify first, and compare by tokens per second"
        return [Doubt("outputs differ", said)]
    return [Doubt("unequal lengths", f"{said}: compare by tokens per second, or fix the length (ignore_eos)")]


def canary(method: str, counters: SpeculationCounters | None) -> list[Doubt]:
    """Whether a method works at all on this build, from its counters on one very repetitive prompt.

    Without counts by position, accepted / drafts stands in for it: the first position is at most that.
    """
    if reason := did_not_run(counters, method):
        return [Doubt("did not run", reason)]
    if counters is None or not counters.drafts:
        return []
    by_position = counters.per_position
    first = by_position[0] if by_position else counters.accepted / counters.drafts
    if first >= CANARY_LIMIT:
        return []
    said = f"broken on this build: {first:.1%} acceptance at the first position on a very repetitive prompt"
    return [
        Doubt(
            "broken", f"{method} is {said}, {CANARY_LIMIT:.0%} is the least; leave it out, a smaller k does not mend it"
        )
    ]


@dataclass(frozen=True)
class PromptRun:
    """One timed decode of one prompt (by digest) on a server that keeps its state between runs."""

    prompt: str
    repeat: int
    tokens_per_second: float


def first_repeats(runs: Sequence[PromptRun]) -> tuple[list[PromptRun], list[Doubt]]:
    """The runs that are samples, i.e. the first of each prompt, and what was left out.

    Later repeats meet a drafter and caches that have seen the very answer.
    """
    first: dict[str, PromptRun] = {}
    for run in sorted(runs, key=lambda r: r.repeat):
        first.setdefault(run.prompt, run)
    kept = list(first.values())
    if len(kept) == len(runs):
        return kept, []
    said = f"{len(runs) - len(kept)} of {len(runs)} runs repeat a prompt and are no samples: each prompt's first counts"
    return kept, [Doubt("repeated prompt", f"{said}; give more prompts")]
