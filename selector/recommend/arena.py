"""The arena: what every strategy is worth for any mix of classes at any load, with joint draws."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping

import numpy as np

from selector.acceptance import Acceptances
from selector.compose import Composer, Times, bootstrap_weights
from selector.errors import NotMeasured
from selector.policy import Basis, Estimate, Objective
from selector.profile import Profile
from selector.recommend.candidates import candidates
from selector.recommend.confirmed import Confirmed
from selector.stepcost import Array, StepCosts
from selector.strategy import PLAIN, Strategy

Mix = Mapping[str, float]
_BASES: tuple[Basis, ...] = ("measured", "composed, checked", "composed", "extrapolated")


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
        # a band holds 95% of A/A ratios: half-width 1.96 sd
        self._run_noise = np.exp(np.concatenate([[0.0], rng.normal(0.0, profile.aa_noise / 1.96, draws)]))
        self._seed = seed + 4
        self._times: dict[tuple[Strategy, tuple[tuple[str, float], ...], int], Times] = {}
        self.not_considered = list(self.acceptances.incomplete)
        self.candidates = [s for s in candidates(self.acceptances) if self._is_composable(s)]

    @property
    def classes(self) -> list[str]:
        """Classes with recordings, in the profile's order."""
        return list(self.acceptances.prompts)

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
                raw.step,
                raw.tau,
                raw.extrapolated,
            )
        return self._times[key]

    def _factor(self, request_class: str, strategy: Strategy, load: int) -> Array:
        """What to multiply composed seconds by.

        A confirmed cell is moved onto its measured ratio to plain decoding. Any other gets its family's correction,
        and in the draws the composition's error: one random line in k per family, as neighbouring k share mistakes.
        """
        if strategy == PLAIN:
            return np.ones(self.draws + 1)
        measured = self.confirmed.factor(request_class, strategy, load)
        if measured is not None:
            return measured
        rng = np.random.default_rng((self._seed, zlib.crc32(strategy.family.encode())))
        ends = rng.normal(size=(2, self.draws))
        k_max = self.acceptances.families[strategy.family].k
        angle = math.pi / 2 * (strategy.k - 1) / max(k_max - 1, 1)  # unit variance at every k
        noise = self.confirmed.rms * (math.cos(angle) * ends[0] + math.sin(angle) * ends[1])
        return np.exp(np.concatenate([[0.0], noise]) - self.confirmed.correction(strategy.family))

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

    def estimate(self, values: Array, basis: Basis) -> Estimate:
        """Point value with the 95% prediction interval: the draws, and the noise of a run that would confirm it."""
        low, high = (
            np.percentile(values[1:] * self._run_noise[1:], [2.5, 97.5]) if self.draws else (values[0], values[0])
        )
        return Estimate(
            value=float(values[0]),
            low=float(min(low, values[0])),
            high=float(max(high, values[0])),
            basis=basis,
        )

    def basis(self, strategy: Strategy, classes: Iterable[str]) -> Basis:
        """The weakest basis among the classes' cells."""
        return max((self._cell_basis(strategy, c) for c in classes), key=_BASES.index)

    def _cell_basis(self, strategy: Strategy, request_class: str) -> Basis:
        if strategy == PLAIN or self.confirmed.factor(request_class, strategy, self.load) is not None:
            return "measured"
        if self.times(strategy, {request_class: 1.0}).extrapolated[request_class]:
            return "extrapolated"
        return "composed, checked" if strategy.family in self.confirmed.families else "composed"

    def speedup(self, strategy: Strategy, values: Array, classes: Iterable[str]) -> Estimate:
        """`estimate` for a strategy; plain decoding against itself has no spread."""
        if strategy == PLAIN and bool(np.all(values == 1.0)):
            return Estimate(value=1.0, low=1.0, high=1.0, basis="measured")
        return self.estimate(values, self.basis(strategy, classes))

    def _is_composable(self, strategy: Strategy) -> bool:
        try:
            for c in self.classes:
                self.times(strategy, {c: 1.0})
        except NotMeasured as error:
            if strategy == PLAIN:
                raise
            self.not_considered.append(f"{strategy.family} k={strategy.k}: {error}")
            return False
        return True
