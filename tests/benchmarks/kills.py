"""Prints what is left of real vLLM servers after `selector profile` was killed at random moments: nothing, one hopes.

SELECTOR_VLLM=PATH python -m tests.benchmarks.kills --count 20 > docs/benchmarks/kills.md
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from tests.vllm.running import segments, servers_alive, start

LATEST = 45.0  #: seconds: a start takes some 20 to 35, so both starting and working servers are met


def main() -> None:
    """Kill, wait, look; each run goes on with the journal of the one before."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    print("# Kills\n")
    print(
        f"{datetime.now(UTC).date().isoformat()}; vLLM 0.32.0 on CPU; `selector profile --engine vllm` killed with "
        f"signal 9 after a random time up to {LATEST:.0f} s, {options.count} times, resumed each time; "
        f"`python -m tests.benchmarks.kills --count {options.count} --seed {options.seed}`. Left: looked at until "
        "nothing is, for 20 s at most.\n"
    )
    print("| kill | after | vLLM processes then | gone after | processes left | shared memory left |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        folder, left = Path(scratch), 0
        for i in range(options.count):
            row, clean = one(folder, draw.uniform(1.0, LATEST), resume=i > 0)
            left += not clean
            print(f"| {i + 1} | {row} |", flush=True)
    print(f"\n{options.count - left} of {options.count} left nothing behind.")


def one(folder: Path, seconds: float, *, resume: bool) -> tuple[str, bool]:
    """Start, kill, and count what is left."""
    before = segments()
    run = start(folder, *(["--resume"] if resume else []))
    time.sleep(seconds)
    alive = len(servers_alive())
    ended = run.poll()
    run.send_signal(signal.SIGKILL)
    run.wait()
    killed = time.monotonic()
    while (servers_alive() or segments() - before) and time.monotonic() < killed + 20:
        time.sleep(0.1)
    took = time.monotonic() - killed
    processes, memory = servers_alive(), segments() - before
    print(f"{seconds:.0f} s: {len(processes)} processes, {sorted(memory)} left", file=sys.stderr, flush=True)
    shown = f"{seconds:.0f} s" + (f" (had ended, {ended})" if ended is not None else "")
    return f"{shown} | {alive} | {took:.1f} s | {len(processes)} | {len(memory)}", not processes and not memory


if __name__ == "__main__":
    main()
