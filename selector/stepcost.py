"""Step cost: from measured rows to the seconds of a step or a prefill that was not measured itself."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from selector.errors import NotMeasured
from selector.profile import Profile, Sampling
from selector.strategy import LOOKUP_METHODS, DraftSampleMethod

Array = NDArray[np.float64]
#: Method, drafter, how drafts are chosen: what a cost row belongs to apart from the sampling kind.
Source = tuple[str, str | None, DraftSampleMethod]
_PLAIN: Source = ("none", None, "greedy")


@dataclass(frozen=True)
class Cost:
    """Seconds, shape [draws + 1] (element 0 is the point value); `extrapolated`: not between measured points."""

    seconds: Array
    extrapolated: bool


@dataclass(frozen=True)
class StepLine:
    """Step seconds at several widths, linear in context.

    seconds: [draws + 1, widths] at `context` tokens; slope: [draws + 1] seconds per context token.
    """

    seconds: Array
    slope: Array
    context: float
    context_range: tuple[float, float]
    extrapolated: bool
    inferred: bool = False

    def at(self, context: Array | float) -> Array:
        """Seconds [draws + 1, widths] at a mean context (scalar or [draws + 1])."""
        return self.seconds + np.reshape(self.slope * (np.asarray(context) - self.context), (-1, 1))

    def is_outside(self, context: float) -> bool:
        """Whether the context is more than a factor two away from every measured one."""
        return not self.context_range[0] / 2 <= context <= self.context_range[1] * 2


class StepCosts:
    """Seconds of steps and prefills of one profile, with resampled repeats for intervals.

    A row's value is the median of its repeats; each draw takes the median of resampled repeats, the same draw for
    all uses of a row. Between measured widths and batches costs are linear; outside them `NotMeasured` is raised.
    Only a sampler's extra cost is carried further than it was measured, and marked.
    """

    def __init__(self, profile: Profile, draws: int = 0, seed: int = 0) -> None:
        self.draws = draws
        rng = np.random.default_rng(seed)
        self._rows: dict[tuple[Source, Sampling], dict[int, dict[int, dict[int, Array]]]] = {}
        self._inferred: set[tuple[Source, int, int]] = set()
        for row in profile.step_costs:
            source = _source(row.method, row.drafter, row.draft_sample_method)
            if row.inferred:
                self._inferred.add((source, row.batch, row.drafted))
            batches = self._rows.setdefault((source, row.sampling), {})
            contexts = batches.setdefault(row.batch, {}).setdefault(row.drafted, {})
            contexts[row.context] = _medians(row.step_seconds, draws, rng)
        for source, kind in [key for key in self._rows if key[0][2] == "probabilistic"]:
            # greedy requests are drafted for greedily, so the drawing strategy shares the other's greedy rows
            greedy = self._rows.get((_source(source[0], source[1]), "greedy"))
            if kind != "greedy" and greedy is not None:
                self._rows[source, "greedy"] = greedy
        self._lines: dict[tuple[Source, bytes, int, Sampling], StepLine] = {}
        self._known_extras: dict[tuple[Source, Sampling], dict[int, tuple[Array, Array]]] = {}
        prefills: dict[tuple[str, str | None], dict[int, Array]] = {}
        for cost in profile.prefill_costs:
            values = _medians(cost.prefill_seconds, draws, rng)
            prefills.setdefault((cost.method, cost.drafter), {})[cost.prompt_tokens] = values
        self._prefills = {
            source: (np.array(sorted(rows), dtype=float), np.stack([rows[n] for n in sorted(rows)], axis=1))
            for source, rows in prefills.items()
        }
        counts = Counter(row.context for row in profile.step_costs)
        self._context = float(max(counts, key=lambda c: (counts[c], c))) if counts else 0.0

    @property
    def has_plain(self) -> bool:
        """Whether any plain decoding step was measured."""
        return any(source == _PLAIN for source, _ in self._rows)

    def step_seconds(
        self, method: str, drafter: str | None, drafted: float, batch: int, context: float, sampling: Sampling
    ) -> Cost:
        """One step of `batch` requests that each verify `drafted` + 1 tokens (a mean may be fractional).

        Raises `NotMeasured` outside the measured drafted counts and batches.
        """
        line = self.line(method, drafter, np.array([float(drafted)]), batch, sampling)
        return Cost(line.at(context)[:, 0], line.extrapolated or line.is_outside(context))

    def line(
        self,
        method: str,
        drafter: str | None,
        widths: Array,
        batch: int,
        sampling: Sampling,
        drafts: DraftSampleMethod = "greedy",
    ) -> StepLine:
        """As `step_seconds`, at several drafted counts at once and for any context (kept: many cells share it)."""
        source = _source(method, drafter, drafts)
        key = (source, widths.tobytes(), batch, sampling)
        if key not in self._lines:
            self._lines[key] = self._line(source, widths, batch, sampling)
        return self._lines[key]

    def _line(self, source: Source, widths: Array, batch: int, sampling: Sampling) -> StepLine:
        seconds, extrapolated = self._seconds(source, widths, batch, sampling)
        slope, seen = self._slope(source, sampling, batch)
        kinds: tuple[Sampling, ...] = (sampling, "greedy")
        rows = [self._rows.get((source, kind), {}) for kind in kinds]
        contexts = [*seen, *(c for r in rows for b in r.values() for d in b.values() for c in d)]
        inferred = self._is_inferred(source, widths, batch)
        return StepLine(seconds, slope, self._context, (min(contexts), max(contexts)), extrapolated, inferred)

    def _is_inferred(self, source: Source, widths: Array, batch: int) -> bool:
        """Whether a greedy row that these widths lean on was not timed itself."""
        rows = self._rows.get((source, "greedy"), {})
        if not self._inferred or not rows:
            return False
        for b, _ in self._between(source, "greedy", sorted(rows), batch):
            nodes = sorted(rows[b])
            used = np.abs(hat_weights(np.array(nodes, dtype=float), widths)).sum(axis=0)
            if any((source, b, d) in self._inferred for d, leans in zip(nodes, used, strict=True) if leans > 0):
                return True
        return False

    def _seconds(self, source: Source, widths: Array, batch: int, sampling: Sampling) -> tuple[Array, bool]:
        """Seconds [draws + 1, widths] and whether a sampler's cost had to come from elsewhere.

        Sampled steps are measured at a few widths and batches only. They are the greedy line, which is measured
        everywhere, plus what the sampler adds; where the greedy line does not reach, the kind's own rows alone.
        """
        if sampling == "greedy":
            return self._measured(source, "greedy", widths, batch), False
        try:
            greedy = self._measured(source, "greedy", widths, batch)
        except NotMeasured as error:
            if (source, sampling) not in self._rows and (source, "greedy") in self._rows:
                raise
            try:
                return self._measured(source, sampling, widths, batch), False
            except NotMeasured as own:
                raise own from error
        extra, extrapolated = self._sampler(source, widths, batch, sampling)
        return greedy + extra, extrapolated

    def _measured(self, source: Source, kind: Sampling, widths: Array, batch: int) -> Array:
        """Seconds from rows of this kind alone; raises `NotMeasured` outside them."""
        rows = self._rows.get((source, kind))
        if rows is None:
            raise NotMeasured(
                f"step cost of {_name(source)}, {kind}, was not measured: profile it again with this method"
            )
        seconds = np.zeros((self.draws + 1, len(widths)))
        for measured_batch, share in self._between(source, kind, sorted(rows), batch):
            seconds += share * self._at_batch(source, kind, measured_batch, widths)
        return seconds

    def _sampler(self, source: Source, widths: Array, batch: int, kind: Sampling) -> tuple[Array, bool]:
        """Seconds that sampling adds to a greedy step, [draws + 1, widths], and whether they are extrapolated.

        Linear between the method's own measured widths and batches; outside, that of the nearest width, and of the
        nearest batch scaled by the ratio of batches (every request samples its own tokens). A method without any uses
        what plain decoding shows.
        """
        extras = self._extras(source, kind)
        if not extras:
            if source != _PLAIN:
                return self._sampler(_PLAIN, np.zeros(1), batch, kind)[0], True
            return self._measured(_PLAIN, kind, widths, batch) - self._measured(_PLAIN, "greedy", widths, batch), False
        near = min(max(batch, min(extras)), max(extras))
        total, extrapolated = np.zeros((self.draws + 1, len(widths))), near != batch
        for measured_batch, share in self._between(source, kind, sorted(extras), near):
            nodes, seconds = extras[measured_batch]
            within = np.clip(widths, nodes[0], nodes[-1])
            weights = hat_weights(nodes, within) if len(nodes) > 1 else np.ones((len(widths), 1))
            total += share * (seconds @ weights.T)
            extrapolated |= bool(np.abs(within - widths).max() > 1e-9)
        return total * (batch / near), extrapolated

    def _extras(self, source: Source, kind: Sampling) -> dict[int, tuple[Array, Array]]:
        """By batch, the drafted counts measured with this sampler and its extra seconds there, [draws + 1, counts]."""
        if (source, kind) not in self._known_extras:
            found: dict[int, tuple[Array, Array]] = {}
            zero = (0,) if source[0] in LOOKUP_METHODS else ()  # a step without a proposal is a plain step
            for batch, rows in self._rows.get((source, kind), {}).items():
                extra: dict[int, Array] = {}
                for d in sorted({*rows, *zero}):
                    at = np.array([float(d)])
                    with contextlib.suppress(NotMeasured):  # no greedy step to compare with
                        sampled = self._measured(source, kind, at, batch)
                        extra[d] = (sampled - self._measured(source, "greedy", at, batch))[:, 0]
                if extra:
                    found[batch] = np.array(sorted(extra), dtype=float), np.stack([extra[d] for d in sorted(extra)], 1)
            self._known_extras[source, kind] = found
        return self._known_extras[source, kind]

    def _between(self, source: Source, kind: Sampling, batches: Sequence[int], batch: int) -> list[tuple[int, float]]:
        """The measured batches around `batch` with their interpolation shares."""
        if batch in batches:
            return [(batch, 1.0)]
        below = [b for b in batches if b < batch]
        above = [b for b in batches if b > batch]
        if not below or not above:
            raise NotMeasured(
                f"step cost of {_name(source)} at batch {batch}, {kind}, was not measured"
                f" (measured: batch {_spoken(batches)}):"
                f" profile again with --loads {','.join(map(str, sorted({*batches, batch})))}"
            )
        share = (batch - below[-1]) / (above[0] - below[-1])
        return [(below[-1], 1 - share), (above[0], share)]

    def _at_batch(self, source: Source, kind: Sampling, batch: int, widths: Array) -> Array:
        nodes = self._nodes(source, kind, batch)
        drafted = sorted(nodes)
        if widths.min() < drafted[0] - 1e-9 or widths.max() > drafted[-1] + 1e-9:
            wrong = widths.max() if widths.max() > drafted[-1] else widths.min()
            raise NotMeasured(
                f"step cost of {_name(source)} at {wrong:g} drafted tokens, batch {batch}, {kind}, was not measured"
                f" (measured: drafted {_spoken(drafted)}): profile again with --max-k {max(1, round(wrong))}"
            )
        weights = hat_weights(np.array(drafted, dtype=float), widths)
        return np.stack([nodes[d] for d in drafted], axis=1) @ weights.T

    def _nodes(self, source: Source, kind: Sampling, batch: int) -> dict[int, Array]:
        """Seconds by measured drafted count at a measured batch."""
        nodes = {d: self._at_context(source, kind, batch, c) for d, c in self._rows[(source, kind)][batch].items()}
        if source[0] in LOOKUP_METHODS and 0 not in nodes:  # a step without a proposal is a plain step
            nodes[0] = self.line("none", None, np.zeros(1), batch, kind).seconds[:, 0]
        return nodes

    def _at_context(self, source: Source, kind: Sampling, batch: int, contexts: dict[int, Array]) -> Array:
        """A row's value moved to the common reference context."""
        nearest = min(contexts, key=lambda c: abs(c - self._context))
        if nearest == self._context:
            return contexts[nearest]
        return contexts[nearest] + self._slope(source, kind, batch)[0] * (self._context - nearest)

    def _slope(self, source: Source, kind: Sampling, batch: int) -> tuple[Array, list[int]]:
        """Seconds per context token at a batch, and the contexts that showed it.

        From rows measured at two contexts, own method first, at the nearest batch. Every request reads its own cache,
        so a slope seen at another batch is scaled by the ratio of batches.
        """
        for key in ((source, kind), (source, "greedy"), (_PLAIN, kind), (_PLAIN, "greedy")):
            pairs: dict[int, list[Array]] = {}
            seen: list[int] = []
            for b, rows in self._rows.get(key, {}).items():
                for contexts in rows.values():
                    low, high = min(contexts), max(contexts)
                    if low < high:
                        seen += [low, high]
                        pairs.setdefault(b, []).append((contexts[high] - contexts[low]) / (high - low))
            if pairs:
                nearest = min(pairs, key=lambda b: abs(b - batch))
                slope = np.mean(pairs[nearest], axis=0) * (batch / nearest)
                return np.maximum(slope, 0.0), seen  # no step gets cheaper with context: noise, where it seems so
        return np.zeros(self.draws + 1), []

    def prefill_weights(self, method: str, drafter: str | None, prompt_tokens: Array) -> tuple[Array, Array, bool]:
        """Linear weights [prompts, nodes] and node seconds [draws + 1, nodes]: seconds = nodes @ weights.T.

        Linear above the longest measured prompt (flagged), constant below the shortest (an upper bound). A method
        without rows of its own uses plain ones: right for lookup in process, flagged for drafters that prefill too.
        """
        source = (method, drafter)
        borrowed = source not in self._prefills and method not in ("none", *LOOKUP_METHODS)
        if source not in self._prefills:
            source = ("none", None)
        if source not in self._prefills:
            raise NotMeasured("prefill cost of plain decoding was not measured: profile again")
        nodes, seconds = self._prefills[source]
        weights = hat_weights(nodes, np.maximum(prompt_tokens, nodes[0]))
        return weights, seconds, borrowed or bool(np.mean(prompt_tokens) > nodes[-1])

    def prefill_seconds(self, method: str, drafter: str | None, prompt_tokens: float) -> Cost:
        """Seconds to prefill one prompt, the drafter's share included."""
        weights, seconds, flag = self.prefill_weights(method, drafter, np.array([float(prompt_tokens)]))
        return Cost(seconds @ weights[0], flag)


