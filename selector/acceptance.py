"""Acceptance: what each class's recordings and replays say about a strategy's steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from selector.errors import NotMeasured, ProfileError
from selector.live import LiveAcceptance
from selector.profile import LiveWalk, Profile, Recording, Replay, Sampling
from selector.strategy import PLAIN, Strategy, greedy_family
from selector.walks import decode, walk

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Counts:
    """Per prompt of one class, walked with one strategy: arrays [prompts], `widths` [prompts, k + 1].

    `widths[i, d]`: steps of prompt i that drafted d tokens. `inferred`: between measured k, see `selector.live`.
    """

    steps: Array
    widths: Array
    prompt_tokens: Array
    output_tokens: Array
    sampling: Sampling
    inferred: bool = False


class Acceptances:
    """Recordings and replays of a profile, by class, reduced to the prompts that every usable family has seen.

    `families`: family -> a strategy of it at its k_max; `incomplete` names those not replayed for every class, which
    can be composed for the others only. `prompts`: prompts per class, classes without recordings left out.
    """

    def __init__(self, profile: Profile) -> None:
        self.incomplete: list[str] = []
        self._valid_k = profile.valid_k
        recordings: dict[str, dict[str, Recording]] = {}
        for r in profile.recordings:
            recordings.setdefault(r.request_class, {})[r.id] = r
        self._replays: dict[tuple[str, str], dict[str, Replay]] = {}
        limits: dict[str, int] = {}
        for replay in profile.replays:
            self._replays.setdefault((replay.request_class, replay.family), {})[replay.id] = replay
            limits[replay.family] = min(replay.k_max, limits.get(replay.family, replay.k_max))
        self._live = _live(profile.live)
        for (_, family), live in self._live.items():
            limits[family] = min(live.k_max, limits.get(family, live.k_max))
        self._classes = {c.name: c for c in profile.classes if c.name in recordings}
        self._share_greedy(limits)
        self.families: dict[str, Strategy] = {}
        for family, k_max in limits.items():
            missing = [c for c in self._classes if not self._knows(c, family)]
            if missing:
                self.incomplete.append(f"{family}: not replayed for {', '.join(missing)}")
            if len(missing) < len(self._classes):
                self.families[family] = family_strategy(family, k_max)
        self._recordings = {c: self._shared(c, recordings[c]) for c in self._classes}
        self.prompts = {c: len(rs) for c, rs in self._recordings.items()}
        self._widths: dict[tuple[str, str], Array] = {}

    def valid_k(self, family: Strategy) -> tuple[int, ...]:
        """Every k of a family that an engine would take, up to the family's own."""
        every = range(1, family.k + 1)
        return tuple(k for k in every if k in self._valid_k.get(greedy_family(family.family), every))

    def _share_greedy(self, families: Iterable[str]) -> None:
        """Greedy requests are drafted for greedily under either draft sampling: one replay stands for both."""
        for family in families:
            for name, info in self._classes.items():
                same = self._replays.get((name, greedy_family(family)))
                if info.temperature == 0 and same is not None:
                    self._replays.setdefault((name, family), same)

    def _shared(self, request_class: str, recordings: dict[str, Recording]) -> list[Recording]:
        """Recordings that every family of the class replayed: comparisons are paired, so all see the same prompts."""
        replays = {f: self._seen(request_class, f) for f in self.families if self._knows(request_class, f)}
        kept = [
            r for r in recordings.values() if r.output_tokens == 1 or all(r.id in seen for seen in replays.values())
        ]
        if not kept:
            raise ProfileError(
                f"class {request_class!r}: no prompt was replayed by all of {', '.join(replays)}: resume the profile"
            )
        return kept

    def _knows(self, request_class: str, family: str) -> bool:
        return (request_class, family) in self._replays or (request_class, family) in self._live

    def _seen(self, request_class: str, family: str) -> frozenset[str]:
        """Ids of the prompts that a family was replayed or run on."""
        live = self._live.get((request_class, family))
        return live.ids if live is not None else frozenset(self._replays[(request_class, family)])

    def ids(self, request_class: str) -> list[str]:
        """Prompt ids in the order of every per-prompt array."""
        return [r.id for r in self._recordings[request_class]]

    def looping(self, request_class: str) -> NDArray[np.bool_]:
        """Which prompts' plain outputs end in an exact repeat, [prompts]."""
        return np.array([r.looping for r in self._recordings[request_class]])

    def counts(self, strategy: Strategy, request_class: str) -> Counts:
        """Walk every prompt of a class; raises `NotMeasured` for a family or k that was not replayed."""
        known = self.families.get(strategy.family)
        if strategy != PLAIN and (known is None or strategy.k > known.k):
            spoken = ", ".join(f"{f} up to k={s.k}" for f, s in self.families.items()) or "none"
            raise NotMeasured(f"acceptance of {strategy.family} k={strategy.k} was not measured; measured: {spoken}")
        if strategy == PLAIN:
            steps = np.array([r.output_tokens - 1.0 for r in self._recordings[request_class]])
            return self._as_counts(request_class, steps[:, None])
        if (live := self._live.get((request_class, strategy.family))) is not None:
            return self._from_live(request_class, live, strategy.k)
        if (request_class, strategy.family) not in self._replays:
            raise NotMeasured(f"{strategy.family} was not replayed for {request_class}: resume the profile")
        key = (request_class, strategy.family)
        if key not in self._widths:
            self._widths[key] = self._walk(request_class, self.families[strategy.family])
        return self._as_counts(request_class, self._widths[key][:, strategy.k - 1, : strategy.k + 1])

    def _from_live(self, request_class: str, live: LiveAcceptance, k: int) -> Counts:
        """Steps that the plain recordings would take at the live walks' tau and the widths seen there."""
        emitted = np.array([r.output_tokens - 1.0 for r in self._recordings[request_class]])
        ids = self.ids(request_class)
        known = [i for i in ids if i in live.ids]
        tau = dict(zip(known, live.tau(k, known), strict=True))
        steps = emitted / np.array([tau.get(i, 1.0) for i in ids])  # not known: an output of one token
        widths = np.zeros((len(ids), k + 1))
        widths[:, k] = 1.0
        widths[[i in live.ids for i in ids]] = live.widths(k, known)
        widths *= steps[:, None]
        return self._as_counts(request_class, widths, inferred=live.is_inferred(k))

    def _as_counts(self, request_class: str, widths: Array, *, inferred: bool = False) -> Counts:
        info, recordings = self._classes[request_class], self._recordings[request_class]
        return Counts(
            widths.sum(axis=1),
            widths,
            np.array([float(r.prompt_tokens) for r in recordings]),
            np.array([float(r.output_tokens) for r in recordings]),
            sampling_kind(info.temperature, info.top_p),
            inferred,
        )

    def _walk(self, request_class: str, family: Strategy) -> Array:
        """`selector.walks.walk` for all prompts and every k at once: steps by width, [prompts, k_max, k_max + 1]."""
        recordings, k_max = self._recordings[request_class], family.k
        n = np.array([[r.output_tokens - 1] for r in recordings])
        accepted, proposed = (np.zeros((len(recordings), max(1, int(n.max()))), dtype=int) for _ in "ap")
        for i, r in enumerate(recordings):
            if r.output_tokens > 1:
                got, asked = self._replayed(request_class, family.family, r)
                accepted[i, : len(got)] = got
                proposed[i, : len(got)] = k_max if asked is None else asked
        k = np.arange(1, k_max + 1)[None, :]
        rows = np.arange(len(recordings))[:, None]
        at = np.zeros((len(recordings), k_max), dtype=int)
        widths = np.zeros((len(recordings), k_max, k_max + 1))
        while (active := at < n).any():
            here = np.minimum(at, accepted.shape[1] - 1)
            drafted = np.minimum(proposed[rows, here], k)
            got_here = np.minimum(np.minimum(accepted[rows, here], drafted), n - at)
            prompt, index = np.nonzero(active)
            widths[prompt, index, drafted[prompt, index]] += 1
            at = np.where(active, at + got_here + 1, at)
        return widths

    def _replayed(self, request_class: str, family: str, recording: Recording) -> tuple[list[int], list[int] | None]:
        """Accepted and proposed counts by position; raises `ProfileError` when they do not fit the recording."""
        replay = self._replays[(request_class, family)][recording.id]
        accepted = decode(replay.accepted)
        proposed = None if replay.proposed is None else decode(replay.proposed)
        if {len(accepted), len(accepted if proposed is None else proposed)} != {recording.output_tokens - 1}:
            raise ProfileError(
                f"replay {replay.id} of {family}: {len(accepted)} positions for {recording.output_tokens} output tokens"
            )
        return accepted, proposed

    def drafted_per_step(self, strategy: Strategy, request_class: str, recording: Recording) -> tuple[int, ...]:
        """Drafted tokens of each step of one prompt's walk."""
        emitted = recording.output_tokens - 1
        if strategy == PLAIN or emitted == 0:
            return (0,) * emitted
        if (live := self._live.get((request_class, strategy.family))) is not None:
            steps = emitted / float(live.tau(strategy.k, [recording.id])[0])
            shares = live.widths(strategy.k, [recording.id])[0]
            ends = np.round(np.cumsum(shares) * max(1, round(steps))).astype(int)
            return tuple(w for w, n in enumerate(np.diff(ends, prepend=0)) for _ in range(n))
        accepted, proposed = self._replayed(request_class, strategy.family, recording)
        return walk(accepted, strategy.k, proposed).drafted_per_step

    def recordings(self, request_class: str) -> list[Recording]:
        """The class's recordings in the order of every per-prompt array."""
        return list(self._recordings[request_class])


def _live(walks: Iterable[LiveWalk]) -> dict[tuple[str, str], LiveAcceptance]:
    """Live walks by class and family."""
    groups: dict[tuple[str, str], list[LiveWalk]] = {}
    for w in walks:
        groups.setdefault((w.request_class, w.family), []).append(w)
    return {key: LiveAcceptance(ws) for key, ws in groups.items()}


def sampling_kind(temperature: float, top_p: float) -> Sampling:
    """Which sampler a request needs; its cost is part of the step."""
    if temperature == 0:
        return "greedy"
    return "temperature" if top_p >= 1 else "top_p"


def family_strategy(family: str, k: int) -> Strategy:
    """The strategy of a family's name (`Strategy.family`) at a k."""
    method, _, rest = family.partition(" ")
    if method == "ngram":
        low, _, high = rest.partition("..")
        return Strategy(method="ngram", num_speculative_tokens=k, lookup_min=int(low), lookup_max=int(high))
    drafter = greedy_family(rest)
    chosen = "greedy" if drafter == rest else "probabilistic"
    return Strategy.model_validate(
        {"method": method, "drafter": drafter or None, "num_speculative_tokens": k, "draft_sample_method": chosen}
    )
