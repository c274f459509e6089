"""Decode one request end to end and count what happened."""

from __future__ import annotations

import time

import torch

from selector.adapters.base import Drafter
from selector.engines.base import Generation
from selector.engines.reference.model import DecoderModel
from selector.engines.reference.stepper import Sampler, Stepper


def decode(
    target: DecoderModel,
    drafter: Drafter | None,
    prompt_ids: list[int],
    *,
    k: int,
    max_tokens: int,
    stop_ids: frozenset[int],
    sampler: Sampler,
    stepping: type[Stepper] = Stepper,
) -> Generation:
    """Prefill, then steps until a stop token or `max_tokens`. Tokens and drafts past the end are not counted."""
    clock = time.perf_counter
    capacity = len(prompt_ids) + max_tokens + k + 1
    stepper = stepping(target, drafter, sampler, 1, capacity)
    start = clock()
    output = stepper.prefill(torch.tensor([prompt_ids], device=target.device))
    first = clock()
    drafted, per_step = 0, []
    while len(output) < max_tokens and output[-1] not in stop_ids:
        step = stepper.step(k)
        emitted = _until_stop(step.emitted[0], stop_ids)[: max_tokens - len(output)]
        output += emitted
        drafted += step.drafted
        per_step.append(min(step.accepted[0], len(emitted)))
    end = clock()
    return Generation(
        prompt_ids=tuple(prompt_ids),
        output_ids=tuple(output),
        finish="stop" if output[-1] in stop_ids else "length",
        decode_steps=len(per_step),
        drafted=drafted,
        accepted=sum(per_step),
        prefill_seconds=first - start,
        decode_seconds=end - first,
        accepted_per_step=tuple(per_step),
    )


def _until_stop(tokens: list[int], stop_ids: frozenset[int]) -> list[int]:
    for i, token in enumerate(tokens):
        if token in stop_ids:
            return tokens[: i + 1]
    return tokens
