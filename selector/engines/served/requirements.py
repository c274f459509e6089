"""What a recipe requires of an engine, looked at before a server is started."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from selector.recipes import Recipe, Requires

RUNNER_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"
_ASK_PLATFORM = "from vllm.platforms import current_platform; print('platform', current_platform.device_type)"
_ASK_PACKAGE = "import importlib.util, sys; print('package', importlib.util.find_spec(sys.argv[1]) is not None)"
_SECONDS = 120.0  #: importing vLLM takes half a minute on a slow machine


@dataclass(frozen=True)
class Surroundings:
    """Where servers would run. python: the engine's interpreter, None: out of sight (a container); target: the
    target's config, None: its files are not here.
    """

    python: str | None
    environment: Mapping[str, str] = field(default_factory=dict)
    target: Mapping[str, Any] | None = None

    def has(self, package: str) -> bool | None:
        """Whether the engine's environment can import it; None: not known."""
        said = _asked(self.python, _ASK_PACKAGE, package) if self.python else None
        return None if said is None else said == "package True"

    @property
    def platform(self) -> str | None:
        """`cpu`, `cuda`, …; None: not known."""
        said = _asked(self.python, _ASK_PLATFORM) if self.python else None
        return said.removeprefix("platform ") if said else None


def unmet(recipe: Recipe, around: Surroundings, *, asked: bool) -> str | None:
    """The first requirement of vLLM that is not met, in words; None when all are, or when nobody can tell.

    What was not asked for needs more: all of it must be seen to be met.
    """
    spelling = recipe.engine["vllm"]
    if not spelling.supported:
        return f"vLLM cannot run {recipe.method}: {spelling.reason}"
    r = spelling.requires
    return _runner(r, around) or _target(r, around, asked) or _package(r, around, asked) or _platform(r, around, asked)


def _runner(r: Requires, around: Surroundings) -> str | None:
    forced = {"0": "V1", "1": "V2"}.get(around.environment.get(RUNNER_VARIABLE, ""))
    if r.runner is None or forced in (None, r.runner):
        return None
    return f"only the {r.runner} runner has it, and {RUNNER_VARIABLE} asks for {forced}: unset that"


def _target(r: Requires, around: Surroundings, asked: bool) -> str | None:
    if not r.target_config:
        return None
    keys = " or ".join(r.target_config)
    if around.target is None:
        return None if asked else f"whether the target has such layers ({keys}) cannot be seen: its files are not here"
    if any(isinstance(n := around.target.get(key), int) and n > 0 for key in r.target_config):
        return None
    return f"the target has no such layers: its config says nothing of {keys}"


def _package(r: Requires, around: Surroundings, asked: bool) -> str | None:
    if r.package is None:
        return None
    there = around.has(r.package)
    if there or (there is None and asked):
        return None
    if there is None:
        return f"whether the engine has {r.package} cannot be seen from here: ask for the method to try it"
    return f"the engine's environment lacks {r.package}: {r.install}"


def _platform(r: Requires, around: Surroundings, asked: bool) -> str | None:
    if not r.platforms:
        return None
    here = around.platform
    if here in r.platforms or (here is None and asked):
        return None
    return f"it runs on {', '.join(r.platforms)}, and the engine's platform is {here or 'not known'}"


@cache
def _asked(*argv: str) -> str | None:
    """The last line that a Python of another environment prints; None when it fails."""
    python, code, *rest = argv
    try:
        done = subprocess.run(
            [python, "-c", code, *rest], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), None) if done.returncode == 0 else None
