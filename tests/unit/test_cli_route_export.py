"""`selector route` and `selector export` as commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from selector.cli.export import command as export
from selector.cli.route import command as route
from selector.errors import ExportError, PolicyError, SelectorError, WorkloadError
from tests.unit import policies


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "x.policy.json"
    path.write_text(policies.policy().model_dump_json(), "utf-8")
    return str(path)


def run_route(*arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(route, arguments, input=stdin)


def test_route_prints_a_page(file: str) -> None:
    done = run_route(file, "--class", "chat", "--temperature", "0.3")
    assert done.exit_code == 0
    assert done.stderr == ""
    assert done.stdout.splitlines()[:4] == [
        "class      chat, t=0.5  (confidence 1.00)",
        "strategy   none, k = 0 at the policy's load",
        "pool       plain  http://plain.example:8000/v1",
        "fallbacks  spec, lookup",
    ]


def test_route_prints_json(file: str) -> None:
    done = run_route(file, "def f(x):", "--json")
    decision = json.loads(done.stdout)
    assert decision["pool"] == "plain"
    assert decision["strategy"]["method"] == "none"
    assert "no text classifier" in decision["reason"]


def test_route_reads_json_lines(file: str) -> None:
    rows = [
        {"prompt": "x", "class": "code"},
        {"messages": [None], "extra": 1},
        {"class": "chat", "temperature": 0.8},
    ]
    stdin = "\n\n".join(json.dumps(r) for r in rows)
    plain = run_route(file, "-", stdin=stdin)
    assert plain.stdout.splitlines() == [
        "code\tspec\teagle3 k=4",
        "unknown\tplain\tnone",
        "chat, t=0.8\tplain\tnone",
    ]
    as_json = run_route(file, "-", "--json", stdin=stdin)
    assert [json.loads(line)["pool"] for line in as_json.stdout.splitlines()] == ["spec", "plain", "plain"]


@pytest.mark.parametrize(
    ("stdin", "complaint"),
    [
        ('{"prompt": "x"}\n{"prompt": 3}', "stdin:2: prompt must be a string, not int"),
        ("not json", "stdin:1: Expecting value"),
        ("[1]", "stdin:1: a request is a JSON object, this is list"),
        ("{}", "stdin:1: nothing to route by"),
        (b'{"prompt": "\xff"}', "not UTF-8"),
    ],
)
def test_a_bad_line_is_named(file: str, stdin: str | bytes, complaint: str) -> None:
    error = run_route(file, "-", stdin=stdin).exception
    assert isinstance(error, WorkloadError)
    assert complaint in str(error)


def test_wrong_usage_exits_2(file: str) -> None:
    assert run_route(file).exit_code == 2
    assert run_route(file, "x", "--temperature", "-1").exit_code == 2
    assert run_route(file, "x", "--temperature", "hot").exit_code == 2


def test_an_unreadable_policy_is_a_policy_error(tmp_path: Path) -> None:
    assert isinstance(run_route(str(tmp_path / "none"), "x").exception, PolicyError)


def run_export(*arguments: str) -> Result:
    return CliRunner().invoke(export, arguments)


def test_export_prints_the_files_and_how_to_start(file: str, tmp_path: Path) -> None:
    options = ["--model-path", "my-head=/srv/my head"]
    options += ["--engine-arg", "enforce-eager=true", "--engine-arg", "served-model-name=chat"]
    done = run_export(file, "--to", "vllm", "--out", str(tmp_path / "d"), *options)
    assert done.exit_code == 0
    files = [Path(line) for line in done.stdout.splitlines()]
    assert len(files) == 14
    assert all(f.is_file() for f in files)
    text = (tmp_path / "d" / "spec" / "engine.yaml").read_text("utf-8")
    assert "/srv/my head" in text
    assert "enforce-eager: true" in text
    assert "served-model-name: chat" in text
    assert done.stderr.count("vllm serve --config engine.yaml") == 3


def test_folders_of_pools_that_are_gone_are_named_and_kept(file: str, tmp_path: Path) -> None:
    old = tmp_path / "d" / "old" / "engine.yaml"
    old.parent.mkdir(parents=True)
    old.touch()
    done = run_export(file, "--out", str(tmp_path / "d"))
    assert f"{old.parent}: of an earlier export; this policy has no such pool" in done.stderr
    assert done.stderr.count("earlier export") == 1
    assert old.is_file()


@pytest.mark.parametrize("name", ["my-head", policies.TARGET])
@pytest.mark.parametrize("path", ["x" * 5000, "x" * 300, "x/" * 2500])
def test_an_endless_model_path_is_an_export_error(file: str, tmp_path: Path, name: str, path: str) -> None:
    error = run_export(file, "--out", str(tmp_path / "d"), "--model-path", f"{name}={path}").exception
    assert isinstance(error, ExportError)
    assert "longer than a file system takes" in str(error)


def test_export_json(file: str, tmp_path: Path) -> None:
    printed = json.loads(run_export(file, "--out", str(tmp_path / "d"), "--json").stdout)
    assert list(printed["pools"]) == ["lookup", "spec", "plain"]
    written = yaml.safe_load((tmp_path / "d" / "spec" / "engine.yaml").read_text("utf-8"))
    assert printed["pools"]["spec"]["settings"] == written
    assert all(Path(f).is_file() for f in printed["files"])


@pytest.mark.parametrize(
    "arguments",
    [
        ["--model-path", "my-head"],
        ["--engine-arg", "=3"],
        ["--engine-arg", "a=1", "--engine-arg", "a=2"],
        ["--to", "x"],
    ],
)
def test_wrong_export_usage_exits_2(file: str, tmp_path: Path, arguments: list[str]) -> None:
    assert run_export(file, "--out", str(tmp_path / "d"), *arguments).exit_code == 2


def test_an_unknown_model_name_is_an_export_error(file: str, tmp_path: Path) -> None:
    error = run_export(file, "--out", str(tmp_path / "d"), "--model-path", "lost=/x").exception
    assert isinstance(error, ExportError)
    assert isinstance(error, SelectorError)


@pytest.mark.parametrize("command", [route, export])
def test_every_option_has_help_and_a_default(command: object) -> None:
    for parameter in command.params:  # type: ignore[attr-defined]  # both are click commands
        if parameter.param_type_name == "option":
            assert parameter.help
            assert parameter.show_default
