"""Branch-mask replay: drafts from every recorded position in one masked pass per depth.

Each branch starts at a recorded position, sees the recorded prefix up to there and its own earlier drafts, and is
dropped once a draft is not accepted, so the passes get shorter as they get deeper. An accepted draft is the recorded
token (see `accepts`), so what survives is always the recording itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from selector.adapters.base import Recording
from selector.errors import SelectorError

#: Entries of the largest mask, 1 GiB in float32: about 13,000 output tokens behind a short prompt.
MOST_MASKED = 2**28


class Branches:
    """Bookkeeping of the living branches; positions count from the start of the recording.

    `past`: cache entries of the recording (columns 0..past-1); `lag`: how far the drafter's positions stay behind.
    """

    def __init__(self, recording: Recording, past: int, lag: int = 0) -> None:
        self.recording = recording
        outputs = len(recording.tokens) - recording.prompt_length
        if outputs * (past + outputs) > MOST_MASKED:
            raise SelectorError(
                f"a recording of {outputs} output tokens is too long to replay at all positions at once "
                f"(a mask of {outputs * (past + outputs):,} entries): lower max_tokens of its requests"
            )
        first, total, device = recording.prompt_length, len(recording.tokens), recording.tokens.device
        #: Index of the last known token of each branch, living or not: output tokens 1..n-1 are to be drafted.
        self.roots = torch.arange(first, total - 1, device=device)
        self.alive = torch.arange(total - 1 - first, device=device)
        self.accepted = [0] * len(self.roots)
        self.depth = 0
        self.past, self.lag, self.width = past, lag, past
        self.own = torch.zeros((len(self.roots), 0), dtype=torch.long, device=device)
        self.tokens = torch.zeros(0, dtype=torch.long, device=device)

    def advance(self, logits: Tensor) -> bool:
        """Score the drafts of the living branches, drop the wrong ones; True while any branch lives.

        `logits`: (living, vocabulary) of the drafter. Afterwards `tokens` holds the surviving drafts, to be fed at
        `positions` under `mask`; `kept` says which of the living they were.
        """
        self.kept, truth = accepts(
            self.recording, logits, self.roots[self.alive] + 1 + self.depth, self.alive, self.depth
        )
        self.alive, self.tokens = self.alive[self.kept], truth[self.kept]
        for i in self.alive.tolist():
            self.accepted[i] += 1
        self.depth += 1
        columns = torch.arange(self.width, self.width + len(self.alive), device=logits.device)
        self.own = torch.cat([self.own[self.kept], columns[:, None]], 1)
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


def accepts(recording: Recording, logits: Tensor, at: Tensor, branch: Tensor, depth: int) -> tuple[Tensor, Tensor]:
    """Whether each branch's draft number `depth` gets its recorded token through, and that token.

    logits: (branches, vocabulary); at: (branches,) index of the recorded token; branch: (branches,) its row of `u`.
    Greedy drafts get through where they equal the recording. Of sampled ones the recorded token x gets through with
    probability min(1, q(x) / p(x)): given that the rejection rule (Leviathan et al. 2023) emitted x, which it does
    with probability p(x), that is the chance that x was a draft, drawn and accepted with probability min(p(x), q(x)).
    """
    inside = at < len(recording.tokens)
    at = at.clamp(max=len(recording.tokens) - 1)
    truth, sampled = recording.tokens[at], recording.sampled
    if sampled is None:
        return inside & (logits.argmax(-1) == truth), truth
    q = torch.softmax(logits.float() / sampled.temperature, -1).gather(-1, truth[:, None])[:, 0]
    return inside & (sampled.u[branch, depth] * sampled.p[at - recording.prompt_length] < q), truth
