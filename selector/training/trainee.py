"""What the training loop asks of a drafter, and how its hold-out acceptance is counted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from selector.training.features import Batch, FeatureCache, shifted

#: Drafts in a row that the hold-out figure is printed for, and how many of them heads are trained on.
POSITIONS, TRAINED_POSITIONS = 5, 3


class Trainee(nn.Module, ABC):
    """A drafter being trained; its state dict is what a checkpoint stores."""

    learning_rate: float
    clip: float

    @property
    @abstractmethod
    def identity(self) -> str:
        """What a checkpoint's weights mean; weights of another identity are not loaded."""

    @abstractmethod
    def loss(self, batch: Batch) -> Tensor:
        """What to minimise."""

    @abstractmethod
    def guesses(self, batch: Batch) -> Iterator[Tensor]:
        """For i = 0..POSITIONS-1: (rows, tokens) guess at entry t for token t+1+i, given tokens up to t+i."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the drafter as it ships."""


@dataclass(frozen=True)
class Acceptance:
    """Share of chains whose first i drafts were all right, i = 1..POSITIONS.

    `recorded`: equal to the recorded tokens, which is what an engine accepts. `best`: equal to the target's
    most likely token there; the same on greedy answers, and the figure the first trainings reported.
    """

    recorded: tuple[float, ...]
    best: tuple[float, ...]

    def __str__(self) -> str:
        parts = (" / ".join(f"{share:.3f}" for share in shares) for shares in (self.recorded, self.best))
        return "recorded {}, target's best {}".format(*parts)


@torch.no_grad()
def evaluate(trainee: Trainee, batches: FeatureCache) -> Acceptance:
    """Chain acceptance behind every answer token of the batches."""
    trainee.eval()
    hits = torch.zeros(2, POSITIONS)
    chains = torch.zeros(POSITIONS)
    for index in range(len(batches)):
        batch = batches[index]
        alive = [batch.answer.clone(), batch.answer.clone()]
        for i, guess in enumerate(trainee.guesses(batch)):
            inside = shifted(batch.answer, i + 1)
            truths = (shifted(batch.ids, i + 1), shifted(batch.best, i))
            chains[i] += (batch.answer & inside).sum()
            for kind, truth in enumerate(truths):
                alive[kind] &= inside & (guess == truth)
                hits[kind, i] += alive[kind].sum()
    trainee.train()
    recorded, best = (hits / chains.clamp(min=1)).tolist()
    return Acceptance(tuple(recorded), tuple(best))
