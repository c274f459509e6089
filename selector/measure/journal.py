"""The journal: every finished measurement on disk before the next begins."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from selector.errors import ProfileError


class Journal:
    """Append-only JSON lines, each flushed to the disk itself. The first line names the run it belongs to.

    A line torn by a kill is dropped when the file is opened again. One process at a time: a lock file beside the
    journal holds the owner's process id.
    """

    def __init__(self, path: Path, header: dict[str, Any], *, resume: bool, fresh: bool = False) -> None:
        self.path, self.lock = path, path.with_suffix(path.suffix + ".lock")
        with _told(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with _one_at_a_time(path.parent):
                self._take_lock()
            self._open(header, resume, fresh)

    def _open(self, header: dict[str, Any], resume: bool, fresh: bool) -> None:
        path = self.path
        try:
            if fresh:  # only now that the lock is ours: the file of a running process is left alone
                path.unlink(missing_ok=True)
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
                owner = self.lock.read_text("utf-8", "replace").strip()
                if _alive(owner):
                    raise ProfileError(
                        f"{self.path}: process {owner} is profiling into it right now; give another --out "
                        f"(if that process is not a selector, delete {self.lock})"
                    ) from None
                self.lock.unlink(missing_ok=True)
        raise ProfileError(f"{self.lock}: another process took it at the same moment; give another --out")

    def _read(self, header: dict[str, Any]) -> None:
        raw = self.path.read_bytes()
        whole = raw[: raw.rfind(b"\n") + 1]
        lines = [self._line(n, line) for n, line in enumerate(whole.split(b"\n")[:-1], 1)]
        if lines:
            changed = [k for k, v in header.items() if lines[0]["header"].get(k) != v]
            if changed:
                raise ProfileError(
                    f"{self.path}: belongs to a run with other settings ({', '.join(changed)} changed); "
                    "use --fresh to begin again, or another --out"
                )
        for line in lines[1:]:
            self.entries[line["key"]] = line["data"]
        if len(whole) < len(raw):
            os.truncate(self.path, len(whole))

    def _line(self, number: int, text: bytes) -> dict[str, Any]:
        """The header in line 1, a key with its data in every other."""
        try:
            line: dict[str, Any] = json.loads(text)
            whole = isinstance(line["header"] if number == 1 else line["data"], dict)
            if whole and (number == 1 or isinstance(line["key"], str)):
                return line
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        raise ProfileError(f"{self.path}:{number}: broken line; use --fresh to begin again, or another --out")

    def _append(self, line: dict[str, Any]) -> None:
        with _told(self.path):
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
        try:
            with _told(self.path):
                self._file.close()  # writes what a full disk did not take before
        finally:
            self.lock.unlink(missing_ok=True)

    def note_resumption(self, at: str) -> None:
        """Write down that a run goes on here, if it does."""
        if self.resumed:
            self.add(f"resumed/{sum(1 for _ in self.under('resumed'))}", {"at": at})

    def discard(self) -> None:
        """Remove the file: its content stands in the finished profile."""
        self._file.close()
        self.path.unlink(missing_ok=True)


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """While one process puts its lock in a dead one's place, no other may do so. Windows goes without."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network folders know no such lock
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """What the disk refuses becomes one line with the file's name."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise ProfileError(f"{path}: cannot be written ({getattr(error, 'strerror', None) or error})") from error


def _alive(owner: str) -> bool:
    """Whether a lock's content is the id of another process that runs."""
    if not (owner.isascii() and owner.isdigit()) or len(owner) > 10 or int(owner) == 0:
        return False
    pid = int(owner)
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return pid != os.getpid()
