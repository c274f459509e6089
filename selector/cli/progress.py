"""A progress line on stderr: what is done now, how far, and the time left."""

from __future__ import annotations

import shlex
import sys
import time
from typing import TextIO


class ProgressLine:
    """Rewrites one line on a terminal; elsewhere prints a line when the stage changes, at most one in 5 seconds.

    The time left starts from the plan's estimate and moves to the pace really kept; before there is a plan,
    none is shown.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.live = self.stream.isatty()
        self.total = self.done = 0.0
        self.started = self.printed = time.monotonic()
        self.text = self.shown = ""

    def begin(self, total_seconds: float) -> None:
        """Start counting."""
        self.total, self.done, self.started = total_seconds, 0.0, time.monotonic()

    def stage(self, name: str) -> None:
        """Show what runs now."""
        self.text = name
        self._show()

    def advance(self, estimated_seconds: float) -> None:
        """Move on."""
        self.done += estimated_seconds
        self._show()

    def skip(self, estimated_seconds: float) -> None:
        """Take finished work off the total."""
        self.total -= estimated_seconds

    def say(self, text: str) -> None:
        """A line of its own."""
        self._clear()
        print(text, file=self.stream, flush=True)

    def finish(self) -> None:
        """Leave the line."""
        self._clear()

    @property
    def seconds_left(self) -> float:
        """Estimated work left at the pace so far (the plan's pace until 5% is done)."""
        left = max(0.0, self.total - self.done)
        if self.total and self.done > 0.05 * self.total:
            return left * (time.monotonic() - self.started) / self.done
        return left

    def _show(self) -> None:
        now = time.monotonic()
        if not self.live and (now - self.printed < 5 or self.text == self.shown):
            return
        self.printed, self.shown = now, self.text
        share = min(1.0, self.done / self.total) if self.total else 0.0
        line = f"{share:4.0%}  {_clock(self.seconds_left)} left  {self.text}" if self.total else self.text
        if self.live:
            print(f"\r\x1b[K{line[:110]}", end="", file=self.stream, flush=True)
        else:
            print(line, file=self.stream, flush=True)

    def _clear(self) -> None:
        if self.live:
            print("\r\x1b[K", end="", file=self.stream, flush=True)


def command_line() -> str:
    """This call as a person would type it; bytes that are no UTF-8 are written as escapes."""
    return "selector " + shlex.join(sys.argv[1:]).encode("utf-8", "backslashreplace").decode()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"
