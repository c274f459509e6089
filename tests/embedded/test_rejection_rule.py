"""The rejection rule on a vocabulary small enough to count: a right one passes, wrong ones are caught."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch")

from selector.engines.reference.sampling import (  # after the skip, since it imports torch
    Verdict,
    probabilities,
    verify_sampled,
)

pytestmark = pytest.mark.embedded
P = torch.tensor([[0.45, 0.25, 0.15, 0.1, 0.05], [0.1, 0.1, 0.2, 0.2, 0.4]])
Q = torch.tensor([[0.1, 0.5, 0.2, 0.1, 0.1]])
RUNS = 8_000
#: 99.99% point of chi-square with 4 degrees of freedom: a right rule fails one run in ten thousand, the seed is fixed.
LIMIT = 23.5
Rule = Callable[..., Verdict]
Counts = np.ndarray[Any, np.dtype[np.float64]]


def first_tokens(rule: Rule, *, greedy: bool) -> Counts:
    """Counts of the first emitted token over many steps with one draft."""
    generator = torch.Generator().manual_seed(5)
    counts = np.zeros(5)
    for _ in range(RUNS):
        draft = 1 if greedy else int(torch.multinomial(Q[0], 1, generator=generator))
        verdict = rule(P, [draft], generator, None if greedy else Q)
        counts[draft if verdict.accepted else verdict.token] += 1
    return counts


def chi_square(counts: Counts) -> float:
    expected = P[0].numpy() * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("greedy", [True, False], ids=["greedy drafts", "sampled drafts"])
def test_the_first_token_follows_the_target(greedy: bool) -> None:
    assert chi_square(first_tokens(verify_sampled, greedy=greedy)) < LIMIT


def no_residual(p: torch.Tensor, drafts: list[int], generator: torch.Generator, q: torch.Tensor | None) -> Verdict:
    """Wrong: a rejected draft is replaced by a draw from p instead of what p has left."""
    q_x = 1.0 if q is None else float(q[0, drafts[0]])
    if float(torch.rand((), generator=generator)) * q_x < float(p[0, drafts[0]]):
        return Verdict(1, int(torch.multinomial(p[1], 1, generator=generator)))
    return Verdict(0, int(torch.multinomial(p[0], 1, generator=generator)))


def always_accept(p: torch.Tensor, drafts: list[int], generator: torch.Generator, q: torch.Tensor | None) -> Verdict:
    """Wrong: what the drafter says goes."""
    return Verdict(1, 0)


def point_mass_residual(
    p: torch.Tensor, drafts: list[int], generator: torch.Generator, q: torch.Tensor | None
) -> Verdict:
    """Wrong for sampled drafts: accepts by p/q, then replaces as if the draft had been a point mass."""
    assert q is not None
    if float(torch.rand((), generator=generator)) * float(q[0, drafts[0]]) < float(p[0, drafts[0]]):
        return Verdict(1, 0)
    residual = p[0].clone()
    residual[drafts[0]] = 0
    return Verdict(0, int(torch.multinomial(residual, 1, generator=generator)))


@pytest.mark.parametrize(
    ("rule", "greedy"), [(no_residual, True), (no_residual, False), (always_accept, True), (point_mass_residual, False)]
)
def test_a_wrong_rule_is_caught(rule: Rule, greedy: bool) -> None:
    assert chi_square(first_tokens(rule, greedy=greedy)) > 3 * LIMIT


def test_the_bonus_token_follows_the_next_row() -> None:
    generator = torch.Generator().manual_seed(1)
    certain = torch.tensor([[0.0, 1.0, 0.0, 0.0, 0.0], P[1].tolist()])
    verdicts = [verify_sampled(certain, [1], generator) for _ in range(RUNS)]
    assert all(v.accepted == 1 for v in verdicts)
    counts = np.bincount([v.token for v in verdicts], minlength=5)
    expected = P[1].numpy() * RUNS
    assert float(((counts - expected) ** 2 / expected).sum()) < LIMIT


def test_the_nucleus_is_the_smallest_set_that_reaches_top_p() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    kept = probabilities(logits, 1.0, 0.8)[0]
    assert torch.allclose(kept, torch.tensor([0.625, 0.375, 0.0, 0.0]), atol=1e-6)
    assert torch.allclose(probabilities(logits, 1.0, 1.0)[0], torch.tensor([0.5, 0.3, 0.15, 0.05]), atol=1e-6)
    assert probabilities(logits, 1.0, 0.01)[0, 0] == 1
