"""Scores finished outputs: how likely the target finds each token, and how the drafter would have tilted it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from selector.adapters.base import Drafter, Drafts, DraftSampling
from selector.engines.base import Generation, Scores, TokenScores
from selector.engines.reference.model import DecoderModel
from selector.engines.reference.sampling import probabilities


@torch.inference_mode()
def score(
    target: DecoderModel,
    output: Generation,
    drafters: Mapping[str, tuple[Drafter, bool]],
    *,
    temperature: float,
    top_p: float,
) -> TokenScores:
    """One pass of the target over the output, and one draft per token and drafter (by family; True: drawn drafts)."""
    tokens = torch.tensor([output.prompt_ids + output.output_ids], device=target.device)
    layers = sorted({layer for drafter, _ in drafters.values() for layer in drafter.aux_layers})
    target.tap(layers)
    logits, aux = target.forward(tokens[:, :-1], target.new_cache(1, tokens.shape[1]), keep=len(output.output_ids))
    scaled = logits[0].float() / temperature
    whole = torch.softmax(scaled, -1)
    judged = _Judged(probabilities(logits[0], temperature, top_p), tokens[0, len(output.prompt_ids) :], whole)
    favoured, made = {}, dict[int, list[Drafts]]()
    drawing = {id(drafter) for drafter, drawn in drafters.values() if drawn}
    for family, (drafter, drawn) in drafters.items():
        if id(drafter) not in made:  # led over the output once: the likeliest draft can be read off q
            own = _of_layers(aux, layers, drafter.aux_layers)
            made[id(drafter)] = _first_drafts(
                drafter, tokens, own, len(judged.tokens), temperature if id(drafter) in drawing else None
            )
        favoured[family] = _favoured(made[id(drafter)], judged, drawn=drawn)
    p = judged.p.gather(1, judged.tokens)[:, 0]
    surprisal = torch.where(p > 0, -p.log(), torch.nan)
    return TokenScores(
        p=_array(p),
        likelier=_array((judged.p * judged.likelier).sum(-1)),
        excess=_array(surprisal - torch.special.entr(judged.p).sum(-1)),
        beyond=_array((whole * judged.likelier).sum(-1) - top_p),
        before=_array((judged.p * (torch.arange(whole.shape[1], device=p.device) < judged.tokens)).sum(-1)),
        log_tail=_array(_log_tail(scaled, judged, cut=top_p < 1)),
        favoured=favoured,
    )


class _Judged:
    """p: (n, vocabulary), what the n emitted tokens (n, 1) should follow; likelier: mask of the tokens before each.

    Tokens are ordered by the whole distribution, equals by their id: any order will do that does not look at what
    was emitted.
    """

    def __init__(self, p: Tensor, tokens: Tensor, whole: Tensor) -> None:
        self.p, self.tokens = p, tokens[:, None]
        own = whole.gather(1, self.tokens)
        ids = torch.arange(whole.shape[1], device=whole.device)
        self.likelier = (whole > own) | ((whole == own) & (ids < self.tokens))


def _log_tail(scaled: Tensor, judged: _Judged, *, cut: bool) -> Tensor:
    """In logs, since float32 ends at 1e-45. With a nucleus (`cut`) only what is left in it counts."""
    if not cut:
        tail = scaled.masked_fill(judged.likelier, -torch.inf)
        return torch.logsumexp(tail, -1) - torch.logsumexp(scaled, -1)
    inside = judged.p.gather(1, judged.tokens)[:, 0] > 0
    return torch.where(inside, (judged.p * ~judged.likelier).sum(-1).log(), torch.nan)


def _favoured(made: Sequence[Drafts], judged: _Judged, *, drawn: bool) -> Scores:
    """Mass of the tokens with a larger q / p than the emitted: every fault of a rejection rule pulls along q / p.

    `made`: the draft for every token but the first. Of a draft that was not drawn q is a point mass.
    """
    found = torch.full((len(judged.tokens),), torch.nan, device=judged.p.device)
    drafts = [d for d in made if d.tokens.shape[1]]
    if not drafts:
        return _array(found)
    at = torch.tensor([i for i, d in enumerate(made, 1) if d.tokens.shape[1]], device=found.device)
    p, own, likelier = judged.p[at], judged.tokens[at], judged.likelier[at]
    q = torch.cat([d.q[0] for d in drafts if d.q is not None]) if drafts[0].q is not None else None
    if drawn and q is not None:
        ratio = torch.where(p > 0, q / p, 0.0)
        r = ratio.gather(1, own)
        before = (p * ((ratio > r) | ((ratio == r) & likelier))).sum(-1)
    else:  # the draft comes first, then the others from likely to unlikely
        guess = torch.cat([d.tokens for d in drafts]).to(p.device) if q is None else q.argmax(-1, keepdim=True)
        before = (p * likelier).sum(-1, keepdim=True) + p.gather(1, guess) * ~likelier.gather(1, guess)
        before = torch.where(guess == own, 0.0, before)[:, 0]
    found[at] = torch.where(p.gather(1, own)[:, 0] > 0, before, torch.nan)
    return _array(found)


def _first_drafts(
    drafter: Drafter, tokens: Tensor, aux: Tensor | None, n: int, temperature: float | None
) -> list[Drafts]:
    """The draft for each of the last `n` tokens but the first, led over them one by one as live decoding does.

    With a temperature drafts are drawn, which tells q; what was drawn does not matter.
    """
    start = tokens.shape[1] - n
    drafter.start(1, tokens.shape[1] + 2)
    drafter.prefill(tokens[:, :start], None if aux is None else aux[:, :start])
    drawing = None if temperature is None else DraftSampling(temperature, torch.Generator(tokens.device).manual_seed(0))
    made = []
    for at in range(start, tokens.shape[1] - 1):
        drafter.commit(tokens[:, at : at + 1], None if aux is None else aux[:, at - 1 : at])
        made.append(drafter.draft(1, drawing))
    return made


def _of_layers(aux: Tensor | None, tapped: Sequence[int], wanted: Sequence[int]) -> Tensor | None:
    """The columns of `aux` (1, tokens, taps * hidden) that belong to the wanted layers, in their order."""
    if aux is None or not wanted:
        return None
    parts = aux.chunk(len(tapped), -1)
    return torch.cat([parts[tapped.index(layer)] for layer in wanted], -1)


def _array(values: Tensor) -> Scores:
    array: Scores = values.double().numpy(force=True)
    return array
