"""Imports point downward, and heavy packages stay in the files that need them (docs/architecture.md)."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = {str(f.relative_to(ROOT)): f for f in sorted((ROOT / "selector").rglob("*.py"))}

#: Top-level names of `selector` by layer, highest first; every name not listed is plain data or arithmetic.
LAYERS = (
    {"cli", "__main__"},
    {"measure", "verify", "equality"},
    {"recommend", "router", "feedback", "train_classifier"},
    {"exporters", "engines", "adapters", "embedded", "training", "policy_source", "route_arguments"},
)

#: Where a package may be imported at all; the last column of docs/architecture.md says why.
HEAVY = {
    "torch": (
        "selector/engines/reference/*", "selector/adapters/*_model.py", "selector/adapters/*_head.py",
        "selector/adapters/head_layer.py",
        "selector/adapters/branches.py", "selector/embedded/*", "selector/training/*",
    ),
    "transformers": ("selector/engines/reference/*", "selector/embedded/convert.py", "selector/training/*"),
    "safetensors": (
        "selector/engines/reference/*", "selector/adapters/*_model.py", "selector/embedded/*", "selector/training/*",
    ),
    "accelerate": (),  # transformers asks for it itself
    "gguf": (),
    "optuna": ("selector/recommend/*", "selector/measure/windows.py", "selector/measure/confirm.py"),
    "sklearn": ("selector/train_classifier.py",),
    "scipy": ("selector/train_classifier.py",),
    "pandas": (),
    "httpx": ("selector/engines/served/*",),
}  # fmt: skip


def imports(file: Path, *, at_import_time: bool = False) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(module, imported names) of a file; what only type checkers see is left out, lazy ones on request."""
    waiting: list[ast.AST] = [ast.parse(file.read_text("utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
        elif at_import_time and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        elif isinstance(node, ast.Import):
            yield from ((a.name, ()) for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: relative import"
            yield node.module or "", tuple(a.name for a in node.names)
        else:
            waiting += ast.iter_child_nodes(node)


def layer(module: str) -> int:
    """Row of a `selector.…` module; a higher number is further down."""
    name = module.split(".")[1]
    return next((i for i, names in enumerate(LAYERS) if name in names), len(LAYERS))


def module_of(file: str) -> str:
    return file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


@pytest.mark.parametrize("file", [f for f in FILES if f != "selector/__init__.py"])
def test_imports_point_downward(file: str) -> None:
    own = layer(module_of(file))
    for module, names in imports(FILES[file]):
        if module == "selector":  # the front door itself: only its version may be asked for from inside
            assert names == ("__version__",), f"{file} imports {', '.join(names)} from selector"
        elif module.startswith("selector."):
            assert layer(module) >= own, f"{file} imports {module}, which is a layer above it"


def test_every_listed_name_exists() -> None:
    for name in set().union(*LAYERS):
        assert (ROOT / "selector" / name).is_dir() or (ROOT / "selector" / f"{name}.py").is_file(), name


@pytest.mark.parametrize("package", HEAVY)
def test_heavy_packages_stay_where_they_are_needed(package: str) -> None:
    users = [f for f, path in FILES.items() if package in {m.partition(".")[0] for m, _ in imports(path)}]
    assert [f for f in users if not any(fnmatch(f, pattern) for pattern in HEAVY[package])] == []


def test_each_command_has_a_file_of_its_own_and_no_command_imports_another() -> None:
    names = ("models", "progress", "served", "served_plan", "strategies", "summary")
    shared = {"selector.cli", *(f"selector.cli.{name}" for name in names)}
    for file, path in FILES.items():
        if file.startswith("selector/cli/"):
            used = {m for m, _ in imports(path) if m.startswith("selector.cli")}
            assert used <= shared, f"{file} imports {used - shared}"


def test_the_router_and_all_it_imports_need_only_the_base_install() -> None:
    seen: set[str] = set()
    third_party: set[str] = set()
    waiting = ["selector/__init__.py"]
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        for module, names in imports(FILES[file], at_import_time=True):
            if module.startswith("selector"):
                waiting += [f for m in (module, *(f"{module}.{n}" for n in names)) for f in files_of(m)]
            elif (top := module.partition(".")[0]) not in sys.stdlib_module_names:
                third_party.add(top)
    assert "selector/router.py" in seen
    assert third_party <= {"numpy", "pydantic", "yaml"}


def files_of(module: str) -> list[str]:
    """The files that importing a module runs, its packages' `__init__` included."""
    parts = module.split(".")
    candidates = ["/".join(parts) + ".py"] + ["/".join([*parts[:i], "__init__.py"]) for i in range(1, len(parts) + 1)]
    return [c for c in candidates if c in FILES]
