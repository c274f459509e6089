"""The arena: what every strategy is worth for any mix of classes at any load, with joint draws."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping

import numpy as np

from selector.acceptance import Acceptances
from selector.compose import Composer, Times, bootstrap_weights
from selector.errors import NotMeasured
from selector.policy import BASES, Basis, Estimate, Objective
from selector.profile import Profile
from selector.recommend.candidates import candidates
from selector.recommend.confirmed import Confirmed
from selector.stepcost import Array, StepCosts
from selector.strategy import PLAIN, Strategy

Mix = Mapping[str, float]


def active(mix: Mix) -> int:
    """Classes of a mix that have traffic."""
    return sum(share > 0 for share in mix.values())


class Arena:
    """Composed and confirmed figures of one profile under one joint bootstrap.

    Every array is [draws + 1] with the point value first; equal positions belong to the same draw, whatever the
    strategy, class or load, so ratios of any two are paired. `band`: ties, as a ratio (1%, or the A/A noise band).
    """

    def __init__(self, profile: Profile, objective: Objective, load: int, draws: int, seed: int) -> None:
        self.profile, self.objective, self.load, self.draws = profile, objective, load, draws
        self.band = max(0.01, profile.aa_noise)
        self.acceptances = Acceptances(profile)
        self.composer = Composer(
            self.acceptances,
            StepCosts(profile, draws, seed),
            bootstrap_weights(self.acceptances, draws, seed + 1),
        )
        self.confirmed = Confirmed(profile, self.acceptances, self.composer.costs, seed + 2)
        rng = np.random.default_rng(seed + 3)
        arms = {c.request_class for c in profile.confirmed if c.arm == "aa"}
        self.class_noise = profile.aa_noise * math.sqrt(max(1, len(arms)))
        # a band holds 95% of A/A ratios: half-width 1.96 sd
        self._noise = np.concatenate([[0.0], rng.normal(0.0, 1 / 1.96, draws)])
        self._seed = seed + 4
        self._greedy = {c.name for c in profile.classes if c.temperature == 0}
        self._times: dict[tuple[Strategy, tuple[tuple[str, float], ...], int], Times] = {}
        self.not_considered = list(self.acceptances.incomplete)
        self._composable = {s: self._composable_classes(s) for s in candidates(self.acceptances)}
        self.candidates = [s for s, classes in self._composable.items() if classes]

    @property
    def classes(self) -> list[str]:
        """Classes with recordings, in the profile's order."""
        return list(self.acceptances.prompts)

    def candidates_for(self, mix: Iterable[str]) -> list[Strategy]:
        """Strategies that can be composed for every one of these classes."""
        wanted = set(mix)
        drawn = not wanted <= self._greedy  # where nothing is sampled, drawing drafts is the same strategy again
        return [
            s for s in self.candidates
            if self._composable[s] >= wanted and (drawn or s.draft_sample_method == "greedy")
        ]  # fmt: skip

    def times(self, strategy: Strategy, mix: Mix, load: int | None = None) -> Times:
        """Composed times, each class's corrected by what was confirmed. Raises `NotMeasured`."""
        at = self.load if load is None else load
        key = (strategy, tuple(mix.items()), at)
        if key not in self._times:
            raw = self.composer.times(strategy, mix, at)
            factors = {c: self._factor(c, strategy, at) for c in mix}
            self._times[key] = Times(
                {c: t * factors[c] for c, t in raw.engine.items()},
                {c: t * factors[c] for c, t in raw.request.items()},
                {c: t * factors[c] for c, t in raw.step.items()},
                raw.tau,
                raw.extrapolated,
                raw.inferred,
            )
        return self._times[key]

    def _factor(self, request_class: str, strategy: Strategy, load: int) -> Array:
        """What to multiply composed seconds by.

        A confirmed cell is moved onto its measured ratio to plain decoding, shrunk by n / (n + 1) towards its family's
        correction when only n prompts of many ran. Any other gets its family's correction. In the draws the part of a
        class that did not run has the composition's error: one random line in k per family, as neighbouring k share
        mistakes.
        """
        if strategy == PLAIN:
            return np.ones(self.draws + 1)
        rng = np.random.default_rng((self._seed, zlib.crc32(strategy.proposer.encode())))
        ends = rng.normal(size=(2, self.draws))
        k_max = self.acceptances.families[strategy.family].k
        angle = math.pi / 2 * (strategy.k - 1) / max(k_max - 1, 1)  # unit variance at every k
        noise = self.confirmed.rms * (math.cos(angle) * ends[0] + math.sin(angle) * ends[1])
        noise, correction = np.concatenate([[0.0], noise]), self.confirmed.correction(strategy.proposer)
        measured = self.confirmed.factor(request_class, strategy, load)
        if measured is None:
            return np.exp(noise - correction)
        # few prompts say little about the class: the rest of it keeps the composition's error
        ran, share = self.confirmed.coverage(request_class, strategy, load)
        weight = 1.0 if share >= 0.5 else ran / (ran + 1)
        return np.exp(weight * np.log(measured) - (1 - weight) * correction + math.sqrt(1 - share) * noise)

    def cost(self, strategy: Strategy, mix: Mix, reference: Mix, load: int | None = None) -> Array:
        """What the objective minimises, summed over the mix's request shares (so costs of pools add up).

        throughput: engine seconds, sum_c w_c E_c. latency: request time relative to plain decoding of the
        reference mix, sum_c w_c R_c / R0_c: each class counts by its share, not by its length.
        """
        times = self.times(strategy, mix, load)
        if self.objective == "throughput":
            return np.asarray(sum(w * times.engine[c] for c, w in mix.items()))
        plain = self.times(PLAIN, reference, load)
        return np.asarray(sum(w * times.request[c] / plain.request[c] for c, w in mix.items()))

    def value(self, strategy: Strategy, mix: Mix, load: int | None = None) -> Array:
        """Speedup over plain decoding of the same mix at the same load (ratio of costs)."""
        if strategy == PLAIN:
            return np.ones(self.draws + 1)
        return self.cost(PLAIN, mix, mix, load) / self.cost(strategy, mix, mix, load)

    def class_speedup(self, strategy: Strategy, request_class: str, mix: Mix, reference: Mix) -> Array:
        """One class's speedup inside a pool's mix, against plain decoding of the reference mix."""
        own, plain = self.times(strategy, mix), self.times(PLAIN, reference)
        if self.objective == "throughput":
            return plain.engine[request_class] / own.engine[request_class]
        return plain.request[request_class] / own.request[request_class]

    def estimate(self, values: Array, basis: Basis, *, classes: int | None = None) -> Estimate:
        """Point value with the 95% prediction interval: the draws, and the noise of a run that would confirm it.

        The A/A band is that of all classes' runs together; one class (`classes` = 1) has fewer runs, so more noise.
        """
        band = self.class_noise if classes == 1 else self.profile.aa_noise
        low, high = values[0], values[0]
        if self.draws:
            low, high = np.percentile(values[1:] * np.exp(band * self._noise[1:]), [2.5, 97.5])
        return Estimate(
            value=float(values[0]),
            low=float(min(low, values[0])),
            high=float(max(high, values[0])),
            basis=basis,
        )

    def basis(self, strategy: Strategy, classes: Iterable[str]) -> Basis:
        """The weakest basis among the classes' cells."""
        return max((self._cell_basis(strategy, c) for c in classes), key=BASES.index)

    def _cell_basis(self, strategy: Strategy, request_class: str) -> Basis:
        if strategy == PLAIN or self.confirmed.speaks_for_class(request_class, strategy, self.load):
            return "measured"
        times = self.times(strategy, {request_class: 1.0})
        if times.extrapolated[request_class]:
            return "extrapolated"
        if times.inferred[request_class]:
            return "inferred"
        return "composed, checked" if strategy.proposer in self.confirmed.proposers else "composed"

    def speedup(self, strategy: Strategy, values: Array, mix: Mix) -> Estimate:
        """`estimate` for a strategy; plain decoding against itself has no spread."""
        if strategy == PLAIN and bool(np.all(values == 1.0)):
            return Estimate(value=1.0, low=1.0, high=1.0, basis="measured")
        return self.estimate(values, self.basis(strategy, mix), classes=active(mix))

    def _composable_classes(self, strategy: Strategy) -> frozenset[str]:
        """Classes for which the strategy can be composed; what is missing is named in `not_considered`."""
        missing: dict[str, str] = {}
        for c in self.classes:
            try:
                self.times(strategy, {c: 1.0})
            except NotMeasured as error:
                if strategy == PLAIN:
                    raise
                missing[c] = str(error)
        for reason in dict.fromkeys(missing.values()):
            dropped = [c for c, r in missing.items() if r == reason]
            which = (
                "" if len(dropped) == len(self.classes) else f" for {', '.join(dropped)} (so not for all on one server)"
            )
            self.not_considered.append(f"{strategy.family} k={strategy.k}{which}: {reason}")
        return frozenset(c for c in self.classes if c not in missing)
