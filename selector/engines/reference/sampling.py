"""Sampling and verification: which drafts the target accepts, and which token it emits itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from selector.adapters.base import Drafts, DraftSampling

#: Tokens looked at first for a nucleus; all of them are sorted where these do not hold its mass.
NUCLEUS = 256


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
    ordered, index = p.topk(min(NUCLEUS, p.shape[-1]), -1)
    before = ordered.cumsum(-1) - ordered  # mass before the token: the first one always stays
    if ordered.shape[-1] < p.shape[-1] and bool((before[:, -1] < top_p).any()):
        ordered, index = p.sort(-1, descending=True)
        before = ordered.cumsum(-1) - ordered
    kept = torch.zeros_like(p).scatter_(-1, index, ordered * (before < top_p))
    return kept / kept.sum(-1, keepdim=True)


def likeliest(logits: Tensor) -> Tensor:
    """Index of the largest logit of every row (rows, vocabulary) -> (rows,); the first of equals."""
    if logits.device.type == "cpu" and logits.dtype == torch.float32:
        return torch.from_numpy(logits.numpy().argmax(-1))  # a twentieth of torch's time, 420 us for five rows
    return logits.argmax(-1)


def verify_greedy(logits: Tensor, drafts: list[int]) -> Verdict:
    """Accept drafts while they equal the target's argmax. `logits`: (drafts + 1, vocabulary) of one row."""
    best = likeliest(logits).tolist()
    accepted = 0
    while accepted < len(drafts) and drafts[accepted] == best[accepted]:
        accepted += 1
    return Verdict(accepted, best[accepted])


def verify_sampled(p: Tensor, drafts: list[int], generator: torch.Generator, q: Tensor | None = None) -> Verdict:
    """Rejection sampling (Leviathan et al. 2023, Chen et al. 2023); the emitted tokens follow `p` exactly.

    `p`: (drafts + 1, vocabulary) target distributions. `q`: (drafts, vocabulary) the distributions the drafts were
    drawn from; None means greedy drafts, a point mass, so a draft x is accepted with probability p(x).
    A rejected draft is replaced by a draw from max(p - q, 0), normalised; where q is NaN (a drafter out of its depth)
    the draft is always rejected and p itself is drawn from.
    """
    n = len(drafts)
    if n:
        x, u = torch.tensor(drafts, device=p.device)[:, None], torch.rand((n, 1), generator=generator, device=p.device)
        refused = ~(u * (1.0 if q is None else q.gather(1, x)) < p[:n].gather(1, x))  # NaN is below nothing
        for i, no in enumerate(refused[:, 0].tolist()):
            if no:
                residual = p[i].clone()
                if q is None:
                    residual[drafts[i]] = 0.0
                else:
                    residual = (residual - q[i].nan_to_num()).clamp_(min=0)
                return Verdict(i, draw(residual, generator))
    return Verdict(n, draw(p[n], generator))


def draw(weights: Tensor, generator: torch.Generator) -> int:
    """One index drawn in proportion to `weights` (vocabulary,); they need not sum to one."""
    return int(draws(weights[None], generator))


def draws(weights: Tensor, generator: torch.Generator) -> Tensor:
    """One index per row of `weights` (rows, vocabulary) -> (rows, 1), by their running sum in float64."""
    mass = weights.cumsum(-1, dtype=torch.float64)
    u = torch.rand((len(weights), 1), generator=generator, dtype=torch.float64, device=weights.device)
    return torch.searchsorted(mass, u * mass[:, -1:], right=True).clamp_(max=weights.shape[-1] - 1)


def choose(logits: Tensor, sampling: DraftSampling | None) -> Drafts:
    """One draft per row from `logits` (batch, vocabulary): the likeliest token, or one drawn at the temperature."""
    if sampling is None:
        return Drafts(likeliest(logits)[:, None])
    q = torch.softmax(logits.float() / sampling.temperature, -1)
    return Drafts(draws(q, sampling.generator), q[:, None])


def side_by_side(drafts: Sequence[Drafts]) -> Drafts:
    """Drafts made one after the other as one proposal."""
    q = [d.q for d in drafts if d.q is not None]
    return Drafts(torch.cat([d.tokens for d in drafts], 1), torch.cat(q, 1) if q else None)
