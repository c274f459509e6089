"""Installs each extra alone in a fresh environment and tests that it is enough for what it promises.

python .ci/extras_check.py WHEEL        (runs itself under pytest)
"""
# ruff: noqa: D103  (tests: their names say it)

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from wheel_check import clean_environment, fresh_environment

TEXT = "Write a function that reverses a list."
PROFILE = ["profile", "--engine", "fake", "--prompts-per-class", "4", "--out", "x.profile.json"]
Done = subprocess.CompletedProcess[str]


class Installed:
    """A fresh environment with the wheel and one extra (or none)."""

    def __init__(self, folder: Path, extra: str) -> None:
        self.folder = folder
        wheel = Path(os.environ["CHECKED_WHEEL"]).resolve()
        self._python = fresh_environment(folder / "venv", f"{wheel}[{extra}]" if extra else str(wheel))

    def python(self, program: str) -> Done:
        """A program in a fresh interpreter."""
        return self._run(str(self._python), "-c", program)

    def selector(self, *arguments: str) -> Done:
        """The installed command."""
        return self._run(str(self._python.with_name("selector")), *arguments)

    def has(self, module: str) -> bool:
        """Whether a module could be imported."""
        program = f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"
        return self.python(program).returncode == 0

    def _run(self, *line: str) -> Done:
        # An empty cache and a missing wheel: whoever reaches for the embedded model is seen, and fetches nothing.
        environment = clean_environment(
            SELECTOR_CACHE_DIR=str(self.folder / "cache"), SELECTOR_EMBEDDED_WHEEL=str(self.folder / "no.whl")
        )
        return subprocess.run(line, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("base"), "")


@pytest.fixture(scope="session")
def tune(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("tune"), "tune")


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("reference"), "reference")


@pytest.fixture(scope="session")
def policy(tune: Installed) -> str:
    """A policy as it is carried from the machine that decided it to one that serves."""
    succeeded(tune.selector(*PROFILE))
    succeeded(tune.selector("recommend", "x.profile.json", "--out", "x.policy.json"))
    return str(tune.folder / "x.policy.json")


def succeeded(done: Done) -> str:
    """Its output, or everything it said."""
    assert done.returncode == 0, f"{done.args}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def names_the_extra(done: Done, extra: str) -> None:
    """Exit 1, nothing on stdout, and one line on stderr with the extra in it."""
    assert (done.returncode, done.stdout) == (1, ""), f"{done.args}\n{done.stdout}\n{done.stderr}"
    (line,) = done.stderr.splitlines()
    assert f"pip install 'decoding-strategy-selector[{extra}]'" in line


def test_base_holds_nothing_heavy(base: Installed) -> None:
    assert [m for m in ("torch", "transformers", "sklearn", "optuna", "scipy", "pandas") if base.has(m)] == []


def test_base_routes(base: Installed, policy: str) -> None:
    assert json.loads(succeeded(base.selector("route", policy, TEXT, "--json")))["pool"]
    program = f"from selector import Router; print(Router.load({policy!r}).route(prompt={TEXT!r}).strategy.label)"
    assert succeeded(base.python(program)).strip()


def test_base_exports(base: Installed, policy: str) -> None:
    files = succeeded(base.selector("export", policy, "--to", "vllm", "--out", "serving")).splitlines()
    assert any(f.endswith("engine.yaml") for f in files)
    assert all((base.folder / f).is_file() for f in files)


def test_base_names_what_recommend_and_profile_lack(base: Installed) -> None:
    names_the_extra(base.selector("recommend", "x"), "tune")
    done = base.selector("profile")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "decoding-strategy-selector[" in done.stderr


def test_tune_profiles_and_recommends_without_torch(tune: Installed, policy: str) -> None:
    assert not tune.has("torch")
    assert json.loads(Path(policy).read_bytes())["classifier"] is not None
    assert succeeded(tune.selector("export", policy, "--to", "vllm", "--out", "serving"))


def test_tune_names_what_the_reference_engine_lacks(tune: Installed) -> None:
    names_the_extra(tune.selector("profile"), "reference")


def test_reference_engine_imports(reference: Installed) -> None:
    succeeded(reference.python("import selector.engines.reference"))
    succeeded(reference.python("from selector.embedded.convert import need_reference_extra; need_reference_extra()"))


@pytest.mark.parametrize("command", [["profile"], PROFILE])
def test_reference_names_what_profile_lacks_before_any_work(reference: Installed, command: list[str]) -> None:
    names_the_extra(reference.selector(*command), "tune")
    assert sorted(p.name for p in reference.folder.iterdir()) == ["venv"]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    os.environ["CHECKED_WHEEL"] = sys.argv[1]
    # -vv against the project's -q: every check by name, and pytest's full closing line.
    sys.exit(pytest.main([__file__, "-vv", "-p", "no:cacheprovider"]))
