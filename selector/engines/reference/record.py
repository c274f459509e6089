"""Plain decoding of several prompts in one left-padded batch: how recordings are made cheaply.

Plain decoding emits one token per row and step, so rows stay in lock step and need no ragged cache.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from selector.engines.base import Generation
from selector.engines.reference.model import DecoderModel
from selector.engines.reference.stepper import Sampler


def record(
    target: DecoderModel,
    prompts: Sequence[list[int]],
    limits: Sequence[int],
    samplers: Sequence[Sampler],
    stop_ids: frozenset[int],
) -> list[Generation]:
    """One `Generation` per prompt, in order; their times are shares of the batch's and no measurement."""
    target.tap(())
    start = time.perf_counter()
    longest, steps = max(map(len, prompts)), max(limits)
    cache = target.new_cache(len(prompts), longest + steps)
    device = target.device
    pad = torch.tensor([longest - len(p) for p in prompts], device=device)
    tokens = torch.tensor([[0] * (longest - len(p)) + p for p in prompts], device=device)
    positions = (torch.arange(longest, device=device)[None] - pad[:, None]).clamp(min=0)
    logits, _ = target.forward(
        tokens, cache, positions=positions, mask=_prompt_mask(pad, longest, target.dtype), keep=1
    )
    prefilled = time.perf_counter()
    outputs: list[list[int]] = [[s.first(row)] for s, row in zip(samplers, logits[:, -1], strict=True)]
    live = [_alive(o, n, stop_ids) for o, n in zip(outputs, limits, strict=True)]
    while any(live):
        last = torch.tensor([[o[-1]] for o in outputs], device=device)
        at = cache.length
        logits, _ = target.forward(
            last, cache, positions=(at - pad)[:, None], mask=_row_mask(pad, at + 1, target.dtype)
        )
        for i, row in enumerate(logits[:, -1]):
            if live[i]:
                outputs[i].append(samplers[i].first(row))
                live[i] = _alive(outputs[i], limits[i], stop_ids)
    seconds = (time.perf_counter() - prefilled) / len(prompts)
    return [
        Generation(
            prompt_ids=tuple(p),
            output_ids=tuple(o),
            finish="stop" if o[-1] in stop_ids else "length",
            decode_steps=len(o) - 1,
            drafted=0,
            accepted=0,
            prefill_seconds=(prefilled - start) / len(prompts),
            decode_seconds=seconds,
        )
        for p, o in zip(prompts, outputs, strict=True)
    ]


def _alive(output: list[int], limit: int, stop_ids: frozenset[int]) -> bool:
    return len(output) < limit and output[-1] not in stop_ids


def _row_mask(pad: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """(rows, 1, 1, length): the padding in front of each row is not seen."""
    hidden = torch.arange(length, device=pad.device)[None] < pad[:, None]
    return torch.zeros(hidden.shape, dtype=dtype, device=pad.device).masked_fill_(hidden, float("-inf"))[:, None, None]


def _prompt_mask(pad: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """(rows, 1, length, length): causal, without padding; padding sees itself, since a row that sees nothing is NaN."""
    device = pad.device
    causal = torch.ones((length, length), dtype=torch.bool, device=device).tril()
    seen = causal[None] & (torch.arange(length, device=device)[None, None] >= pad[:, None, None])
    seen |= torch.eye(length, dtype=torch.bool, device=device)[None]
    return torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, float("-inf"))[:, None]
