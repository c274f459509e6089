"""The n-gram drafter of the reference engine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from selector.adapters.base import Drafts, DraftSampling, Recording
from selector.adapters.ngram import propose, replay_ngram


class NgramDrafter:
    """Keeps the committed ids of every row; proposals may be shorter than k, or none."""

    aux_layers: Sequence[int] = ()

    def __init__(self, lookup_min: int, lookup_max: int) -> None:
        self.lookup_min, self.lookup_max = lookup_min, lookup_max
        self.start(1, 0)

    def start(self, batch: int, capacity: int) -> None:
        """Room for `capacity` ids a row."""
        self.tokens = np.zeros((batch, capacity), np.int64)
        self.length = 0

    def prefill(self, prompt: Tensor, aux: Tensor | None) -> None:
        """The prompt is where most matches lie."""
        self.commit(prompt, None)

    def commit(self, tokens: Tensor, aux: Tensor | None) -> None:
        """Append emitted ids."""
        end = self.length + tokens.shape[1]
        self.tokens[:, self.length : end] = tokens.numpy(force=True)
        self.length = end

    def draft(self, k: int, sampling: DraftSampling | None = None) -> Drafts:
        """Proposals, never drawn; all rows are cut to the shortest (lock step needs one width)."""
        rows = [propose(row[: self.length], self.lookup_min, self.lookup_max, k) for row in self.tokens]
        width = min(len(r) for r in rows)
        return Drafts(torch.from_numpy(np.stack([r[:width] for r in rows])))

    def pretend(self, length: int) -> None:
        """Ids that never repeat: the lookup scans all of them and proposes nothing."""
        self.tokens[:] = np.arange(self.tokens.shape[1])
        self.length = length

    def replay(self, recording: Recording, k: int) -> tuple[list[int], list[int] | None]:
        """Token ids are all it takes."""
        ids, n = recording.tokens.tolist(), recording.prompt_length
        return replay_ngram(ids[:n], ids[n:], self.lookup_min, self.lookup_max, k)
