"""Walks: arithmetic of steps over recorded acceptance."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selector.walks import MAX_RECORDED_K, decode, encode, looping, pooled_tau, survival, walk

COUNTS = st.lists(st.integers(0, MAX_RECORDED_K), max_size=60)


@given(COUNTS)
def test_encoding_is_undone_by_decoding(counts: list[int]) -> None:
    assert decode(encode(counts)) == counts


def test_a_foreign_character_is_refused() -> None:
    with pytest.raises(ValueError):
        decode("0A")


@given(COUNTS, st.integers(0, 12))
def test_a_walk_emits_every_token_once(accepted: list[int], k: int) -> None:
    w = walk(accepted, k)
    assert w.emitted == len(accepted)
    assert w.steps + w.accepted - w.emitted in (0, 1)  # the last step may lack its own token
    assert w.drafted == k * w.steps
    assert all(a <= d for a, d in zip(w.accepted_per_step, w.drafted_per_step, strict=True))


@given(COUNTS)
def test_without_drafts_every_token_is_a_step(accepted: list[int]) -> None:
    assert walk(accepted, 0).steps == len(accepted)


@given(st.integers(1, 200), st.integers(1, 12))
def test_full_acceptance_gives_k_plus_one_tokens_per_step(n: int, k: int) -> None:
    assert walk([MAX_RECORDED_K] * n, k).steps == math.ceil(n / (k + 1))


@given(st.lists(COUNTS.filter(bool), min_size=1, max_size=5), st.integers(1, 8))
def test_tau_is_one_plus_survival_up_to_the_last_steps(recordings: list[list[int]], k: int) -> None:
    walks = [walk(a, k) for a in recordings]
    steps = sum(w.steps for w in walks)
    s = survival(walks, k)
    assert all(a >= b for a, b in pairwise(s))
    assert -1e-9 <= 1 + sum(s) - pooled_tau(walks) <= len(walks) / steps + 1e-9


@given(COUNTS.filter(bool), st.integers(1, 8))
def test_without_proposals_a_walk_is_plain(accepted: list[int], k: int) -> None:
    w = walk(accepted, k, [0] * len(accepted))
    assert (w.steps, w.drafted, w.accepted) == (len(accepted), 0, 0)


def test_averaging_over_positions_would_be_wrong() -> None:
    accepted = [3, 2, 1, 0]  # one run of three hits, seen from each of its positions
    assert walk(accepted, 3).tau == 4.0
    assert 1 + sum(accepted) / 4 == 2.5


def test_an_output_of_one_token_has_no_tau() -> None:
    assert math.isnan(walk([], 3).tau)
    assert math.isnan(pooled_tau([]))
    assert survival([], 2) == [0.0, 0.0]


@given(st.lists(st.integers(0, 5), max_size=10), st.lists(st.integers(0, 5), min_size=3, max_size=8))
def test_an_exact_repeat_at_the_end_is_looping(head: list[int], block: list[int]) -> None:
    assert looping(head + block * 3)


@given(st.lists(st.integers(), unique=True, max_size=80))
def test_distinct_tokens_do_not_loop(tokens: list[int]) -> None:
    assert not looping(tokens)


def test_a_short_row_of_one_token_is_no_loop() -> None:
    assert not looping([1, 2, 3, 7, 7, 7])
    assert looping([1, 2, 3, *[7] * 9])
