"""How measuring code tells that it moves on; `Silent` for libraries and tests."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Work is counted in estimated seconds, so that the time left makes sense across unlike measurements."""

    def begin(self, total_seconds: float) -> None:
        """The whole run's estimate."""

    def stage(self, name: str) -> None:
        """What is being done now."""

    def advance(self, estimated_seconds: float) -> None:
        """A piece that was estimated at so many seconds is finished."""

    def skip(self, estimated_seconds: float) -> None:
        """A piece was in the journal already: it says nothing about the pace."""

    def say(self, text: str) -> None:
        """One line of talk."""


class Silent:
    """Says nothing."""

    def begin(self, total_seconds: float) -> None:
        """Nothing."""

    def stage(self, name: str) -> None:
        """Nothing."""

    def advance(self, estimated_seconds: float) -> None:
        """Nothing."""

    def skip(self, estimated_seconds: float) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""
