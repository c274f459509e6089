"""Branch-mask replay: drafts from every recorded position in one masked pass per depth.

Each branch starts at a recorded position, sees the recorded prefix up to there and its own earlier drafts, and is
dropped once a draft differs from the recording, so the passes get shorter as they get deeper.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Branches:
    """Bookkeeping of the living branches; positions count from the start of the recording.

    roots: (branches,) index of the last known token; `past`: cache entries of the recording (columns 0..past-1).
    """

    def __init__(self, tokens: Tensor, prompt_length: int, past: int, lag: int = 0) -> None:
        outputs = len(tokens) - prompt_length
        self.recorded = tokens
        device = tokens.device
        self.roots = torch.arange(prompt_length, prompt_length + outputs - 1, device=device)
        self.alive = torch.arange(outputs - 1, device=device)
        self.accepted = [0] * (outputs - 1)
        self.depth = 0
        self.past, self.lag = past, lag
        self.width = past
        self.own = torch.zeros((outputs - 1, 0), dtype=torch.long, device=device)
        self.tokens = torch.zeros(0, dtype=torch.long, device=device)

    def advance(self, drafts: Tensor) -> bool:
        """Score the drafts of the living branches, drop the wrong ones; True while any branch lives.

        Afterwards `tokens` holds the surviving drafts, to be fed at `positions` under `mask`.
        """
        truth_at = self.roots[self.alive] + 1 + self.depth
        inside = truth_at < len(self.recorded)
        right = inside & (self.recorded[truth_at.clamp(max=len(self.recorded) - 1)] == drafts)
        for i in self.alive[right].tolist():
            self.accepted[i] += 1
        self.kept = right
        self.alive, self.tokens = self.alive[right], drafts[right]
        self.depth += 1
        columns = torch.arange(self.width, self.width + len(self.alive), device=drafts.device)
        self.own = torch.cat([self.own[right], columns[:, None]], 1)
        self.width += len(self.alive)
        return len(self.alive) > 0

    @property
    def positions(self) -> Tensor:
        """Position of each surviving draft in its own sequence (minus the drafter's lag)."""
        return self.roots[self.alive] + self.depth - self.lag

    def mask(self, dtype: torch.dtype) -> Tensor:
        """Additive mask (1, 1, living, cache + living) for the next pass: recorded prefix and own drafts only."""
        device = self.own.device
        allowed = torch.zeros((len(self.alive), self.width), dtype=torch.bool, device=device)
        prefix = torch.arange(self.past, device=device)[None] <= (self.roots[self.alive] - self.lag)[:, None]
        allowed[:, : self.past] = prefix
        allowed.scatter_(1, self.own, True)
        mask = torch.zeros(allowed.shape, dtype=dtype, device=device)
        return mask.masked_fill_(~allowed, float("-inf"))[None, None]
