"""A short profile on real vLLM servers: killed in the middle and resumed, one engine killed under it, then a policy."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from selector.engines.served import reaper
from selector.profile import load_profile
from selector.recommend import recommend
from selector.strategy import PLAIN
from tests.vllm.running import segments, servers_alive, start

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif("SELECTOR_VLLM" not in os.environ, reason="SELECTOR_VLLM does not name a vLLM (see --vllm)"),
    pytest.mark.skipif(not reaper.HAS_PROC, reason="looks for leftovers in /proc"),
]


def keys(journal: Path) -> list[str]:
    lines = journal.read_text("utf-8").splitlines()[1:] if journal.exists() else []
    return [json.loads(line)["key"] for line in lines if line.endswith("}")]


def wait_for(journal: Path, prefix: str, count: int, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while sum(k.startswith(prefix) for k in keys(journal)) < count:
        assert time.monotonic() < deadline, f"no {prefix} after {seconds} s"
        time.sleep(0.1)


def nothing_left(before: set[str], seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not servers_alive() and segments() <= before:
            return True
        time.sleep(0.2)
    return False


def test_a_profile_survives_a_kill_of_ours_and_one_of_an_engine(tmp_path: Path) -> None:
    journal, before = tmp_path / "p.profile.journal.jsonl", segments()
    assert servers_alive() == []
    run = start(tmp_path)
    wait_for(journal, "recording/", 3)
    run.send_signal(signal.SIGKILL)
    run.wait()
    assert nothing_left(before)
    kept = keys(journal)

    run = start(tmp_path, "--resume")
    try:
        wait_for(journal, "live/", 2)
        for pid in servers_alive():  # one of them is the engine's core
            if b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
        assert run.wait(timeout=900) == 0, (tmp_path / "said.txt").read_text("utf-8")[-2000:]
    finally:
        run.kill()
        run.wait()
    assert nothing_left(before)

    profile = load_profile(tmp_path / "p.profile.json")
    said = {s.what: s.reason for s in profile.skipped}
    assert any("started again" in what for what in said), said
    assert len(profile.recordings) == 6
    assert len([k for k in kept if k.startswith("recording/")]) >= 3
    assert {w.k for w in profile.live} == {1, 4}
    assert {c.method for c in profile.step_costs} == {"none", "ngram", "eagle3"}
    assert any(c.strategy == PLAIN and c.arm == "aa" for c in profile.confirmed)
    assert (profile.engine.name, profile.engine.runner) == ("vllm", "V1") or profile.engine.device == "cuda"
    assert recommend(profile, load=2).pools
