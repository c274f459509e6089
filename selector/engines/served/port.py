"""Whether a server's port is free, and keeping other selectors off it."""

from __future__ import annotations

import contextlib
import errno
import socket
import sys
import time
from urllib.parse import urlsplit

from selector.errors import ServerFailed

CLAIM_SECONDS = 5.0  #: who is killed and starts again at once finds the last server still being taken down
LOCAL = {"localhost", "127.0.0.1", "::1", "0.0.0.0", "::"}


class Port:
    """The port of a base URL.

    A server takes tens of seconds to bind its port, so "free now" is not enough: a second selector could find it free
    as well and then measure the first one's server. A claim (an abstract Unix socket, Linux only) is there from the
    start and ends with its holders, however they end.
    """

    def __init__(self, base_url: str) -> None:
        parts = urlsplit(base_url)
        self.host = parts.hostname or "127.0.0.1"
        self.number = parts.port or (443 if parts.scheme == "https" else 80)
        self._claim: socket.socket | None = None

    def is_free(self) -> bool:
        """Nobody listens; a port that we may not bind for other reasons counts as free, and the server will say why."""
        try:
            with socket.create_connection((self.host, self.number), timeout=2):
                return False
        except OSError:
            pass
        if self.host not in LOCAL:
            return True
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections in TIME_WAIT do not matter
            try:
                probe.bind((self.host, self.number))
            except OSError as error:
                return error.errno != errno.EADDRINUSE
        return True

    def claim(self) -> tuple[int, ...]:
        """Refuses a taken port; gives back the descriptors of the claim, for a process that shall hold it with us."""
        until = time.monotonic() + CLAIM_SECONDS
        while not (mine := self._try_claim()) and time.monotonic() < until:
            time.sleep(0.1)
        if not mine or not self.is_free():
            self.release()
            raise ServerFailed(f"port {self.number} is taken by another process: give another --port")
        return () if self._claim is None else (self._claim.fileno(),)

    def _try_claim(self) -> bool:
        if self.host not in LOCAL or sys.platform != "linux":
            return True
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0decoding-strategy-selector:{self.number}")
        except OSError as error:
            claim.close()
            return error.errno != errno.EADDRINUSE
        self._claim = claim
        return True

    def release(self) -> None:
        """Ends our share of the claim."""
        if self._claim is not None:
            self._claim.close()
            self._claim = None

    def wait_until_free(self, seconds: float) -> bool:
        """Whether it became free; a container's port is let go a little after its client."""
        until = time.monotonic() + seconds
        with contextlib.suppress(OSError):
            while not self.is_free():
                if time.monotonic() > until:
                    return False
                time.sleep(0.1)
        return True
