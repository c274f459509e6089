"""One decode step: draft, verify in one target pass, crop, keep the drafter in step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from selector.adapters.base import Drafter, Drafts, DraftSampling
from selector.engines.reference.model import DecoderModel
from selector.engines.reference.sampling import (
    Verdict,
    draw,
    likeliest,
    probabilities,
    verify_greedy,
    verify_sampled,
)


@dataclass(frozen=True)
class Sampler:
    """How tokens are chosen; `generator` None means greedy, and greedy requests are drafted for greedily too."""

    temperature: float = 0.0
    top_p: float = 1.0
    generator: torch.Generator | None = None
    draws_drafts: bool = False

    @property
    def drafting(self) -> DraftSampling | None:
        """How a drafter is to draw; None: greedily."""
        if self.generator is None or not self.draws_drafts:
            return None
        return DraftSampling(self.temperature, self.generator)

    def first(self, logits: Tensor) -> int:
        """The token after the prompt; `logits`: (vocabulary,)."""
        if self.generator is None:
            return int(likeliest(logits[None]))
        return draw(probabilities(logits[None], self.temperature, self.top_p)[0], self.generator)

    def verify(self, logits: Tensor, drafts: list[int], q: Tensor | None = None) -> Verdict:
        """Judge one row's drafts; logits: (drafts + 1, vocabulary); q: (drafts, vocabulary) they were drawn from."""
        if self.generator is None:
            return verify_greedy(logits, drafts)
        return verify_sampled(probabilities(logits, self.temperature, self.top_p), drafts, self.generator, q)


@dataclass(frozen=True)
class Step:
    """What one step did per row: drafts proposed, drafts accepted, tokens emitted (accepted + 1 of them)."""

    drafted: int
    accepted: list[int]
    emitted: list[list[int]]


class Stepper:
    """State of one batch in flight. The target's cache always lacks the last emitted token."""

    def __init__(
        self, target: DecoderModel, drafter: Drafter | None, sampler: Sampler, batch: int, capacity: int
    ) -> None:
        self.target, self.drafter, self.sampler = target, drafter, sampler
        self.cache = target.new_cache(batch, capacity)
        target.tap(drafter.aux_layers if drafter else ())
        if drafter:
            drafter.start(batch, capacity)
        self.last = torch.zeros((batch, 1), dtype=torch.long, device=target.device)

    @torch.inference_mode()
    def prefill(self, prompt: Tensor) -> list[int]:
        """Run the prompt (batch, tokens); returns the first output token of every row."""
        logits, aux = self.target.forward(prompt, self.cache, keep=1)
        first = [self.sampler.first(row) for row in logits[:, -1]]
        self.last = torch.tensor(first, device=prompt.device)[:, None]
        if self.drafter:
            self.drafter.prefill(prompt, aux)
            self.drafter.commit(self.last, None if aux is None else aux[:, -1:])
        if prompt.device.type == "cuda":
            torch.cuda.synchronize(prompt.device)  # the drafter's prefill is still under way, and is part of this
        return first

    @torch.inference_mode()
    def step(self, k: int, forced: int | None = None) -> Step:
        """Emit 1..k + 1 tokens per row.

        `forced` sets the accepted count for timing (the verdict is still computed); without it a batch must be of
        one row, since rows that accept differently would need ragged caches.
        """
        start = self.cache.length
        drafts = self.drafter.draft(k, self.sampler.drafting) if self.drafter and k else Drafts(self.last[:, :0])
        logits, aux = self.target.forward(torch.cat([self.last, drafts.tokens.to(self.last.device)], 1), self.cache)
        proposed = drafts.tokens.tolist()
        qs = [None] * len(proposed) if drafts.q is None else drafts.q
        verdicts = [self.sampler.verify(rows, row, q) for rows, row, q in zip(logits, proposed, qs, strict=True)]
        if forced is not None:
            verdicts = [Verdict(min(forced, len(row)), v.token) for v, row in zip(verdicts, proposed, strict=True)]
        counts = [v.accepted for v in verdicts]
        if len(set(counts)) != 1:
            raise ValueError("rows of one batch accepted different numbers of drafts: decode them one by one")
        emitted = [[*row[: v.accepted], v.token] for v, row in zip(verdicts, proposed, strict=True)]
        self._commit(start, counts[0], emitted, aux)
        return Step(drafts.tokens.shape[1], counts, emitted)

    def _commit(self, start: int, accepted: int, emitted: list[list[int]], aux: Tensor | None) -> None:
        self.cache.crop_to(start + accepted + 1)
        tokens = torch.tensor(emitted, device=self.last.device)
        self.last = tokens[:, -1:]
        if self.drafter:
            self.drafter.commit(tokens, None if aux is None else aux[:, : accepted + 1])

    def pretend(self, context: int) -> None:
        """For timing: as if `context` tokens a row were known, without having computed them."""
        self.cache.crop_to(context - 1)
        if self.drafter:
            self.drafter.pretend(context)
