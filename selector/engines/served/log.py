"""What a server's log says about why it failed."""

from __future__ import annotations

import re
from pathlib import Path

#: "(EngineCore pid=7) ERROR 12-01 04:05:06 [core.py:12] ", all parts optional.
PREFIX = re.compile(
    r"^(?:\([\w ]+pid=\d+\)\s*)?(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\s+[\d-]+ [\d:.,]+ \[[^\]]*\]\s?)?"
)
COLOUR = re.compile(r"\x1b\[[0-9;]*m")

#: What an error looks like: an exception's last line, argparse, and what engines log without raising.
ERROR = re.compile(
    r"^(?:[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|NotFound|Failure)(?::|$)"
    r"|Exception:"
    r"|[\w./ -]+: error: "
    r"|docker: "
    r"|.*(?:CUDA out of memory|No available memory for the cache blocks|[Aa]ddress already in use|No module named )"
    r"|.*(?:[Ss]egmentation fault|Killed$|terminate called after throwing))"
)

#: True, but said by a process that only heard of the failure of another: taken if nothing better is there.
HEARSAY = re.compile(
    r"See root cause above|Worker failed with error|WorkerProc initialization failed|EngineDeadError"
    r"|EngineCore encountered an issue|died unexpectedly|SystemExit|KeyboardInterrupt|CancelledError"
)
LENGTH = 500


def engine_error(text: str) -> str:
    """The most telling error of a log, without log prefixes and at most 500 characters long; "" if there is none.

    That is the last line that looks like an error and is not hearsay, with the lines that belong to it (pydantic's).
    """
    lines = [PREFIX.sub("", COLOUR.sub("", line)).rstrip() for line in text.splitlines()]
    errors = [i for i, line in enumerate(lines) if ERROR.match(line)]
    telling = [i for i in errors if not HEARSAY.search(lines[i])]
    chosen = telling or errors
    if not chosen:
        return ""
    at = chosen[-1]
    message = " ".join([lines[at], *_continuation(lines[at:])])
    return message if len(message) <= LENGTH else message[: LENGTH - 1] + "…"


def _continuation(lines: list[str]) -> list[str]:
    """pydantic puts what was wrong below "1 validation error for X", indented by two."""
    if not re.search(r"\d+ validation errors? for ", lines[0]):
        return []
    more: list[str] = []
    for line in lines[1:]:
        if line.startswith("    For further information") or not line.strip() or len(more) == 6:
            break
        more.append(re.sub(r" \[type=.*", "", line.strip()))
    return more


def tail(log: Path, lines: int, start: int = 0) -> str:
    """The last lines of a log file, from byte `start` on; its last megabyte at most."""
    try:
        with log.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(start, end - 2**20))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
