"""Our end of the script that starts a server, outlives us and takes the server down (`reaper.py`)."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from selector.engines.served import reaper


class Guard:
    """A server under guard: it ends when `finish` is called, and when our process ends in whatever way."""

    def __init__(
        self, argv: Sequence[str], environment: Mapping[str, str], *, log: Path, grace: float, hold: tuple[int, ...]
    ) -> None:
        job = reaper.Job(
            list(argv), dict(environment), str(uuid.uuid4()), list(reaper.segments()), owner=os.getpid(), grace=grace
        )
        self._job = job
        self._news: dict[str, Any] = {}
        self._partial = b""
        with log.open("ab") as file:
            self._script = subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(reaper.__file__).resolve())],
                stdin=subprocess.PIPE,  # close-on-exec on our side: no other child of ours keeps it open
                stdout=subprocess.PIPE,
                stderr=file,
                bufsize=0,
                pass_fds=hold,
                start_new_session=True,  # Ctrl-C in the terminal is for us to handle
            )
        self._send(json.dumps(asdict(job)).encode() + b"\n")

    @property
    def pid(self) -> int:
        """The server's, 0 until it is known."""
        return int(self._news.get("pid", 0))

    @property
    def ended(self) -> str | None:
        """How the server ended, in words; None while it runs."""
        if "error" in self._news:
            return f"its command cannot be run: {self._news['error']}"
        if (code := self._news.get("exit")) is not None:
            return f"exit code {code}" if code >= 0 else f"killed by signal {-code}"
        return "the process that guards it was killed" if self._lost else None

    @property
    def _lost(self) -> bool:
        return "eof" in self._news and "left" not in self._news and "error" not in self._news

    def wait(self, seconds: float) -> None:
        """Until there is news of the server or the time is over."""
        if "eof" in self._news:
            return
        out = self._script.stdout
        assert out is not None  # a pipe was asked for
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            if not selector.select(seconds):
                return
        data = os.read(out.fileno(), 65536)
        if not data:
            self._news["eof"] = True
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self._news |= json.loads(line)

    def note(self) -> None:
        """Has the shared memory in use now remembered: a process that dies by itself cannot be asked any more."""
        self._send(b".")

    def finish(self) -> list[int]:
        """Takes everything down; gives back the pids of what would not die. May be called again after an interrupt."""
        with contextlib.suppress(OSError):
            if self._script.stdin is not None:
                self._script.stdin.close()
        until = time.monotonic() + self._job.grace + reaper.KILL_SECONDS + 10
        while "eof" not in self._news and time.monotonic() < until:
            self.wait(until - time.monotonic())
        if "eof" not in self._news:  # it hangs
            self._script.kill()
            self._news["eof"] = True
        self._script.wait()
        if self._script.stdout is not None:
            self._script.stdout.close()
        if self._lost:
            self._news["left"] = self._take_down_ourselves()
        return list(self._news.get("left", ()))

    def _take_down_ourselves(self) -> list[int]:
        job = self._job
        started = int(self._news.get("started", 0))
        return reaper.Tree(self.pid, started, job.marker, frozenset(job.existed)).take_down(job.grace)

    def _send(self, data: bytes) -> None:
        pipe = self._script.stdin
        if pipe is None or pipe.closed:
            return
        with contextlib.suppress(BrokenPipeError):  # `wait` sees the end
            while data:
                data = data[pipe.write(data) or 0 :]
