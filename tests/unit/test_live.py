"""Acceptance of a serving engine at k that ran, and inferred between."""

from __future__ import annotations

import random

import pytest

from selector.errors import ProfileError
from selector.live import LiveAcceptance
from selector.profile import LiveWalk
from selector.walks import encode, walk


def chain(seed: int, rate: float, n: int, k: int) -> list[int]:
    """Per-position acceptance of a chain drafter: every draft is right with the same probability."""
    rng = random.Random(seed)
    found = []
    for _ in range(n):
        got = 0
        while got < k and rng.random() < rate:
            got += 1
        found.append(got)
    return found


def live(name: str, positions: list[int], k: int) -> LiveWalk:
    w = walk(positions, k)
    return LiveWalk(
        id=name, request_class="c", family="eagle3 h", k=k, output_tokens=len(positions) + 1,
        accepted=encode(w.accepted_per_step),
    )  # fmt: skip


def test_between_two_k_tau_is_inferred_within_three_percent() -> None:
    outputs = {f"p{i}": chain(i, 0.55, 400, 8) for i in range(12)}
    both = LiveAcceptance([live(n, o, k) for n, o in outputs.items() for k in (1, 8)])
    names = list(outputs)
    for k in range(1, 9):
        true = sum(len(o) for o in outputs.values()) / sum(walk(o, k).steps for o in outputs.values())
        tau = both.tau(k, names)
        pooled = sum(map(len, outputs.values())) / sum(len(outputs[n]) / t for n, t in zip(names, tau, strict=True))
        assert pooled == pytest.approx(true, rel=0.03), k
        assert both.is_inferred(k) == (k not in (1, 8))


def test_the_small_k_corrects_what_the_large_one_says() -> None:
    """Positions where a long walk stands may be easier than those where a short one does."""
    wide = LiveWalk(id="p", request_class="c", family="f h", k=4, output_tokens=13, accepted="4" + "0" * 8)
    narrow = LiveWalk(id="p", request_class="c", family="f h", k=1, output_tokens=13, accepted="10" * 4)
    acceptance = LiveAcceptance([wide, narrow])
    assert acceptance.tau(1, ["p"])[0] == pytest.approx(1.5)  # what ran, not the 1 + 1/9 of the wide walk
    assert acceptance.tau(4, ["p"])[0] == pytest.approx(1 + 4 / 9)
    assert 1.0 <= acceptance.tau(2, ["p"])[0] <= 3.0


def test_only_full_steps_count_towards_a_k() -> None:
    """A schedule may give another k to single steps (the batch was smaller for a moment)."""
    mixed = LiveWalk(
        id="p", request_class="c", family="f h", k=4, output_tokens=9, accepted="4010", drafted="4141"
    )  # fmt: skip
    assert LiveAcceptance([mixed]).tau(4, ["p"])[0] == pytest.approx(1 + (4 + 1) / 2)


def test_counts_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ProfileError, match="2 drafted counts for 3 steps"):
        LiveAcceptance([LiveWalk(
            id="p", request_class="c", family="f h", k=4, output_tokens=9, accepted="401", drafted="44"
        )])  # fmt: skip
