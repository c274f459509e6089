"""Choosing and drawing tokens: the fast ways give what the plain ones do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch")

from selector.engines.reference import sampling  # after the skip, since it imports torch


def by_sorting(logits: torch.Tensor, top_p: float) -> torch.Tensor:
    """The rule said plainly: likeliest first, until the mass before a token reaches top_p."""
    p = torch.softmax(logits, -1)
    kept = torch.zeros_like(p)
    for row, out in zip(p, kept, strict=True):
        mass = 0.0
        for i in row.argsort(descending=True).tolist():
            if mass >= top_p:
                break
            out[i] = row[i]
            mass += float(row[i])
    return kept / kept.sum(-1, keepdim=True)


@pytest.mark.parametrize("first", [1, 4, 40])
@pytest.mark.parametrize("top_p", [0.01, 0.5, 0.95])
def test_the_nucleus_does_not_depend_on_how_many_tokens_are_looked_at_first(
    monkeypatch: pytest.MonkeyPatch, first: int, top_p: float
) -> None:
    monkeypatch.setattr(sampling, "NUCLEUS", first)
    logits = torch.randn((6, 40), generator=torch.Generator().manual_seed(0)) * torch.tensor(
        [[0.1], [1], [2], [3], [5], [9]]
    )
    assert torch.allclose(sampling.probabilities(logits, 1.0, top_p), by_sorting(logits, top_p), atol=1e-6)


def test_draws_follow_the_weights_and_never_take_a_weight_of_zero() -> None:
    weights = torch.tensor([[0.0, 2.0, 0.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0, 3.0]])
    generator = torch.Generator().manual_seed(0)
    drawn = torch.cat([sampling.draws(weights, generator) for _ in range(4000)], 1)
    share = torch.bincount(drawn[0], minlength=6) / 4000
    assert torch.allclose(share, weights[0] / 4, atol=0.03)
    assert share[[0, 2, 5]].tolist() == [0, 0, 0]
    assert set(drawn[1].tolist()) == {5}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_likeliest_token_is_the_first_of_equals(dtype: torch.dtype) -> None:
    logits = torch.tensor([[1, 3, 2, 3], [5, 1, 1, 1]], dtype=dtype)
    assert sampling.likeliest(logits).tolist() == [1, 0]


def test_a_draft_whose_probability_is_nan_is_refused_and_the_target_draws_alone() -> None:
    """Replay counts it as refused too (`branches.accepts`); taking it would emit whatever the drafter came up with."""
    p = torch.tensor([[0.5, 0.3, 0.2, 0.0], [0.25, 0.25, 0.25, 0.25]])
    q, generator = torch.full((1, 4), torch.nan), torch.Generator().manual_seed(0)
    verdicts = [sampling.verify_sampled(p, [3], generator, q) for _ in range(4000)]
    assert {v.accepted for v in verdicts} == {0}
    share = torch.bincount(torch.tensor([v.token for v in verdicts]), minlength=4) / 4000
    assert torch.allclose(share, p[0], atol=0.03)
