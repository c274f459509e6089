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


def test_fresh_leaves_the_journal_of_a_running_process_alone(tmp_path: Path) -> None:
    path = tmp_path / "j"
    written(path)
    before = path.read_bytes()
    owner = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    (tmp_path / "j.lock").write_text(str(owner.pid))
    with pytest.raises(ProfileError, match=r"if that process is not a selector, delete .*j\.lock"):
        Journal(path, HEADER, resume=False, fresh=True)
    assert path.read_bytes() == before
    owner.communicate(b"\n")
    with Journal(path, HEADER, resume=False, fresh=True) as journal:
        assert not journal.entries


@pytest.mark.parametrize("owner", ["", "0", "9" * 5000, "9999999999", "²", "junk"])
def test_a_lock_without_a_usable_process_id_is_taken_over(tmp_path: Path, owner: str) -> None:
    (tmp_path / "j.lock").write_text(owner, "utf-8")
    written(tmp_path / "j")


@pytest.mark.parametrize("line", ["{broken", "[1]", '{"key":1,"data":{}}', '{"key":"a/9"}', "[" * 100_000, ""])
def test_a_broken_line_in_the_middle_is_named(tmp_path: Path, line: str) -> None:
    written(tmp_path / "j")
    lines = (tmp_path / "j").read_text().splitlines()
    (tmp_path / "j").write_text("\n".join([lines[0], line, *lines[1:], ""]))
    with pytest.raises(ProfileError, match=r"j:2: broken line; use --fresh"):
        Journal(tmp_path / "j", HEADER, resume=True)


_STARTER = """
import sys, pathlib
from selector.errors import ProfileError
from selector.measure.journal import Journal
print("ready", flush=True)
input()
try:
    journal = Journal(pathlib.Path(sys.argv[1]), {}, resume=True)
except ProfileError:
    print("refused", flush=True)
else:
    print("taken", flush=True)
input()
"""


def test_of_starters_that_find_a_dead_lock_one_gets_it(tmp_path: Path) -> None:
    (tmp_path / "j.lock").write_text("")
    line = [sys.executable, "-c", _STARTER, str(tmp_path / "j")]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    starters = [
        subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(4)
    ]
    for reply in ("ready", None):
        said = [str(s.stdout and s.stdout.readline()).strip() for s in starters]
        for s in starters if reply else []:
            assert s.stdin is not None
            s.stdin.write("\n")
            s.stdin.flush()
    for s in starters:
        s.communicate("\n")
    assert sorted(said) == ["refused", "refused", "refused", "taken"]


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ProfileError, match="cannot be written"):
        Journal(tmp_path / "file" / "j", HEADER, resume=False)
