"""A served engine's process: started, waited for, checked, and stopped without a trace."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from selector.engines.served.guard import Guard
from selector.engines.served.log import engine_error, tail
from selector.engines.served.port import Port
from selector.errors import MissingExtra, ServerFailed

try:
    import httpx
except ImportError as error:
    raise MissingExtra("httpx", "tune") from error

PORT_SECONDS = 10.0  #: a container lets go of its port a little after its client has ended


class ServerProcess:
    """A server that runs between `start` and `stop`, or inside a `with` block.

    `environment` is added to ours. stdout and stderr are appended to `log`. However we end, the server's whole process
    tree ends too, its port becomes free, and the POSIX shared memory it leaked is removed. On macOS, which has no
    /proc, only the server's process group is ended. A container outlives a `docker run` that is killed: telling its
    client by SIGTERM and giving it `grace_seconds` is all that can be done.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        *,
        base_url: str,
        log: Path,
        ready_seconds: float = 600,
        label: str = "",
        grace_seconds: float = 10,
    ) -> None:
        self.argv, self.environment = tuple(argv), dict(environment)
        self.base_url, self.log = base_url.rstrip("/"), log
        self.ready_seconds, self.grace_seconds = ready_seconds, grace_seconds
        self.label = label or "the engine"
        self._port = Port(base_url)
        self._guard: Guard | None = None
        self._log_start = 0
        self._health = "/health"
        self._answer = "nothing"

    @property
    def pid(self) -> int | None:
        """The server's process, which is its session and group, too; None when it is not running."""
        return (self._guard.pid or None) if self._guard else None

    def start(self, say: Callable[[str], None] | None = None) -> None:
        """Starts the server and waits until it is healthy; `say` is told every second or two how it comes along.

        When it fails or is interrupted, nothing is left running.
        """
        if os.name != "posix":
            raise ServerFailed("engines can be started on Linux and macOS only: on Windows run this inside WSL")
        if self._guard:
            raise RuntimeError(f"{self.label} was started already")
        hold = self._port.claim()
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            self._log_start = self.log.stat().st_size if self.log.exists() else 0
            self._guard = Guard(
                self.argv, os.environ | self.environment, log=self.log, grace=self.grace_seconds, hold=hold
            )
            self._wait_until_healthy(self._guard, say)
        except OSError as error:
            self.stop()
            raise ServerFailed(f"{self.label} cannot be started: {error}") from None
        except BaseException:  # Ctrl-C above all
            self.stop()
            raise

    def check(self) -> None:
        """Raises `ServerFailed` if the server has died, or lives on without its engine (/health fails three times)."""
        if self._guard is None:
            raise ServerFailed(f"{self.label} is not running")
        self._guard.wait(0)
        with self._client(timeout=10) as client:
            for _ in range(3):
                self._raise_if_ended(self._guard)
                self._guard.note()
                if self._is_healthy(client):
                    return
                self._guard.wait(0.5)
        self._raise_if_ended(self._guard)
        raise ServerFailed(
            f"{self.label} runs, but GET {self._health} gave {self._answer} three times: {self._reason()}"
        )

    def stop(self) -> None:
        """Ends the server's whole process tree: SIGTERM, `grace_seconds`, SIGKILL. Does nothing the second time."""
        guard = self._guard
        if guard is None:
            self._port.release()
            return
        left = guard.finish()
        self._guard = None
        self._port.release()
        if left:
            pids = " ".join(map(str, left))
            raise ServerFailed(f"processes of {self.label} cannot be ended: try kill -9 {pids}, as root if need be")
        if not self._port.wait_until_free(PORT_SECONDS):
            raise ServerFailed(
                f"port {self._port.number} is still taken though {self.label} was stopped: does a container still run?"
            )

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of this start's log."""
        return tail(self.log, lines, self._log_start)

    def __enter__(self) -> Self:
        if self._guard is None:
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _client(self, timeout: float) -> httpx.Client:
        secure = self.base_url.startswith("https:")  # else spare it the loading of certificates, at every check
        return httpx.Client(base_url=self.base_url, timeout=timeout, trust_env=False, verify=secure)  # and no proxy

    def _wait_until_healthy(self, guard: Guard, say: Callable[[str], None] | None) -> None:
        began, delay = time.monotonic(), 0.05
        with self._client(timeout=2) as client:
            while True:
                guard.wait(delay)
                self._raise_if_ended(guard)
                if self._is_healthy(client):
                    break
                waited = time.monotonic() - began
                if waited > self.ready_seconds:
                    raise ServerFailed(
                        f"{self.label} was not ready after {self.ready_seconds:g} s "
                        f"(--ready-timeout raises the limit): GET {self._health} gave {self._answer}, {self._reason()}"
                    )
                guard.note()
                delay = min(delay * 1.5, 2.0, max(0.05, self.ready_seconds - waited))
                if say and delay > 0.5:
                    say(f"{self.label} is starting, {waited:.0f} s: {self._last_line()[:80]}")
        guard.wait(0)  # a healthy answer may be another server's while ours died for want of the port
        self._raise_if_ended(guard)
        guard.note()

    def _is_healthy(self, client: httpx.Client) -> bool:
        try:
            status = client.get(self._health).status_code
            if status == 404 and self._health == "/health":  # not vLLM
                self._health = "/v1/models"
                status = client.get(self._health).status_code
        except httpx.HTTPError as error:
            self._answer = type(error).__name__
            return False
        self._answer = f"status {status}"
        return status == 200

    def _raise_if_ended(self, guard: Guard) -> None:
        if how := guard.ended:
            raise ServerFailed(f"{self.label} ended ({how}): {self._reason()}")

    def _last_line(self) -> str:
        return self.log_tail(1).strip()

    def _reason(self) -> str:
        """The engine's own error, or the last thing it said, and where there is more."""
        text = self.log_tail(5000)
        said = engine_error(text) or f"its last line was {self._last_line()[:200]!r}"
        return f"{said} (log: {self.log})"
