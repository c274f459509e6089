"""What this machine is and does: processor, memory, and rates measured in a second."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from selector.profile import Hardware

_COPY_BYTES = 256 * 2**20
_MATMUL = 1024


def sample_hardware() -> Hardware:
    """Sample the machine with numpy, so that no torch is needed; rates are the best of five tries."""
    gpu, gpu_bytes = _gpu()
    block = np.ones(_COPY_BYTES // 8)
    a = np.ones((_MATMUL, _MATMUL), np.float32)
    read = _best(lambda: float(block.sum()))
    product = _best(lambda: a @ a)
    return Hardware(
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=_memory_bytes(),
        gpu=gpu,
        gpu_memory_bytes=gpu_bytes,
        read_bandwidth_bytes_per_second=_COPY_BYTES / read,
        matmul_flop_per_second=2 * _MATMUL**3 / product,
        platform=platform.platform(terse=True),
    )


def _best(work: Callable[[], object]) -> float:
    times = []
    for _ in range(5):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def _gpu() -> tuple[str | None, int | None]:
    """Name and bytes of the first GPU, by its driver's own tool: no torch is needed or loaded for it."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None, None
    query = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
        name, mebibytes = told.splitlines()[0].rsplit(",", 1)
        return name.strip(), int(mebibytes) * 2**20
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None, None
