"""The pages say what the program does: printed parts are fresh, copied lines run, lists are complete."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from pydantic import BaseModel

from selector import policy, profile, strategy, workload
from selector.cli import docs, main
from selector.embedded import TARGET_NAME
from selector.recipes import load_recipes
from selector.verify import report
from tests.unit import policies

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
PAGES = sorted((ROOT / "docs").rglob("*.md"))
MARKDOWN = [*ROOT.glob("*.md"), *PAGES, *sorted((ROOT / "strategies").rglob("*.md"))]
FAKE = ["--engine", "fake", "--prompts-per-class", "4", "--no-confirm", "--out", f"{TARGET_NAME}.profile.json"]


def commands() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(main)
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        yield name, command


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def between(marker: str) -> str:
    return README.split(f"<!-- {marker}:begin -->")[1].split(f"<!-- {marker}:end -->")[0]


def run(line: list[str]) -> str:
    assert line[0] == "selector"
    done = CliRunner().invoke(main, line[1:], prog_name="selector", catch_exceptions=False)
    assert done.exit_code == 0, f"{line}\n{done.output}"
    return done.stdout


def test_the_command_line_page_is_fresh() -> None:
    page = (ROOT / "docs" / "cli.md").read_text("utf-8")
    assert page == docs.page(), "stale: python -m selector.cli.docs > docs/cli.md"


@pytest.mark.parametrize(("name", "command"), list(commands()))
def test_every_command_and_option_has_help(name: str, command: click.Command) -> None:
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{name} {parameter.opts[0]}"


def test_the_quickstart_runs_line_by_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "quickstart.md").read_text("utf-8")
    (requests,) = blocks(page, "json")
    Path("requests.jsonl").write_text(requests, "utf-8")
    for language, block in re.findall(r"```(console|python)\n(.*?)```", page, re.DOTALL):
        if language == "python":
            exec(compile(block, "quickstart.md", "exec"), {})
            assert capsys.readouterr().out.strip()
            continue
        for line in block.splitlines():
            assert line.startswith("$ ")
            assert run(shlex.split(line[2:]))
    assert Path("serving").is_dir()
    assert profile.load_profile("own.profile.json").classes[0].name == "translate"


def test_the_readme_main_command_fits_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = blocks(between("main"), "sh")
    lines = [shlex.split(line.removesuffix("&&")) for line in block.splitlines()]
    assert all(line.endswith("&&") for line in block.splitlines()[:-1])
    assert lines[0] == ["python3", "-m", "venv", ".venv"]
    assert lines[1] == [".venv/bin/pip", "install", "-c", "constraints.txt", "-e", ".[all]"]
    for line in lines[2:]:
        assert line[0] == ".venv/bin/selector"
        run(["selector", *line[1:], *(FAKE if line[1] == "profile" else [])])
    assert (tmp_path / "serving").is_dir()


def test_the_readme_test_command_is_what_ci_reads() -> None:
    (block,) = blocks(between("tests"), "sh")
    lines = block.splitlines()
    assert lines[1].removesuffix(" &&").endswith("pip install -c constraints.txt -e '.[test]'")
    assert all(line.endswith("&&") for line in lines[:-1])
    assert lines[-2:] == [".venv/bin/pytest -n 2 &&", ".venv/bin/pytest -m embedded"]
    assert "<!-- tests:begin -->" in (ROOT / ".ci" / "run").read_text("utf-8")


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda p: p.name)
def test_every_command_line_shown_can_be_parsed(page: Path) -> None:
    known = dict(commands())
    for line in re.findall(r"^(?:\$ )?(selector .*)$", "\n".join(shell_blocks(page)), re.MULTILINE):
        words = shlex.split(line.partition(" < ")[0])
        known[words[1]].make_context(words[1], words[2:])


def shell_blocks(page: Path) -> list[str]:
    text = page.read_text("utf-8")
    return [*blocks(text, "console"), *blocks(text, "sh")]


def test_the_readme_python_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(f"{TARGET_NAME}.policy.json").write_text(policies.policy().model_dump_json(), "utf-8")
    (block,) = blocks(README, "python")
    exec(compile(block, "README.md", "exec"), {})
    assert capsys.readouterr().out.strip()


def test_every_recipe_has_a_line() -> None:
    page = (ROOT / "docs" / "strategies.md").read_text("utf-8")
    for method in load_recipes():
        assert f"| [`{method}.toml`](../strategies/{method}.toml) | " in page


MODELS = [
    model
    for module in (workload, profile, policy, strategy, report)
    for model in vars(module).values()
    if isinstance(model, type) and issubclass(model, BaseModel) and model.__module__ == module.__name__
]


@pytest.mark.parametrize("model", MODELS)
def test_every_key_of_every_file_is_described(model: type[BaseModel]) -> None:
    page = (ROOT / "docs" / "files.md").read_text("utf-8")
    keys = [field.alias or name for name, field in model.model_fields.items()]
    assert [k for k in keys if f"`{k}`" not in page] == []


def test_the_architecture_page_names_every_module() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    for file in (ROOT / "selector").rglob("*.py"):
        if "training" in file.parts:  # has a page of its own
            continue
        name = file.parent.name if file.name == "__init__.py" else file.stem.removesuffix("_model")
        assert re.search(rf"(?<![a-z]){name}(?![a-z])", page), f"{file.relative_to(ROOT)} is not on the page"


def links(page: Path) -> list[Path]:
    """Files that a page links to; whether they exist is another question."""
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
    return [(page.parent / target).resolve() for target in targets if "://" not in target]


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert [str(target) for target in links(page) if not target.exists()] == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached and page.suffix == ".md" and page.exists():
            reached.add(page)
            waiting += links(page)
    assert [p.name for p in MARKDOWN if p not in reached] == []


def text_files() -> list[Path]:
    """What git holds; without git, what an unpacked source archive holds."""
    try:
        done = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    files = [ROOT / name for name in done.stdout.split("\0") if name]
    return [f for f in files if f.is_file() and b"\0" not in f.read_bytes()[:4096] and f.suffix != ".safetensors"]


def test_no_file_names_a_machine() -> None:
    # Written apart, so that this file does not find itself.
    forbidden = ["/" + "work/", "/" + "root/", "/opt/" + "wheels", "py" + "pi.org", "python" + "hosted"]
    found = [(f.name, word) for f in text_files() for word in forbidden if word in f.read_text("utf-8")]
    assert found == []


def test_the_pins_are_exact_and_hold_what_the_extras_ask_for() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9.]+", pin) for pin in pins)
    names = {pin.partition("==")[0].lower().replace("_", "-") for pin in pins}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    asked = [*project["dependencies"], *(r for extra in project["optional-dependencies"].values() for r in extra)]
    wanted = {re.split(r"[^A-Za-z0-9-]", requirement)[0].lower() for requirement in asked}
    assert wanted - {project["name"]} <= names
    assert "torch==2.13.0" in pins


def test_json_examples_are_json() -> None:
    for page in PAGES:
        for block in blocks(page.read_text("utf-8"), "json"):
            assert all(json.loads(line) for line in block.splitlines())
