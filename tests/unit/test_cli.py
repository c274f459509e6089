"""What every command keeps to: exit codes, one line per error, data on stdout, talk on stderr."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from selector.cli import main
from selector.cli.summary import plan_text
from selector.engines.fake import FakeEngine
from selector.errors import PolicyError, ProfileError, SelectorError
from selector.measure import Measurement, Settings
from selector.policy import load_policy, parse_policy
from selector.profile import Profile, load_profile, write_json
from selector.workload import load_workload
from tests.unit import policies

ROOT = Path(__file__).parents[2]
PROFILE = ["profile", "--engine", "fake", "--prompts-per-class", "4", "--no-confirm"]


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments], prog_name="selector")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("profile") / "x.profile.json"
    assert run(*PROFILE, "--out", file).exit_code == 0
    return file


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    file = tmp_path / "x.policy.json"
    file.write_text(policies.policy().model_dump_json(), "utf-8")
    return file


@pytest.mark.parametrize("command", [(), ("profile",), ("recommend",), ("export",), ("route",), ("doctor",)])
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_exits_0(command: Sequence[str], flag: str) -> None:
    done = run(*command, flag)
    assert done.exit_code == 0
    assert "Usage: " in done.stdout


@pytest.mark.parametrize(
    "line",
    [
        "unknown",
        "--unknown",
        "profile --unknown",
        "profile --budget soon",
        "profile --loads 0,1",
        "profile --loads 00",
        "profile --loads 1,000",
        "profile --seed -1",
        "profile m --engine fake",
        "profile --engine fake --drafter eagle3=x",
        "recommend x --seed -1",
        "profile --max-k 0",
        "profile --resume --fresh",
        "profile --engine nonsense",
        "recommend",
        "recommend x --load 0",
        "recommend x --objective speed",
        "export",
        "export x --to nonsense",
        "route",
        "route x",
        "doctor x",
    ],
)
def test_wrong_usage_exits_2_with_nothing_on_stdout(line: str) -> None:
    done = run(*line.split())
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("Usage: selector")


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("profile --engine fake --workload lost.jsonl", "lost.jsonl"),
        ("recommend lost.profile.json", "lost.profile.json"),
        ("export lost.policy.json", "lost.policy.json"),
        ("route lost.policy.json text", "lost.policy.json"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_1(line: str, names: str) -> None:
    done = run(*line.split())
    assert (done.exit_code, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("selector: ")
    assert names in done.stderr


def test_profile_prints_its_summary_or_the_profile_as_json(profile: Path) -> None:
    assert load_profile(profile).provenance.complete
    done = run(*PROFILE, "--out", "y.profile.json", "--json")
    assert done.exit_code == 0
    assert Profile.model_validate_json(done.stdout) == load_profile("y.profile.json")
    assert "next: selector recommend y.profile.json" in done.stderr


def test_a_plan_writes_nothing() -> None:
    for arguments in ([], ["--json"]):
        done = run("profile", "--engine", "fake", "--plan", *arguments)
        assert done.exit_code == 0
        assert list(Path().iterdir()) == []
    assert json.loads(done.stdout)["prompts_per_class"] > 0
    assert json.loads(done.stdout)["drafters"]["fake-head"] == {"method": "eagle3", "warnings": []}


def test_a_plan_says_what_the_drafters_are_and_what_is_wrong_with_them() -> None:
    engine, workload = FakeEngine(), load_workload(None)
    head = engine.drafters["fake-head"]
    engine.drafters["fake-head"] = head.model_copy(update={"warnings": ("d2t is all zeros",)})
    planned = Measurement(engine, workload, Settings(budget_seconds=60))
    assert plan_text(planned.plan(), planned, workload).splitlines()[-2:] == [
        "drafters: fake-head (eagle3), fake-draft (draft_model)",
        "warning about fake-head: d2t is all zeros",
    ]


def test_recommend_prints_a_table_or_the_policy_as_json(profile: Path) -> None:
    options = ["--draws", "40", "--out", "y.policy.json"]
    table = run("recommend", profile, *options)
    assert table.exit_code == 0
    assert table.stdout.startswith("One server at load 1: ")
    assert "next: selector export y.policy.json --to vllm" in table.stderr
    done = run("recommend", profile, *options, "--json")
    assert parse_policy(json.loads(done.stdout)) == load_policy("y.policy.json")
    assert run("recommend", profile, *options, "--format", "md").stdout.count("|---") >= 1


def test_export_route_and_doctor_print_only_json_when_asked(policy: Path) -> None:
    for line in (["export", policy, "--out", "d"], ["route", policy, "text"], ["doctor"]):
        done = run(*line, "--json")
        assert done.exit_code == 0
        assert isinstance(json.loads(done.stdout), dict)


def test_the_package_can_be_run_as_a_module() -> None:
    line = [sys.executable, "-m", "selector", "--version"]
    done = subprocess.run(line, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("selector, version ")


def test_doctor_names_every_extra() -> None:
    printed = run("doctor").stdout
    assert "route, export: work" in printed
    assert all(what in printed for what in ("recommend", "profile: "))


def test_ctrl_c_keeps_what_was_measured_and_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["selector", *PROFILE])
    with monkeypatch.context() as patch:
        patch.setattr(FakeEngine, "prefill_seconds", _interrupt)
        done = run(*PROFILE)
    assert (done.exit_code, done.stdout) == (130, "")
    assert "what was measured is kept in fake-target.profile.journal.jsonl" in done.stderr
    assert f"go on with: selector {' '.join(PROFILE)} --resume" in done.stderr
    refused = run(*PROFILE)
    assert refused.exit_code == 1
    assert "--resume" in refused.stderr
    assert "--fresh" in refused.stderr
    assert run(*PROFILE, "--resume").exit_code == 0
    assert [p.name for p in Path().iterdir()] == ["fake-target.profile.json"]
    assert load_profile("fake-target.profile.json").provenance.interruptions == 1


@pytest.mark.parametrize("out", ["", ".", "folder", "file/x.json", "n" * 300, "pipe", "/proc/none/x.json"])
def test_an_output_that_cannot_be_written_is_refused_before_any_work(
    monkeypatch: pytest.MonkeyPatch, profile: Path, out: str
) -> None:
    Path("folder").mkdir()
    Path("file").touch()
    os.mkfifo("pipe")
    monkeypatch.setattr(FakeEngine, "__init__", _interrupt)
    monkeypatch.setattr("selector.recommend.recommend", _interrupt)
    for line in ([*PROFILE, "--out", out], ["recommend", profile, "--out", out]):
        done = run(*line)
        assert (done.exit_code, len(done.stderr.splitlines())) == (1, 1)
        assert "selector: " in done.stderr
    assert sorted(p.name for p in Path().iterdir()) == ["file", "folder", "pipe"]


def test_a_failed_write_leaves_no_temporary_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(SelectorError, match=r"x\.json: cannot be written \(No space left on device\)"):
        write_json("x.json", policies.policy())
    assert list(Path().iterdir()) == []


def test_ctrl_c_while_the_model_loads_or_anywhere_is_one_line(monkeypatch: pytest.MonkeyPatch, policy: Path) -> None:
    monkeypatch.setattr(FakeEngine, "__init__", _interrupt)
    monkeypatch.setattr("selector.router.Router.load", _interrupt)
    for line in (PROFILE, ["route", policy, "text"]):
        done = run(*line)
        assert (done.exit_code, done.stdout, done.stderr) == (130, "", "selector: interrupted\n")


def test_nothing_to_resume_is_said_and_measured_afresh() -> None:
    done = run(*PROFILE, "--resume", "--json")
    assert done.exit_code == 0
    assert done.stderr.startswith("nothing to resume here, starting afresh\n")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("loads", []),
        ("loads.0", 0),
        ("k_max", 0),
        ("step_costs.0.step_seconds", []),
        ("prefill_costs.0.prefill_seconds", []),
        ("replays.0.accepted", "12A"),
        ("replays.0.accepted", "1-"),
    ],
)
def test_an_impossible_profile_is_refused_with_the_key(profile: Path, path: str, value: object) -> None:
    data = json.loads(profile.read_text("utf-8"))
    _put(data, path, value)
    Path("bad.json").write_text(json.dumps(data), "utf-8")
    with pytest.raises(ProfileError, match=f"bad.json: {path}: "):
        load_profile("bad.json")


def test_a_replay_of_a_drafter_that_is_not_there_is_refused_with_the_key(profile: Path) -> None:
    data = json.loads(profile.read_text("utf-8"))
    data["replays"][0]["family"] = "eagle3 lost-head"
    Path("bad.json").write_text(json.dumps(data), "utf-8")
    with pytest.raises(ProfileError, match=r"replays\.0\.family uses drafter 'lost-head'"):
        load_profile("bad.json")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("load", 0),
        ("pools.0.max_context_tokens", 0),
        ("classes.0.num_speculative_tokens", 129),
        ("classes.0.top_p", 0),
        ("pools.0.max_batch", 0),
        ("pools.0.max_batch", 1_000_001),
        ("pools.0.expected_batch", 0),
        ("pools.0.server_share", 1.1),
        ("pools.0.traffic_share", -0.1),
        ("classes.0.traffic_share", 2),
        ("classes.0.looping_share", -1),
        ("speedup.low", 99),
    ],
)
def test_an_impossible_policy_is_refused_with_the_key(path: str, value: object) -> None:
    data = policies.policy().model_dump(mode="json")
    _put(data, path, value)
    with pytest.raises(PolicyError, match=f"policy: {path.removesuffix('.low')}: "):
        parse_policy(data)


def _put(data: Any, path: str, value: object) -> None:
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in parents:
        data = data[part]
    data[last] = value


def _interrupt(*_: object, **__: object) -> Any:
    raise KeyboardInterrupt


def test_errors_that_are_not_ours_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> Sequence[float]:
        raise ZeroDivisionError

    monkeypatch.setattr(FakeEngine, "prefill_seconds", broken)
    assert isinstance(run(*PROFILE).exception, ZeroDivisionError)
