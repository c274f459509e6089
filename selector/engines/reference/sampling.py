"""Sampling and verification: which drafts the target accepts, and which token it emits itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from selector.adapters.base import Drafts, DraftSampling


@dataclass(frozen=True)
class Verdict:
    """Accepted drafts of one row and the target's own next token."""

    accepted: int
    token: int


def probabilities(logits: Tensor, temperature: float, top_p: float) -> Tensor:
    """Sampling distribution (rows, vocabulary), float32: temperature first, then nucleus, as serving engines do.

    The nucleus is the smallest set of most likely tokens whose mass reaches `top_p` (Holtzman et al. 2020).
    """
    p = torch.softmax(logits.float() / temperature, -1)
    if top_p >= 1:
        return p
    ordered, index = p.sort(-1, descending=True)
    keep = ordered.cumsum(-1) - ordered < top_p  # mass before the token: the first one always stays
    kept = torch.zeros_like(p).scatter_(-1, index, ordered * keep)
    return kept / kept.sum(-1, keepdim=True)


def verify_greedy(logits: Tensor, drafts: list[int]) -> Verdict:
    """Accept drafts while they equal the target's argmax. `logits`: (drafts + 1, vocabulary) of one row."""
    best = logits.argmax(-1).tolist()
    accepted = 0
    while accepted < len(drafts) and drafts[accepted] == best[accepted]:
        accepted += 1
    return Verdict(accepted, best[accepted])


def verify_sampled(p: Tensor, drafts: list[int], generator: torch.Generator, q: Tensor | None = None) -> Verdict:
    """Rejection sampling (Leviathan et al. 2023, Chen et al. 2023); the emitted tokens follow `p` exactly.

    `p`: (drafts + 1, vocabulary) target distributions. `q`: (drafts, vocabulary) the distributions the drafts were
    drawn from; None means greedy drafts, a point mass, so a draft x is accepted with probability p(x).
    A rejected draft is replaced by a draw from max(p - q, 0), normalised.
    """
    for i, x in enumerate(drafts):
        u = torch.rand((), generator=generator, device=generator.device).item()
        q_x = 1.0 if q is None else float(q[i, x])
        if u * q_x < float(p[i, x]):
            continue
        residual = p[i].clone()
        if q is None:
            residual[x] = 0.0
        else:
            residual = (residual - q[i]).clamp_(min=0)
        return Verdict(i, draw(residual, generator))
    return Verdict(len(drafts), draw(p[len(drafts)], generator))


def draw(weights: Tensor, generator: torch.Generator) -> int:
    """One index drawn in proportion to `weights` (vocabulary,); they need not sum to one."""
    return int(torch.multinomial(weights, 1, generator=generator).item())


def choose(logits: Tensor, sampling: DraftSampling | None) -> Drafts:
    """One draft per row from `logits` (batch, vocabulary): the likeliest token, or one drawn at the temperature."""
    if sampling is None:
        return Drafts(logits.argmax(-1, keepdim=True))
    q = torch.softmax(logits.float() / sampling.temperature, -1)
    return Drafts(torch.multinomial(q, 1, generator=sampling.generator), q[:, None])


def side_by_side(drafts: Sequence[Drafts]) -> Drafts:
    """Drafts made one after the other as one proposal."""
    q = [d.q for d in drafts if d.q is not None]
    return Drafts(torch.cat([d.tokens for d in drafts], 1), torch.cat(q, 1) if q else None)
