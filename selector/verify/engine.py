"""What the comparison asks of an engine besides decoding."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from selector.engines.base import Generation, TokenScores
from selector.equality import GapEngine
from selector.strategy import Strategy


class ScoringEngine(GapEngine, Protocol):
    """An engine whose target can be asked what it thinks of a finished output."""

    @property
    def stop_ids(self) -> Collection[int]:
        """Tokens that end an output."""

    def score(
        self, output: Generation, strategies: Sequence[Strategy], *, temperature: float, top_p: float
    ) -> TokenScores:
        """Every token of an output against the distribution it should follow; `favoured` for each strategy's family."""
