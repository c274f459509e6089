"""The journal survives kills, refuses another run's file, and is owned by one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from selector.errors import ProfileError
from selector.measure.journal import Journal

HEADER = {"seed": 0, "k_max": 8}


def written(path: Path) -> None:
    with Journal(path, HEADER, resume=False) as journal:
        journal.add("a/1", {"x": 1})
        journal.add("a/2", {"x": 2})


def test_entries_come_back_in_order(tmp_path: Path) -> None:
    written(tmp_path / "j")
    with Journal(tmp_path / "j", HEADER, resume=True) as journal:
        assert journal.resumed
        assert [e["x"] for e in journal.under("a")] == [1, 2]
        assert "a/3" not in journal


@pytest.mark.parametrize("cut", [1, 2, 10, 28])
def test_a_line_torn_by_a_kill_is_dropped_and_written_again(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "j"
    written(path)
    os.truncate(path, path.stat().st_size - cut)
    with Journal(path, HEADER, resume=True) as journal:
        assert [e["x"] for e in journal.under("a")] == [1]
        journal.add("a/2", {"x": 5})
    with Journal(path, HEADER, resume=True) as journal:
        assert [e["x"] for e in journal.under("a")][-1] == 5


def test_an_unfinished_run_is_not_overwritten(tmp_path: Path) -> None:
    written(tmp_path / "j")
    before = (tmp_path / "j").read_bytes()
    with pytest.raises(ProfileError, match="--resume to go on with it, or --fresh"):
        Journal(tmp_path / "j", HEADER, resume=False)
    assert (tmp_path / "j").read_bytes() == before


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    written(tmp_path / "j")
    with pytest.raises(ProfileError, match=r"other settings \(k_max changed\)"):
        Journal(tmp_path / "j", HEADER | {"k_max": 4}, resume=True)
    written(tmp_path / "k")  # the failed attempt left no lock behind
    assert not list(tmp_path.glob("*.lock"))


def test_a_running_owner_is_respected_and_a_dead_one_is_not(tmp_path: Path) -> None:
    lock = tmp_path / "j.lock"
    owner = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    lock.write_text(str(owner.pid))
    with pytest.raises(ProfileError, match=f"process {owner.pid} is profiling"):
        Journal(tmp_path / "j", HEADER, resume=False)
    owner.communicate(b"\n")
    written(tmp_path / "j")
