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
    whole = torch.softmax(logits[0].float() / temperature, -1)
    judged = _Judged(probabilities(logits[0], temperature, top_p), tokens[0, len(output.prompt_ids) :], whole)
    favoured = {}
    for family, (drafter, drawn) in drafters.items():
        own = _of_layers(aux, layers, drafter.aux_layers)
        favoured[family] = _favoured(drafter, tokens, own, judged, temperature if drawn else None)
    p = judged.p.gather(1, judged.tokens)[:, 0]
    surprisal = torch.where(p > 0, -p.log(), torch.nan)
    return TokenScores(
        p=_array(p),
        likelier=_array((judged.p * judged.likelier).sum(-1)),
        excess=_array(surprisal - torch.special.entr(judged.p).sum(-1)),
        beyond=_array((whole * judged.likelier).sum(-1) - top_p),
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


def _favoured(
    drafter: Drafter, tokens: Tensor, aux: Tensor | None, judged: _Judged, temperature: float | None
) -> Scores:
    """Mass of the tokens with a larger q / p than the emitted: every fault of a rejection rule pulls along q / p."""
    made = _first_drafts(drafter, tokens, aux, len(judged.tokens), temperature)
    at = torch.tensor([i for i, d in made if d.tokens.shape[1]], device=tokens.device, dtype=torch.long)
    found = torch.full((len(judged.tokens),), torch.nan, device=tokens.device)
    if not len(at):
        return _array(found)
    drafts = [d for _, d in made if d.tokens.shape[1]]
    p, own, likelier = judged.p[at], judged.tokens[at], judged.likelier[at]
    if drafts[0].q is None:  # q is a point mass: the draft comes first, then the others from likely to unlikely
        guess = torch.cat([d.tokens for d in drafts]).to(p.device)
        before = (p * likelier).sum(-1, keepdim=True) + p.gather(1, guess) * ~likelier.gather(1, guess)
        before = torch.where(guess == own, 0.0, before)[:, 0]
    else:
        ratio = torch.where(p > 0, torch.cat([d.q[0] for d in drafts if d.q is not None]) / p, 0.0)
        r = ratio.gather(1, own)
        before = (p * ((ratio > r) | ((ratio == r) & likelier))).sum(-1)
    found[at] = torch.where(p.gather(1, own)[:, 0] > 0, before, torch.nan)
    return _array(found)


def _first_drafts(
    drafter: Drafter, tokens: Tensor, aux: Tensor | None, n: int, temperature: float | None
) -> list[tuple[int, Drafts]]:
    """The draft for each of the last `n` tokens but the first, led over them one by one as live decoding does."""
    start = tokens.shape[1] - n
    drafter.start(1, tokens.shape[1] + 2)
    drafter.prefill(tokens[:, :start], None if aux is None else aux[:, :start])
    drawing = None if temperature is None else DraftSampling(temperature, torch.Generator(tokens.device).manual_seed(0))
    made = []
    for i in range(1, n):
        at = start + i - 1
        drafter.commit(tokens[:, at : at + 1], None if aux is None else aux[:, at - 1 : at])
        made.append((i, drafter.draft(1, drawing)))
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
