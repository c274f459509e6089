"""The main job on the real model through the command line: profile, kill, resume, recommend, export, route."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from selector import Router
from selector.profile import load_profile
from selector.strategy import PLAIN
from selector.workload import load_workload

pytestmark = pytest.mark.embedded
SELECTOR = (sys.executable, "-m", "selector")
SMALL = ("--prompts-per-class", "2", "--loads", "1,2", "--max-k", "3", "--budget", "20s", "--workload", "w.jsonl")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes of four short requests."""
    rows = [
        {"prompt": r.prompt, "class": r.task, "max_tokens": 40}
        for name in ("chat", "edit")
        for r in load_workload().by_class()[name][:4]
    ]
    (tmp_path / "w.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def run(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run((*SELECTOR, *args), cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def kill_when_half_done(folder: Path, journal: Path) -> int:
    """kill -9 once step costs are being written; returns the finished measurements."""
    with subprocess.Popen(
        (*SELECTOR, "profile", *SMALL, "--out", "p.profile.json"), cwd=folder, stderr=subprocess.DEVNULL
    ) as process:
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline and process.poll() is None:
            if journal.exists() and journal.read_bytes().count(b'"step/') > 5:
                break
            time.sleep(0.2)
        assert process.poll() is None, "the run ended before it could be killed"
        os.kill(process.pid, signal.SIGKILL)
    return journal.read_bytes().count(b"\n")


def test_profile_survives_a_kill_and_the_path_ends_in_a_routed_request(folder: Path) -> None:
    journal = folder / "p.profile.journal.jsonl"
    finished = kill_when_half_done(folder, journal)
    kept = journal.read_bytes().rsplit(b"\n", 1)[0]
    again = subprocess.run((*SELECTOR, "profile", *SMALL, "--out", "p.profile.json"), cwd=folder, capture_output=True)
    assert again.returncode == 1
    assert b"--resume" in again.stderr
    assert journal.read_bytes().startswith(kept)

    done = run(folder, "profile", *SMALL, "--out", "p.profile.json", "--resume", "--json")
    profile = load_profile(folder / "p.profile.json")
    assert json.loads(done.stdout) == json.loads((folder / "p.profile.json").read_text())
    assert not journal.exists()
    assert finished > 8
    assert profile.provenance.interruptions == 1
    assert {c.method for c in profile.step_costs} == {"none", "ngram", "draft_model", "eagle", "eagle3"}
    assert {r.family.split()[0] for r in profile.replays} == {"ngram", "draft_model", "eagle", "eagle3"}
    assert any(c.strategy != PLAIN for c in profile.confirmed)

    policy = json.loads(run(folder, "recommend", "p.profile.json", "--workload", "w.jsonl", "--json").stdout)
    assert {c["request_class"] for c in policy["classes"]} == {"chat", "edit"}
    run(folder, "export", "p.policy.json", "--to", "vllm", "--out", "d")
    engines = [yaml.safe_load(f.read_text()) for f in (folder / "d").glob("*/engine.yaml")]
    assert engines[0]["model"] == profile.target.path
    decision = Router.load(folder / "p.policy.json").route(request_class="edit")
    assert decision.strategy == Router.load(folder / "p.policy.json").policy.pools[0].strategy


def test_a_plan_prints_minutes_and_measures_nothing(folder: Path) -> None:
    out = run(folder, "profile", *SMALL, "--plan").stdout
    assert "min  in all" in out
    assert list(folder.iterdir()) == [folder / "w.jsonl"]
