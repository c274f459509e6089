"""The draft-model drafter of the reference engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from selector.adapters.base import Drafts, DraftSampling, Recording
from selector.adapters.branches import Branches
from selector.engines.reference.model import DecoderModel
from selector.engines.reference.sampling import choose, side_by_side


class ModelDrafter:
    """Its cache holds committed tokens and, behind them, the drafts it fed itself; `commit` crops to what stood."""

    aux_layers: Sequence[int] = ()

    def __init__(self, path: Path, target: DecoderModel) -> None:
        dtype = next(name for name in ("float32", "bfloat16") if str(target.dtype) == f"torch.{name}")
        self.model = DecoderModel(path, dtype, str(target.device), pack=target.pack)
        self.start(1, 1)

    def start(self, batch: int, capacity: int) -> None:
        """An empty cache."""
        self.batch, self.cache = batch, self.model.new_cache(batch, capacity)
        self.committed = torch.zeros((batch, 0), dtype=torch.long, device=self.model.device)
        self.in_cache = 0

    def prefill(self, prompt: Tensor, aux: Tensor | None) -> None:
        """Run the prompt now: its cost belongs to the prefill."""
        self.model.forward(prompt, self.cache, keep=1)
        self.committed, self.in_cache = prompt, prompt.shape[1]

    def commit(self, tokens: Tensor, aux: Tensor | None) -> None:
        """Keep the part of the cache that the emitted tokens agree with: all but the last of them were drafts."""
        self.committed = torch.cat([self.committed, tokens], 1)
        self.in_cache = min(self.cache.length, self.committed.shape[1] - 1)
        self.cache.crop_to(self.in_cache)

    @torch.inference_mode()
    def draft(self, k: int, sampling: DraftSampling | None = None) -> Drafts:
        """k tokens: first the tokens not yet seen are fed, then each draft in turn."""
        fresh, drafts = self.committed[:, self.in_cache :], []
        for _ in range(k):
            logits, _ = self.model.forward(fresh, self.cache, keep=1)
            drafts.append(choose(logits[:, -1], sampling))
            fresh = drafts[-1].tokens
        return side_by_side(drafts)

    def pretend(self, length: int) -> None:
        """All but the last token is in the cache already, as after a step without a full acceptance."""
        self.committed = torch.zeros((self.batch, length), dtype=torch.long, device=self.model.device)
        self.in_cache = length - 1
        self.cache.crop_to(self.in_cache)

    @torch.inference_mode()
    def replay(self, recording: Recording, k: int) -> tuple[list[int], list[int] | None]:
        """All positions at once: one causal pass, then one masked pass per further draft (`adapters.branches`)."""
        known = len(recording.tokens) - 1
        cache = self.model.new_cache(1, known + (known - recording.prompt_length) * (k - 1))
        branches = Branches(recording, past=known)
        logits, _ = self.model.forward(recording.tokens[None, :known], cache, keep=len(branches.roots))
        scores = logits[0]
        while branches.advance(scores) and branches.depth < k:
            mask = branches.mask(self.model.dtype)
            logits, _ = self.model.forward(branches.tokens[None], cache, positions=branches.positions[None], mask=mask)
            scores = logits[0]
        return branches.accepted, None
