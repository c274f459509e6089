"""Builds the wheel, compares what is in it with git, and starts it in a fresh base environment.

python .ci/wheel_check.py FOLDER        (the wheel stays in FOLDER)
"""

from __future__ import annotations

import email
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAX_WHEEL_BYTES = 60_000_000
EXTRAS = {"tune", "reference", "all", "test"}
STARTS = [
    "from selector.resources import data_dir; assert (data_dir('strategies') / 'none.toml').is_file()",
    "from selector.recipes import load_recipes; assert {'none', 'ngram', 'eagle3'} <= set(load_recipes())",
    "from selector.workload import load_workload; assert len(load_workload().by_class()) >= 7",
    "import importlib.util as u; assert u.find_spec('profiles') is None and u.find_spec('strategies') is None",
]


class CheckFailed(Exception):
    """The wheel is not what it should be."""


def main() -> None:
    """Build, compare, start; the exit status says whether all of it held."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    wheel = build(Path(sys.argv[1]))
    check_content(wheel)
    with tempfile.TemporaryDirectory() as folder:
        check_start(wheel, Path(folder))


def build(out: Path) -> Path:
    """The wheel, built with the hatchling of this environment."""
    options = ["--wheel", "--no-isolation", "--outdir", str(out)]
    subprocess.run([sys.executable, "-m", "build", *options, str(ROOT)], check=True, stdout=subprocess.DEVNULL)
    wheels = sorted(out.glob("*.whl"))
    require(len(wheels) == 1, f"{out.name} holds one wheel", [w.name for w in wheels])
    wheel = wheels[0]
    say(f"built {wheel.name}")
    return wheel


def check_content(wheel: Path) -> None:
    """Names, bytes, metadata and size of what lies in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        content = {i.filename: archive.read(i) for i in archive.infolist() if not i.is_dir()}
    top = {n.partition("/")[0] for n in content}
    info = next((n for n in top if n.endswith(".dist-info")), "")
    require(top == {"selector", info}, f"it adds only {' and '.join(sorted(top))}")
    compare("package", {n: n for n in tracked("selector")}, content, is_code)
    compare("data", {f"selector/data/{n}": n for n in tracked("strategies", "profiles")}, content, is_data)
    check_metadata(content[f"{info}/METADATA"].decode())
    require(f"{info}/licenses/LICENSE" in content, "it carries LICENSE")
    size = wheel.stat().st_size
    require(size < MAX_WHEEL_BYTES, f"{size / 1e6:.1f} MB, below {MAX_WHEEL_BYTES / 1e6:.0f} MB")


def is_code(name: str) -> bool:
    """Whether a file of the wheel is part of the package and no data file."""
    return name.startswith("selector/") and not is_data(name)


def is_data(name: str) -> bool:
    """Whether a file of the wheel is one of the shipped data files."""
    return name.startswith("selector/data/")


def tracked(*folders: str) -> list[str]:
    """What git holds under these folders. The build takes what lies on the disk, so the two can differ."""
    line = ["git", "-C", str(ROOT), "ls-files", "-z", *folders]
    done = subprocess.run(line, check=True, capture_output=True, text=True)
    return [name for name in done.stdout.split("\0") if name]


def compare(what: str, expected: dict[str, str], content: dict[str, bytes], belongs: Callable[[str], bool]) -> None:
    """Same names and same bytes on both sides, or say which differ. `expected`: name in the wheel -> in git."""
    found = {n for n in content if belongs(n)}
    problems = [f"missing: {n}" for n in sorted(set(expected) - found)]
    problems += [f"not in git: {n}" for n in sorted(found - set(expected))]
    both = sorted(found & set(expected))
    problems += [f"bytes differ: {n}" for n in both if content[n] != (ROOT / expected[n]).read_bytes()]
    require(bool(expected) and not problems, f"{len(expected)} {what} files, the same as in git", problems)


def check_metadata(text: str) -> None:
    """Extras, licence and name."""
    metadata = email.message_from_string(text)
    require(metadata["Name"] == "decoding-strategy-selector", f"it is called {metadata['Name']}")
    require(metadata["License-Expression"] == "Apache-2.0", f"licence {metadata['License-Expression']}")
    extras = set(metadata.get_all("Provides-Extra") or [])
    require(extras == EXTRAS, f"extras {', '.join(sorted(extras))}")


def check_start(wheel: Path, folder: Path) -> None:
    """Install without extras, away from the checkout, and start what must work there."""
    python = fresh_environment(folder / "venv", str(wheel))
    command = str(python.with_name("selector"))
    lines = [[command, "--help"], [command, "--version"], [command, "doctor"]]
    for line in [*lines, *([str(python), "-c", s] for s in STARTS)]:
        done = subprocess.run(line, cwd=folder, env=clean_environment(), capture_output=True, text=True, check=False)
        shown = " ".join([Path(line[0]).name, *line[1:]])
        require(done.returncode == 0 and not done.stderr, shown, done.stderr.splitlines())


def fresh_environment(folder: Path, requirement: str) -> Path:
    """The interpreter of a new virtual environment that holds `requirement` at the pinned versions."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    # --no-compile: most modules of a big package are never imported here; -qq: only errors.
    options = ["install", "-qq", "--no-compile", "-c", str(ROOT / "constraints.txt"), requirement]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), *options], check=True)
    return python


def clean_environment(**changes: str) -> dict[str, str]:
    """This environment without what could let a fresh interpreter see the checkout."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "SELECTOR_"))} | changes


def require(holds: bool, claim: str, details: list[str] | None = None) -> None:
    """Print the claim, or stop with it."""
    if not holds:
        raise CheckFailed("\n  ".join([f"does not hold: {claim}", *(details or [])]))
    say(f"ok: {claim}")


def say(text: str) -> None:
    """One line, at once."""
    print(text, flush=True)


if __name__ == "__main__":
    try:
        main()
    except CheckFailed as failure:
        sys.exit(f"wheel check: {failure}")
