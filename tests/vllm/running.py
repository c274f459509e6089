"""`selector profile --engine vllm` as a process on real vLLM servers, for tests and the kill benchmark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from selector.engines.served import reaper

ROOT = Path(__file__).parents[2]
SERVE = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_CPU_OMP_THREADS_BIND": "0-1"}
TASKS = {
    "chat": "Explain in two sentences why the sky is {}.",
    "edit": "Repeat this sentence three times without changing it: The {} cat sat on the warm mat by the door.",
}
WORDS = ("blue", "grey", "red")


def workload(folder: Path, tokens: int = 32) -> Path:
    """A short workload of two classes."""
    rows = [
        {"prompt": text.format(w), "class": task, "max_tokens": tokens} for task, text in TASKS.items() for w in WORDS
    ]
    file = folder / "w.jsonl"
    file.write_text("".join(json.dumps(r) + "\n" for r in rows), "utf-8")
    return file


def start(folder: Path, *more: str, vllm: str | None = None) -> subprocess.Popen[str]:
    """A profile run with eagle3 and n-gram lookup, writing into `folder`."""
    command = [
        sys.executable, "-m", "selector", "profile", "--engine", "vllm", "--vllm", vllm or os.environ["SELECTOR_VLLM"],
        "--dtype", "float32", "--max-model-len", "1024", "--engine-arg", "enforce-eager", "--method", "eagle3",
        "--method", "ngram", "--workload", str(workload(folder)), "--loads", "1,2", "--max-k", "4", "--budget", "2m",
        "--out", str(folder / "p.profile.json"), *more,
    ]  # fmt: skip
    environment = os.environ | SERVE | {"PYTHONPATH": str(ROOT)}
    with (folder / "said.txt").open("a") as said:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=said, stderr=said, text=True)


def servers_alive() -> list[int]:
    """Processes of this user that serve vLLM."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if b"vllm.entrypoints" in line or line.startswith((b"VLLM::", b"vllm serve")) or b"/vllm\0serve" in line:
            found.append(int(entry.name))
    return found


def segments() -> set[str]:
    """POSIX shared memory by name."""
    return {p.name for p in Path("/dev/shm").glob("*")} if reaper.HAS_PROC else set()
