"""Which prompts are compared: some of each task, whatever sampling they ask for."""

from __future__ import annotations

import random
from collections.abc import Sequence

from selector.workload import Request


def choose(requests: Sequence[Request], per_task: int, max_tokens: int, seed: int) -> list[Request]:
    """A seeded choice without repeats, their `max_tokens` replaced."""
    tasks: dict[str, dict[str, Request]] = {}
    for r in requests:
        tasks.setdefault(r.task, {}).setdefault(r.digest, r)
    chosen = []
    for rs in tasks.values():
        order = sorted(rs.values(), key=lambda r: r.digest)
        random.Random(seed).shuffle(order)
        chosen += [r.model_copy(update={"max_tokens": max_tokens}) for r in order[:per_task]]
    return chosen
