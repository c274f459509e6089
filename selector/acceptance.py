"""Acceptance: what each class's recordings and replays say about a strategy's steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from selector.errors import NotMeasured, ProfileError
from selector.profile import Profile, Recording, Replay, Sampling
from selector.strategy import PLAIN, Strategy
from selector.walks import decode, walk

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Counts:
    """Per prompt of one class, walked with one strategy: arrays [prompts], `widths` [prompts, k + 1].

    `widths[i, d]`: steps of prompt i that drafted d tokens.
    """

    steps: Array
    widths: Array
    prompt_tokens: Array
    output_tokens: Array
    sampling: Sampling


class Acceptances:
    """Recordings and replays of a profile, by class, reduced to the prompts that every usable family has seen.

    `families`: family -> a strategy of it at its k_max, only those replayed for every class; `incomplete` names the
    others with the reason. `prompts`: prompts per class, classes without recordings left out.
    """

    def __init__(self, profile: Profile) -> None:
        self.incomplete: list[str] = []
        recordings: dict[str, dict[str, Recording]] = {}
        for r in profile.recordings:
            recordings.setdefault(r.request_class, {})[r.id] = r
        self._replays: dict[tuple[str, str], dict[str, Replay]] = {}
        limits: dict[str, int] = {}
        for replay in profile.replays:
            self._replays.setdefault((replay.request_class, replay.family), {})[replay.id] = replay
            limits[replay.family] = min(replay.k_max, limits.get(replay.family, replay.k_max))
        self._classes = {c.name: c for c in profile.classes if c.name in recordings}
        self.families: dict[str, Strategy] = {}
        for family, k_max in limits.items():
            missing = [c for c in self._classes if (c, family) not in self._replays]
            if missing:
                self.incomplete.append(f"{family}: not replayed for {', '.join(missing)}")
            else:
                self.families[family] = family_strategy(family, k_max)
        self._recordings = {c: self._shared(c, recordings[c]) for c in self._classes}
        self.prompts = {c: len(rs) for c, rs in self._recordings.items()}
        self._counts: dict[tuple[str, str, int], Counts] = {}

    def _shared(self, request_class: str, recordings: dict[str, Recording]) -> list[Recording]:
        """Recordings that every family replayed: comparisons are paired, so all see the same prompts."""
        kept = [
            r for r in recordings.values()
            if r.output_tokens == 1 or all(r.id in self._replays[(request_class, f)] for f in self.families)
        ]
        if not kept:
            raise ProfileError(f"class {request_class!r}: no prompt was replayed by all of {', '.join(self.families)}: resume the profile")
        return kept

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
        key = (request_class, strategy.family, strategy.k)
        if key not in self._counts:
            self._counts[key] = self._walk(strategy, request_class)
        return self._counts[key]

    def _walk(self, strategy: Strategy, request_class: str) -> Counts:
        recordings = self._recordings[request_class]
        steps = np.zeros(len(recordings))
        widths = np.zeros((len(recordings), strategy.k + 1))
        for i, r in enumerate(recordings):
            drafted = self.drafted_per_step(strategy, request_class, r)
            steps[i] = len(drafted)
            widths[i] = np.bincount(np.asarray(drafted, dtype=int), minlength=strategy.k + 1)
        info = self._classes[request_class]
        return Counts(
            steps, widths,
            np.array([float(r.prompt_tokens) for r in recordings]),
            np.array([float(r.output_tokens) for r in recordings]),
            sampling_kind(info.temperature, info.top_p),
        )

    def drafted_per_step(self, strategy: Strategy, request_class: str, recording: Recording) -> tuple[int, ...]:
        """Drafted tokens of each step of one prompt's walk."""
        emitted = recording.output_tokens - 1
        if strategy == PLAIN or emitted == 0:
            return (0,) * emitted
        replay = self._replays[(request_class, strategy.family)][recording.id]
        accepted = decode(replay.accepted)
        if len(accepted) != emitted:
            raise ProfileError(f"replay {replay.id} of {replay.family}: {len(accepted)} positions for {recording.output_tokens} output tokens")
        proposed = None if replay.proposed is None else decode(replay.proposed)
        return walk(accepted, strategy.k, proposed).drafted_per_step

    def recordings(self, request_class: str) -> list[Recording]:
        """The class's recordings in the order of every per-prompt array."""
        return list(self._recordings[request_class])


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
    return Strategy.model_validate({"method": method, "drafter": rest or None, "num_speculative_tokens": k})
