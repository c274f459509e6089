"""What a serving engine counted about speculation, and the arithmetic on it (docs/metrics.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import reduce
from operator import add, sub

from selector.errors import CountersError

NOT_AVAILABLE = "Counters not available (stats disabled)"
#: How an acceptance length is named wherever a person reads it.
ACCEPTANCE_LENGTH = "acceptance length (incl. bonus)"


@dataclass(frozen=True)
class SpeculationCounters:
    """Totals of one engine over one stretch of time; what was not counted is None, never 0.

    drafts: request-steps that had a draft (vLLM: `spec_decode_num_drafts`); drafted, accepted: tokens over them
    (`..._num_draft_tokens`, `..._num_accepted_tokens`); accepted_per_position: [k], empty if not counted;
    output_tokens: all tokens sent out, the prefills' first ones included; requests: finished requests;
    undrafted: decode request-steps without a draft, which vLLM does not count.
    Raises `CountersError` when they contradict each other.
    """

    drafts: int
    drafted: int
    accepted: int
    accepted_per_position: tuple[int, ...] = ()
    output_tokens: int | None = None
    requests: int | None = None
    undrafted: int | None = None

    def __post_init__(self) -> None:
        counts = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "accepted_per_position"}
        negative = [f"{name} {count}" for name, count in counts.items() if count is not None and count < 0]
        if negative or min(self.accepted_per_position, default=0) < 0:
            raise CountersError(
                f"a negative counter ({', '.join(negative) or 'accepted_per_position'}): if this is the difference of "
                "two readings, the server restarted between them; take both from one run"
            )
        if self.accepted > self.drafted:
            raise CountersError(
                f"{self.accepted} tokens accepted of {self.drafted} drafted: the two counters are not of the same "
                "stretch of time; read them together"
            )
        if self.accepted_per_position and sum(self.accepted_per_position) != self.accepted:
            raise CountersError(
                f"accepted per position adds up to {sum(self.accepted_per_position)}, accepted is {self.accepted}: "
                "the counters are not of the same stretch of time; read them together"
            )

    @property
    def acceptance_length(self) -> float | None:
        """1 + accepted / drafts: tokens per *drafted* step, bonus token included, as vLLM prints it from 0.9 on.

        Steps without a draft are left out, so it is no tau: compare arms by `tokens_per_step`, rank them by time.
        """
        return 1 + self.accepted / self.drafts if self.drafts else None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted, 0 to 1 (`vllm bench serve` writes it in percent)."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def mean_draft_length(self) -> float | None:
        """Drafted / drafts; below k where the drafter runs short (n-gram lookup, suffix, early stop)."""
        return self.drafted / self.drafts if self.drafts else None

    @property
    def draft_lengths_vary(self) -> bool | None:
        """Whether some drafts were shorter than k, the number of positions; None if the positions were not counted."""
        if not self.accepted_per_position:
            return None
        return self.drafted != self.drafts * len(self.accepted_per_position)

    @property
    def per_position(self) -> tuple[float, ...] | None:
        """Share of the drafts that had the first i tokens accepted, i = 1..k: accepted_per_position / drafts.

        Biased low at the later positions when `draft_lengths_vary`: a draft that never had an i-th token counts as
        one that lost it. vLLM exports no number of drafts by position, so this cannot be mended.
        """
        if not self.drafts or not self.accepted_per_position:
            return None
        return tuple(count / self.drafts for count in self.accepted_per_position)

    @property
    def decode_steps(self) -> int | None:
        """Request-steps after the prefills: drafts + undrafted, or from the tokens when undrafted was not counted.

        A step emits what it accepted and one token more, so steps = output tokens - requests - accepted. vLLM counts
        tokens accepted behind a stop too, which makes that too small; there are never fewer steps than drafts.
        """
        if self.undrafted is not None:
            return self.drafts + self.undrafted
        if self.output_tokens is None or self.requests is None:
            return None
        return max(self.drafts, self.output_tokens - self.requests - self.accepted)

    @property
    def tokens_per_step(self) -> float | None:
        """tau: (output tokens - requests) / decode steps, steps without a draft included (docs/glossary.md)."""
        if self.output_tokens is None or self.requests is None or not (steps := self.decode_steps):
            return None
        return (self.output_tokens - self.requests) / steps

    @property
    def tokens_per_pass(self) -> float | None:
        """Output tokens / target passes, prefills counted as passes: a stand-in for tau that needs no `requests`.

        passes = output tokens - accepted, as each pass emits one token of its own. Below tau unless nothing was
        accepted: every request's prefill is a pass of one token.
        """
        if self.output_tokens is None:
            return None
        passes = max(self.drafts, self.output_tokens - self.accepted)
        return self.output_tokens / passes if passes else None

    def plus(self, other: SpeculationCounters) -> SpeculationCounters:
        """Both stretches together: totals are added, so every rate of the result is pooled, never a mean of rates."""
        return self._with(other, add)

    def minus(self, earlier: SpeculationCounters) -> SpeculationCounters:
        """What happened since an earlier reading of the same server; raises `CountersError` after a restart."""
        return self._with(earlier, sub)

    def _with(self, other: SpeculationCounters, apply: Callable[[int, int], int]) -> SpeculationCounters:
        mine, theirs = self.accepted_per_position, other.accepted_per_position
        if mine and theirs and len(mine) != len(theirs):
            raise CountersError(
                f"one reading has {len(mine)} draft positions, the other {len(theirs)}: they are of servers with "
                "different k; pool each k on its own"
            )

        def both(a: int | None, b: int | None) -> int | None:
            return None if a is None or b is None else apply(a, b)

        return SpeculationCounters(
            apply(self.drafts, other.drafts),
            apply(self.drafted, other.drafted),
            apply(self.accepted, other.accepted),
            tuple(apply(a, b) for a, b in zip(mine, theirs, strict=False)),  # empty where one did not count them
            both(self.output_tokens, other.output_tokens),
            both(self.requests, other.requests),
            both(self.undrafted, other.undrafted),
        )


def pooled(windows: Iterable[SpeculationCounters]) -> SpeculationCounters | None:
    """All windows as one; None without any."""
    found = list(windows)
    return reduce(SpeculationCounters.plus, found) if found else None


def did_not_run(counters: SpeculationCounters | None, method: str) -> str | None:
    """Why an arm that should speculate did not; None where it did, or where nothing was counted.

    Without counters nothing can be told: vLLM leaves them out when its stats are off, and when it was started without
    a speculative config.
    """
    if method == "none" or counters is None or counters.drafts:
        return None
    seen = "" if counters.requests is None else f" in {counters.requests} requests"
    cause = "no prompt held anything to copy, or " if method in ("ngram", "suffix") else ""
    return (
        f"speculation did not run: {method} was expected, and the engine counted no draft{seen} ({cause}the server was "
        "started without its speculative config: look for 'speculative_config' in its log)"
    )


def summary(counters: SpeculationCounters | None) -> str:
    """One line for a person."""
    if counters is None:
        return NOT_AVAILABLE
    if counters.acceptance_length is None:
        return "no draft was made"
    parts = [f"{ACCEPTANCE_LENGTH} {counters.acceptance_length:.2f}"]
    if counters.acceptance_rate is not None:
        parts.append(f"{counters.acceptance_rate:.1%} of {counters.drafted} drafted tokens accepted")
    if counters.tokens_per_step is not None:
        parts.append(f"tau {counters.tokens_per_step:.2f}")
    if counters.per_position is not None:
        rates = "/".join(f"{rate:.3f}" for rate in counters.per_position)
        biased = " (biased: drafts vary in length)" if counters.draft_lengths_vary else ""
        parts.append(f"by position {rates}{biased}")
    return ", ".join(parts)
