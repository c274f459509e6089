"""The folder that holds what is built once, and the lock and marker that keep it whole."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from platformdirs import user_cache_dir

from selector.errors import FetchError

Say = Callable[[str], None]
MARKER = "selector-embedded.json"


def silent(_: str) -> None:
    """Say nothing: the default listener."""


def cache_dir() -> Path:
    """Where built models live: `SELECTOR_CACHE_DIR`, else the user's cache folder. Created when missing."""
    chosen = os.environ.get("SELECTOR_CACHE_DIR")
    default = user_cache_dir("decoding-strategy-selector", appauthor=False)
    folder = Path(chosen or default).expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FetchError(
            f"{folder}: cannot be created ({error.strerror}); set SELECTOR_CACHE_DIR to a writable folder"
        ) from error
    return folder


def need_free(folder: Path, size_bytes: int) -> None:
    """Refuse to start what cannot end: raises `FetchError` when the disk is too full."""
    free = shutil.disk_usage(folder).free
    if free < size_bytes:
        raise FetchError(
            f"{folder}: {free / 1e6:.0f} MB free, {size_bytes / 1e6:.0f} MB needed; "
            "make room or set SELECTOR_CACHE_DIR to another disk"
        )


@contextmanager
def locked(folder: Path, say: Say = silent) -> Iterator[None]:
    """Hold the folder's lock. The system drops it when its holder dies, so a kill leaves nothing stale."""
    try:
        file = (folder / ".lock").open("a+b")
    except OSError as error:
        raise FetchError(f"{folder}: not writable ({error.strerror}); set SELECTOR_CACHE_DIR to another") from error
    with file:
        if not _try_lock(file.fileno()):
            say("another process is preparing the embedded model; waiting for it")
            while not _try_lock(file.fileno()):
                time.sleep(0.2)
        yield  # closing the file releases the lock


def _try_lock(descriptor: int) -> bool:
    if sys.platform == "win32":
        import msvcrt

        try:
            os.lseek(descriptor, 0, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_complete(folder: Path, source: str) -> bool:
    """True when `folder` was sealed for this `source` and every file still has its size."""
    try:
        mark = json.loads((folder / MARKER).read_bytes())
        sizes: dict[str, int] = mark["sizes"]
        whole = all((folder / name).stat().st_size == size for name, size in sizes.items())
        return whole and bool(mark["source"] == source)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


@contextmanager
def building(final: Path, source: str) -> Iterator[Path]:
    """A temporary folder that becomes `final`, marked complete, if the block ends well. Needs the lock."""
    partial = final.with_name(final.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)  # left by a kill
    partial.mkdir()
    try:
        yield partial
        for file in partial.iterdir():
            file.chmod(0o644)  # safetensors writes 0600, and a server often runs as another user
        sizes = {file.name: file.stat().st_size for file in sorted(partial.iterdir())}
        mark = {"source": source, "sizes": sizes}
        (partial / MARKER).write_text(json.dumps(mark, indent=1) + "\n", "utf-8")
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
