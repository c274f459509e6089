"""Servers for tests of the served measurement: a scripted stand-in for vLLM, started as a real process."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from selector.engines.served.command import find_launcher
from selector.engines.served.options import ServeOptions
from selector.engines.served.vllm import VllmServers
from selector.measure.served import ServedSettings
from selector.resources import data_dir
from selector.strategy import Method
from selector.workload import Request, Workload

ROOT = Path(__file__).parents[2]
HEAD: dict[str, tuple[Method, Path]] = {"head": ("eagle3", data_dir("strategies") / "drafters" / "eagle3-smollm2-135m")}
COMMAND = f"{shlex.quote(sys.executable)} -m tests.fake_openai {{args}}"
SCRIPT = {"step_seconds": 0.003, "token_seconds": 0.0003, "draft_seconds": 0.0006, "acceptance": 0.6}
SETTINGS = ServedSettings(budget_seconds=5, k_max=4, loads=(1, 2), prompts_per_class=3, methods=("eagle3", "ngram"))


def servers(
    tmp_path: Path, drafters: dict[str, tuple[Method, Path]] | None = None, *, model: str = "fake-model", **script: Any
) -> VllmServers:
    """Scripted servers with one head; `script`: fields of `tests.fake_openai.Script`, which answers as "t"."""
    environment = {"FAKE_OPENAI": json.dumps(SCRIPT | script), "PYTHONPATH": str(ROOT)}
    options = ServeOptions(environment=environment, ready_seconds=30, stall_seconds=0.5, max_model_len=2048)
    return VllmServers(
        find_launcher(None, COMMAND), model, "fake", HEAD if drafters is None else drafters, options,
        logs=tmp_path / "logs",
    )  # fmt: skip


def workload(classes: int = 2, prompts: int = 3, tokens: int = 24) -> Workload:
    """Short prompts of a few classes."""
    return Workload(
        [
            Request.model_validate({"prompt": f"say {c} {i}", "class": f"class{c}", "max_tokens": tokens})
            for c in range(classes) for i in range(prompts)
        ],
        "test",
    )  # fmt: skip
