"""What can go wrong with a served engine: a clear record each, the rest measured, nothing left running."""

from __future__ import annotations

import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from selector.engines.served.command import find_launcher
from selector.engines.served.options import ServeOptions
from selector.engines.served.vllm import VllmServers
from selector.errors import MeasurementFailed
from selector.measure.served import ServedSettings, measure_served
from selector.profile import Profile
from tests.unit.served import servers, workload

pytestmark = pytest.mark.vllm  # scripted servers: slow, not real ones

FAST: dict[str, Any] = {"step_seconds": 0.0005, "token_seconds": 0.0, "draft_seconds": 0.0}
QUICK = ServedSettings(budget_seconds=1, k_max=2, loads=(1,), prompts_per_class=3, confirm=False, methods=("ngram",))


HEAD = "import sys, runpy\nif '--speculative-config' in sys.argv"
TAIL = "runpy.run_module('tests.fake_openai', run_name='__main__')\n"


def run(tmp_path: Path, settings: ServedSettings = QUICK, **script: Any) -> Profile:
    return measure_served(servers(tmp_path, {}, **FAST, **script), workload(1), tmp_path / "j.jsonl", settings)


def reasons(profile: Profile) -> dict[str, str]:
    return {s.what: s.reason for s in profile.skipped}


def test_a_stalled_stream_is_a_failed_request_and_five_end_the_launch(tmp_path: Path) -> None:
    with pytest.raises(MeasurementFailed, match=r"plain decoding cannot be measured: .*(silent|stall)"):
        run(tmp_path, stalls_after=3)


def test_answers_of_500_are_told_with_the_servers_message(tmp_path: Path) -> None:
    with pytest.raises(MeasurementFailed, match="HTTP 500"):
        run(tmp_path, fails_after=6)


def test_a_server_that_dies_is_started_once_more_and_then_given_up(tmp_path: Path) -> None:
    with pytest.raises(MeasurementFailed, match="plain decoding cannot be measured"):
        run(tmp_path, dies_after=20)
    text = (tmp_path / "j.jsonl").read_text("utf-8")
    assert "none (then started again)" in text


def test_a_method_that_does_not_start_is_skipped_with_the_engines_words_and_the_rest_is_measured(
    tmp_path: Path,
) -> None:
    script = (
        "import sys,runpy\nif '--speculative-config' in sys.argv: raise RuntimeError('this engine drafts nothing')\n"
    )
    (tmp_path / "serve.py").write_text(script + TAIL, "utf-8")
    fake = servers(tmp_path, {}, **FAST)
    fake.launcher = find_launcher(None, f"{sys.executable} {tmp_path / 'serve.py'} {{args}}")
    profile = measure_served(fake, workload(1), tmp_path / "j.jsonl", QUICK)
    assert "RuntimeError: this engine drafts nothing" in reasons(profile)["ngram 2..4 k=2"]
    assert {c.method for c in profile.step_costs} == {"none"}
    assert len(profile.recordings) == 3


def test_a_taken_port_is_named_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        fake = servers(tmp_path, {}, **FAST)
        fake.options = replace(fake.options, port=port)
        with pytest.raises(MeasurementFailed, match=f"port {port} is taken"):
            measure_served(fake, workload(1), tmp_path / "j.jsonl", QUICK)


def test_a_server_that_wants_a_key_says_which_variable_to_set(tmp_path: Path) -> None:
    with pytest.raises(MeasurementFailed, match="SELECTOR_API_KEY"):
        run(tmp_path, key="secret")


def test_a_model_that_does_not_load_is_told_by_the_engines_own_last_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -c \"raise OSError('no-such-model is not a local folder')\" {{args}}"
    fake = VllmServers(find_launcher(None, command), "no-such-model", None, {}, ServeOptions(), logs=tmp_path)
    with pytest.raises(MeasurementFailed, match="OSError: no-such-model is not a local folder"):
        measure_served(fake, workload(1), tmp_path / "j.jsonl", QUICK)


def test_speculation_that_does_not_run_is_an_error_and_no_zero_acceptance(tmp_path: Path) -> None:  # C2-16
    script = f"{HEAD}:\n    i = sys.argv.index('--speculative-config')\n    del sys.argv[i:i + 2]\n"
    (tmp_path / "serve.py").write_text(script + TAIL, "utf-8")
    fake = servers(tmp_path, {}, **FAST)
    fake.launcher = find_launcher(None, f"{sys.executable} {tmp_path / 'serve.py'} {{args}}")
    profile = measure_served(fake, workload(1), tmp_path / "j.jsonl", QUICK)
    assert "speculation did not run" in reasons(profile)["ngram 2..4 k=2"]
