"""The front door stays light: what `from selector import Router` and routing may import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HEAVY = ("torch", "transformers", "sklearn", "optuna", "pandas", "scipy")
ALLOWED = {
    "selector", "numpy", "pydantic", "pydantic_core", "annotated_types", "typing_extensions",
    "typing_inspection",
    "cython_runtime",
}  # fmt: skip
ROOT = Path(__file__).parents[2]

PROGRAM = """
import sys
before = set(sys.modules)
from selector import Router
from tests.unit import policies
router = Router(policies.policy())
router.route(request_class="chat"); router.route("def f(x):")
third = {m.partition(".")[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names) - {"tests"}
print(" ".join(sorted(third)))
"""


SERVED = """
import sys
import selector.cli.served, selector.engines.served.endpoint, selector.engines.served.vllm
from selector.measure.served import ServedMeasurement
from selector.measure.hardware import sample_hardware
sample_hardware()
print(" ".join(sorted({"torch", "transformers", "vllm", "sklearn"} & set(sys.modules))))
"""


def test_measuring_servers_imports_neither_torch_nor_vllm() -> None:
    done = subprocess.run([sys.executable, "-c", SERVED], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_router_imports_nothing_heavy(tmp_path: Path) -> None:
    for name in HEAVY:  # empty stand-ins: a guarded import would otherwise go unseen where the package is missing
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("", "utf-8")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    imported = set(done.stdout.split())
    assert not imported & set(HEAVY)
    compiled = ("_cython_", "_sysconfigdata_")  # helpers of numpy and the interpreter, named after the build
    assert {m for m in imported if not m.startswith(compiled)} <= ALLOWED
