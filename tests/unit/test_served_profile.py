"""`selector profile --engine vllm` as a person runs it, on scripted servers: plan, kill, resume, wrong options."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from selector.cli import main
from selector.profile import load_profile
from tests.unit.served import COMMAND, ROOT, SCRIPT

pytestmark = pytest.mark.vllm  # scripted servers: slow, not real ones

WORKLOAD = "".join(json.dumps({"prompt": f"say {i}", "class": "c", "max_tokens": 16}) + "\n" for i in range(3))


def arguments(folder: Path, *more: str) -> list[str]:
    (folder / "w.jsonl").write_text(WORKLOAD, "utf-8")
    return [
        "profile", "fake-model", "--engine", "vllm", "--launch", COMMAND, "--env", f"FAKE_OPENAI={json.dumps(SCRIPT)}",
        "--env", f"PYTHONPATH={ROOT}", "--port", "8899", "--max-model-len", "2048", "--workload",
        str(folder / "w.jsonl"), "--loads", "1", "--max-k", "2", "--budget", "1s", "--out",
        str(folder / "p.profile.json"), *more,
    ]  # fmt: skip


def served_by_us() -> list[str]:
    """Command lines of scripted servers that are alive."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if "tests.fake_openai" in line and "8899" in line:
            found.append(line)
    return found


def start(folder: Path, *more: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "selector", *arguments(folder, *more)], cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_killed_run_leaves_no_server_and_goes_on_where_it_was(tmp_path: Path) -> None:
    journal = tmp_path / "p.profile.journal.jsonl"
    run = start(tmp_path)
    try:
        while run.poll() is None and (not journal.exists() or journal.read_text("utf-8").count("\n") < 12):
            time.sleep(0.02)
        assert run.poll() is None, run.stderr and run.stderr.read()
        run.send_signal(signal.SIGKILL)
    finally:
        run.kill()
        run.communicate()
    deadline = time.monotonic() + 15
    while served_by_us() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert served_by_us() == []
    before = [json.loads(line)["key"] for line in journal.read_text("utf-8").splitlines()[1:]]
    again = start(tmp_path, "--resume")
    _, said = again.communicate(timeout=120)
    assert again.returncode == 0, said.decode()
    profile = load_profile(tmp_path / "p.profile.json")
    assert profile.provenance.interruptions == 1
    assert len([k for k in before if k.startswith("recording/")]) == len(profile.recordings) == 3


def test_the_plan_shows_the_launches_and_starts_nothing(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, arguments(tmp_path, "--plan"))
    assert result.exit_code == 0, result.output
    assert "ngram 2..4 k=2: batch 1: k = 2" in result.output
    assert "nothing was started" in result.output
    assert not (tmp_path / "p.profile.logs").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--engine-arg", "port=1"], "use --port"),
        (["--engine-arg", "=x"], "write KEY=VALUE"),
        (["--env", "NOVALUE"], "write NAME=VALUE"),
        (["--draft-tensor-parallel", "3"], "vLLM takes 1 or the target's 1"),
        (["--vllm", "x"], "give one of them"),
    ],
)
def test_a_wrong_option_is_told_before_anything_starts(tmp_path: Path, more: Sequence[str], said: str) -> None:
    result = CliRunner().invoke(main, arguments(tmp_path, *more))
    assert result.exit_code == 1
    assert said in result.output + str(result.exception)
