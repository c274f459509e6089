"""Server-sent events, cut out of a stream of bytes."""

from __future__ import annotations

#: What ends an OpenAI stream.
DONE = b"[DONE]"


class Events:
    """Feed it bytes as they come; it hands back the data of every event that is whole."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """Data of the events that `piece` completes; comments (keep-alive) and other fields are passed over."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        events = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        return events

    def end(self) -> list[bytes]:
        """What is left when the stream ends: a last event whose empty line never came."""
        return self.feed(b"\n\n")
