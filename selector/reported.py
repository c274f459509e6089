"""Figures from somebody's report instead of a measurement: which are taken, and which are refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from selector.counters import SpeculationCounters
from selector.errors import CountersError, NotMeasured

#: From here on vLLM's "Mean acceptance length" counts the bonus token (vllm-project/vllm#17908, May 2025).
VLLM_COUNTS_BONUS = (0, 9)


def reported_acceptance_length(
    value: float | None = None, *, vllm_version: str | None = None, counters: SpeculationCounters | None = None
) -> float:
    """An acceptance length incl. bonus, from counters (they win) or from a vLLM version known to include it.

    Raises `CountersError` for a bare number: with or without the bonus token it differs by 1.
    """
    if counters is not None and counters.acceptance_length is not None:
        return counters.acceptance_length
    if value is None:
        raise CountersError("no acceptance length without drafts: give accepted tokens and a number of drafts above 0")
    if vllm_version is None:
        raise CountersError(
            f"acceptance length {value:g}: with the bonus token or without? Give the counters (accepted tokens and "
            "drafts), or the vLLM version that printed it"
        )
    numbers = tuple(int(n) for n in re.findall(r"\d+", vllm_version)[:2])
    if len(numbers) < 2 or numbers < VLLM_COUNTS_BONUS:
        raise CountersError(
            f"acceptance length {value:g} of vLLM {vllm_version!r}: only from 0.9 on is the bonus token known to be "
            "included; give the counters (accepted tokens and drafts)"
        )
    if value < 1:
        raise CountersError(f"acceptance length {value:g}: below 1, so the bonus token is not in it; give the counters")
    return value


@dataclass(frozen=True)
class ReportedArm:
    """One arm of somebody's table: output tokens per second, and its gain over plain decoding if that is all it says.

    gain_percent: +32 for 32% faster than plain decoding.
    """

    name: str
    tokens_per_second: float
    gain_percent: float | None = None

    @property
    def implied_plain(self) -> float | None:
        """Plain decoding's tokens per second if the gain were exact."""
        if self.gain_percent is None or self.gain_percent <= -100:
            return None
        return self.tokens_per_second / (1 + self.gain_percent / 100)


def plain_tokens_per_second(arms: Sequence[ReportedArm]) -> float:
    """The rate of the arm named `none`; raises `NotMeasured` when there are only gains in percent to infer it from."""
    for arm in arms:
        if arm.name == "none":
            return arm.tokens_per_second
    implied = [f"{a.name} implies {a.implied_plain:.1f} tok/s" for a in arms if a.implied_plain is not None]
    said = f"; the gains in percent are no measurement: {', '.join(implied)}" if implied else ""
    raise NotMeasured(f"no arm 'none' among {', '.join(a.name for a in arms)}{said}. Give plain decoding's own tok/s")
