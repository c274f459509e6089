"""Where a benchmark's numbers come from, in one paragraph."""

from __future__ import annotations

from datetime import UTC, datetime

from selector.measure.hardware import sample_hardware
from selector.profile import EngineInfo, Hardware


def header(engine: EngineInfo, command: str, hardware: Hardware | None = None, date: str | None = None) -> str:
    """Machine, versions, date and command."""
    h = hardware or sample_hardware()
    packages = ", ".join(f"{k} {v}" for k, v in engine.packages.items() if k != "packed_linears")
    return (
        f"{date or datetime.now(UTC).date().isoformat()}; {h.processor}, {h.cores} cores, "
        f"{h.memory_bytes / 2**30:.0f} GiB, read bandwidth {h.read_bandwidth_bytes_per_second / 1e9:.1f} GB/s, "
        f"{h.matmul_flop_per_second / 1e9:.0f} GFLOP/s fp32 measured; {engine.name} engine {engine.version}, "
        f"{engine.dtype}, {engine.threads} threads, {packages}; `{command}`"
    )
