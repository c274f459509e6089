"""The journal: every finished measurement on disk before the next begins."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from selector.errors import ProfileError


class Journal:
    """Append-only JSON lines, each flushed to the disk itself. The first line names the run it belongs to.

    A line torn by a kill is dropped when the file is opened again. One process at a time: a lock file beside the
    journal holds the owner's process id.
    """

    def __init__(self, path: Path, header: dict[str, Any], *, resume: bool) -> None:
        self.path, self.lock = path, path.with_suffix(path.suffix + ".lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._take_lock()
        try:
            self.entries: dict[str, dict[str, Any]] = {}
            self.resumed = resume and path.exists()
            if self.resumed:
                self._read(header)
            elif path.exists() and path.stat().st_size:
                raise ProfileError(
                    f"{path}: an unfinished run is kept here; add --resume to go on with it, or --fresh to begin again"
                )
            self._file = path.open("ab")
            if not self.resumed or path.stat().st_size == 0:
                self._append({"header": header})
        except BaseException:
            self.lock.unlink(missing_ok=True)
            raise

    def _take_lock(self) -> None:
        for _ in range(2):
            try:
                with self.lock.open("x") as f:
                    f.write(str(os.getpid()))
                return
            except FileExistsError:
                owner = self.lock.read_text().strip()
                if owner.isdigit() and _alive(int(owner)):
                    raise ProfileError(
                        f"{self.path}: process {owner} is profiling into it right now; give another --out"
                    ) from None
                self.lock.unlink(missing_ok=True)

    def _read(self, header: dict[str, Any]) -> None:
        raw = self.path.read_bytes()
        whole = raw[: raw.rfind(b"\n") + 1]
        lines = [json.loads(line) for line in whole.splitlines()]
        if lines:
            changed = [k for k, v in header.items() if lines[0].get("header", {}).get(k) != v]
            if changed:
                raise ProfileError(
                    f"{self.path}: belongs to a run with other settings ({', '.join(changed)} changed); "
                    "use --fresh to begin again, or another --out"
                )
        for line in lines[1:]:
            self.entries[line["key"]] = line["data"]
        if len(whole) < len(raw):
            os.truncate(self.path, len(whole))

    def _append(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line, separators=(",", ":"), ensure_ascii=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def __contains__(self, key: str) -> bool:
        return key in self.entries

    def __getitem__(self, key: str) -> dict[str, Any]:
        return self.entries[key]

    def add(self, key: str, data: dict[str, Any]) -> None:
        """Record one finished measurement."""
        self.entries[key] = data
        self._append({"key": key, "data": data})

    def under(self, prefix: str) -> Iterator[dict[str, Any]]:
        """Entries whose key starts with `prefix` and a slash, in the order they were measured."""
        return (v for k, v in self.entries.items() if k.startswith(prefix + "/"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self.lock.unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove the file: its content stands in the finished profile."""
        self._file.close()
        self.path.unlink(missing_ok=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid != os.getpid()
