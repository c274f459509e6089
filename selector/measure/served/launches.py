"""Launches: which servers are started, and which batch sizes each of them visits with which k."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from selector.profile import Sampling
from selector.strategy import LOOKUP_METHODS, PLAIN, Strategy

#: Methods without a state of their own, whose k may follow the batch size while they are measured.
STATELESS = frozenset({"ngram"})
Schedule = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Launch:
    """One server: what it speculates with (`strategy` at its largest k) and k by batch size.

    `visits`: batch size -> k, for every batch that will be run; `schedule`: the same as vLLM is told it, None for a
    fixed k.
    """

    name: str
    strategy: Strategy
    visits: Mapping[int, int]
    schedule: Schedule | None = None

    @property
    def live(self) -> bool:
        """Whether acceptance is seen on it: n-gram's is replayed, plain decoding has none."""
        return self.strategy.method not in ("none", "ngram")

    @property
    def max_batch(self) -> int:
        """Most requests at once."""
        return max(self.visits)

    def batch_for(self, k: int) -> int | None:
        """The largest batch at which this k runs: many requests at once finish sooner."""
        return max((b for b, width in self.visits.items() if width == k), default=None)


@dataclass(frozen=True)
class StepProbe:
    """A step to time: `batch` equal requests of about `context` tokens. `repetitive`: text that n-gram lookup fills."""

    batch: int
    context: int
    sampling: Sampling
    repetitive: bool = False

    @property
    def key(self) -> str:
        """The part of a journal key that names the probe."""
        return f"{self.batch}/{self.context}/{self.sampling}" + ("/repetitive" if self.repetitive else "")


def plain_launch(name: str, loads: Sequence[int]) -> Launch:
    """A plain server, the floor of every comparison."""
    return Launch(name, PLAIN, dict.fromkeys(batches(loads), 0))


def measuring_launches(strategy: Strategy, loads: Sequence[int]) -> list[Launch]:
    """The servers for acceptance and step cost of a method; `strategy` is at k_max.

    Every method but n-gram lookup gets one at k_max and one at k = 1. One server with a batch-size schedule would do
    for both, but a drafter whose k changed in mid-request lost its place there (vLLM 0.32 on CPU: acceptance fell to
    nothing). Lookup has no place to lose: its batches take turns with k_max, a small k and one between.
    """
    k = strategy.k
    if strategy.method not in STATELESS:
        return [fixed_launch(strategy.with_k(n), loads) for n in dict.fromkeys((k, 1))]
    turns = list(dict.fromkeys((k, 1, max(1, k // 2))))
    visits = {b: turns[i % len(turns)] for i, b in enumerate(batches(loads))}
    return [Launch(f"{strategy.family} k={k}", strategy, visits, _ranges(visits))]


def fixed_launch(strategy: Strategy, loads: Sequence[int], name: str | None = None) -> Launch:
    """A server that always drafts k: what a deployment runs."""
    visits = dict.fromkeys(sorted({1, *loads}), strategy.k)
    return Launch(name or (f"{strategy.family} k={strategy.k}" if strategy.k else "none"), strategy, visits)


def batches(loads: Sequence[int]) -> list[int]:
    """The loads, and neighbours enough to see the cost of a request apart from that of a draft."""
    return sorted({1, 2, 3, *loads, max(loads) + 1})


def step_probes(launch: Launch, near: int, far: int, kinds: Sequence[Sampling]) -> list[StepProbe]:
    """Greedy at every batch; each further kind of sampling at the smallest and the largest batch of the largest k;
    plain decoding at a second context too; n-gram lookup on repetitive text too, where every step is full.
    """
    ends = sorted({1, launch.batch_for(launch.strategy.k) or launch.max_batch})
    probes = [StepProbe(b, near, "greedy") for b in launch.visits]
    probes += [StepProbe(b, near, kind) for kind in kinds if kind != "greedy" for b in ends]
    if launch.strategy == PLAIN:
        probes += [StepProbe(b, far, "greedy") for b in ends]
    if launch.strategy.method in LOOKUP_METHODS:
        probes += [StepProbe(b, near, "greedy", repetitive=True) for b in launch.visits]
    return probes


def _ranges(visits: Mapping[int, int]) -> Schedule:
    """k by batch size as vLLM takes it: inclusive ranges from 1; a batch between two visits has the upper one's k."""
    out, first = [], 1
    for batch in sorted(visits):
        out.append((first, batch, visits[batch]))
        first = batch + 1
    return tuple(out)
