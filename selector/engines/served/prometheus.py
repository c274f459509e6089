"""Counters and gauges of a served engine, read from its /metrics text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from selector.engines.served.metric_names import COUNTERS, GAUGES
from selector.errors import SelectorError

_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*\Z")
_LABEL = re.compile(r'\s*([a-zA-Z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|\Z)')
_ESCAPED = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}

#: When the process began (seconds since 1970): a new one started counting from zero.
_STARTED = "process_start_time_seconds"

Labels = tuple[tuple[str, str], ...]


class MetricsError(SelectorError):
    """The /metrics text is not Prometheus text, or two snapshots are not of the same server process."""


@dataclass(frozen=True)
class Gauges:
    """How busy the server is right now. None: not available."""

    running: float | None
    waiting: float | None
    kv_usage: float | None

    @classmethod
    def parse(cls, text: str) -> Gauges:
        """Reads only the lines it needs, so that polling costs little beside a load. Raises `MetricsError`."""
        wanted = tuple(name for names in GAUGES.values() for name in names)
        lines = "\n".join(line for line in text.splitlines() if line.startswith(wanted))
        return Counters.parse(lines).gauges


@dataclass(frozen=True)
class Counters:
    """One snapshot, or the difference of two. A metric that is not there is None (stats disabled), never 0."""

    samples: Mapping[tuple[str, Labels], float]
    kinds: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Counters:
        """Raises `MetricsError` at the first line that is no sample and no comment."""
        samples: dict[tuple[str, Labels], float] = {}
        kinds: dict[str, str] = {}
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                name, _, kind = line[len("# TYPE ") :].strip().partition(" ")
                kinds[name] = kind
            elif line.strip() and not line.startswith("#"):
                name, labels, value = _sample(line)
                samples[name, labels] = value
        return cls(samples, kinds)

    def minus(self, earlier: Counters) -> Counters:
        """What was counted since `earlier`; gauges keep their present value.

        Raises `MetricsError` if the server was restarted in between.
        """
        if self.total(_STARTED) != earlier.total(_STARTED):
            raise _restarted("its start time differs")
        if gone := next((key for key in earlier.samples if key not in self.samples and self._counts(key[0])), None):
            raise _restarted(f"{gone[0]} is gone")
        difference = dict(self.samples)
        for key, value in self.samples.items():
            if self._counts(key[0]):
                difference[key] = value - earlier.samples.get(key, 0.0)
                if difference[key] < 0:
                    raise _restarted(f"{key[0]} fell by {-difference[key]:g}")
        return Counters(difference, self.kinds)

    def _counts(self, name: str) -> bool:
        """Whether a sample only ever grows; one of unknown type is judged by its name."""
        if name.endswith("_created"):
            return False
        base = re.sub(r"_(sum|count|bucket)\Z", "", name)
        kind = self.kinds.get(name) or self.kinds.get(base) or self.kinds.get(name.removesuffix("_total"))
        if kind is None:
            return name != base or name.endswith("_total")
        return kind in ("counter", "histogram", "summary")

    def total(self, name: str) -> float | None:
        """Sum over all label sets (engines, models, ranks); the name may come with or without `_total`."""
        values = [value for _, value in self._named(name)]
        return math.fsum(values) if values else None

    def by_label(self, name: str, label: str) -> dict[str, float] | None:
        """Sums by the value of one label; None if the metric is not there."""
        sums: dict[str, float] = {}
        for labels, value in self._named(name):
            key = dict(labels).get(label, "")
            sums[key] = sums.get(key, 0.0) + value
        return sums or None

    def _named(self, name: str) -> list[tuple[Labels, float]]:
        for spelling in (name, name + "_total", name.removesuffix("_total")):
            if found := [(labels, value) for (n, labels), value in self.samples.items() if n == spelling]:
                return found
        return []

    def get(self, what: str) -> float | None:
        """One of our own names (`metric_names.COUNTERS`), whatever the engine calls it; None: not available."""
        return next((v for name in COUNTERS[what] if (v := self.total(name)) is not None), None)

    @property
    def engine_steps(self) -> float | None:
        """Iterations of the engine, prefills included."""
        return self.get("engine_steps")

    @property
    def generated_tokens(self) -> float | None:
        """Output tokens."""
        return self.get("generated_tokens")

    @property
    def prompt_tokens(self) -> float | None:
        """Prompt tokens of requests that began to answer."""
        return self.get("prompt_tokens")

    @property
    def drafts(self) -> float | None:
        """Speculated steps, one per request in it."""
        return self.get("drafts")

    @property
    def drafted_tokens(self) -> float | None:
        """Tokens drafted."""
        return self.get("drafted_tokens")

    @property
    def accepted_tokens(self) -> float | None:
        """Drafted tokens that were accepted, those past an output's end included."""
        return self.get("accepted_tokens")

    @property
    def accepted_per_position(self) -> tuple[float, ...] | None:
        """Accepted tokens by position in the draft, first to last."""
        found = self.by_label(COUNTERS["accepted_per_position"][0], "position")
        return None if found is None else tuple(found[p] for p in sorted(found, key=int))

    @property
    def prefix_queries(self) -> float | None:
        """Prompt tokens looked up in the prefix cache (0 where it is off)."""
        return self.get("prefix_queries")

    @property
    def prefix_hits(self) -> float | None:
        """Prompt tokens found in the prefix cache."""
        return self.get("prefix_hits")

    @property
    def preemptions(self) -> float | None:
        """Requests thrown out of the KV cache to be computed again."""
        return self.get("preemptions")

    @property
    def gauges(self) -> Gauges:
        """Present state; the fullest KV cache of several engines."""
        running, waiting = (
            next((v for name in GAUGES[what] if (v := self.total(name)) is not None), None)
            for what in ("running", "waiting")
        )
        usage = [value for name in GAUGES["kv_usage"] for _, value in self._named(name)]
        return Gauges(running, waiting, max(usage, default=None))


def _sample(line: str) -> tuple[str, Labels, float]:
    match = _SAMPLE.match(line)
    try:
        if match is None:
            raise ValueError(line)
        return match[1], tuple(sorted(_labels(match[2] or ""))), float(match[3])
    except ValueError as error:
        raise MetricsError(f"/metrics: not a Prometheus sample: {line[:80]!r}; is this a serving engine?") from error


def _labels(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while text[at:].strip():
        match = _LABEL.match(text, at)
        if match is None:
            raise ValueError(text)
        yield match[1], re.sub(r"\\.", lambda m: _ESCAPED.get(m[0], m[0]), match[2])
        at = match.end()


def _restarted(sign: str) -> MetricsError:
    return MetricsError(f"/metrics: the server was restarted between two readings ({sign}): measure this part again")