def hat_weights(nodes: Array, points: Array) -> Array:
    """Weights [points, nodes] of piecewise linear interpolation; linear beyond the last node.

    With one node the value is proportional above it (a longer prompt costs more) and constant below.
    """
    if len(nodes) == 1:
        return np.reshape(np.maximum(points / max(nodes[0], 1.0), 1.0), (-1, 1))
    left = np.clip(np.searchsorted(nodes, points, side="right") - 1, 0, len(nodes) - 2)
    share = (points - nodes[left]) / (nodes[left + 1] - nodes[left])
    weights = np.zeros((len(points), len(nodes)))
    index = np.arange(len(points))
    weights[index, left] = 1 - share
    weights[index, left + 1] = share
    return weights


def _medians(repeats: Sequence[float], draws: int, rng: np.random.Generator) -> Array:
    values = np.asarray(repeats, dtype=float)
    resampled = np.median(rng.choice(values, (draws, len(values))), axis=1) if draws else np.empty(0)
    return np.concatenate([[np.median(values)], resampled])


def _source(method: str, drafter: str | None, drafts: DraftSampleMethod = "greedy") -> Source:
    return method, drafter, drafts


def _name(source: Source) -> str:
    return " ".join(part for part in source if part and part != "greedy")


def _spoken(values: Iterable[int]) -> str:
    return ", ".join(str(v) for v in sorted(values))
