"""Drafters are checked against the target before use, and refused with what to use instead."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selector.adapters import ADAPTERS, adapter
from selector.adapters.checkpoint import Checkpoint
from selector.adapters.ngram import propose, replay_ngram
from selector.errors import DrafterMismatch, RecipeError
from selector.strategy import METHODS, Strategy

from . import checkpoints


def refused(method: str, drafter: Path, target: Path) -> str:
    with pytest.raises(DrafterMismatch) as caught:
        adapter(method).check(Checkpoint(drafter), Checkpoint(target))
    return str(caught.value)


def test_every_method_has_an_adapter_and_an_unknown_one_names_them() -> None:
    assert set(ADAPTERS) == set(METHODS)
    with pytest.raises(RecipeError, match="unknown method 'gram'; known: none, ngram"):
        adapter("gram")


@pytest.mark.parametrize("method", ["eagle", "eagle3", "draft_model"])
def test_bin_weights_are_named(tmp_path: Path, method: str) -> None:
    head = checkpoints.head(tmp_path / "h")
    (head / "model.safetensors").rename(head / "pytorch_model.bin")
    assert "weights are .bin; convert to safetensors" in refused(method, head, checkpoints.target(tmp_path / "t"))


def test_a_draft_model_of_another_vocabulary_is_refused_with_both_sizes(tmp_path: Path) -> None:
    target = checkpoints.target(tmp_path / "t", {"a": 0})
    small = {"w": np.zeros((2, 2), np.float32)}
    padded = checkpoints.write(tmp_path / "p", {"vocab_size": 38}, small, {"a": 0})
    assert "38 against the target's 40 (the tokenizers are equal, only the padding differs)" in refused(
        "draft_model", padded, target
    )
    other = checkpoints.write(tmp_path / "o", {"vocab_size": 40}, small, {"b": 0})
    assert "same vocabulary size (40) but another tokenizer" in refused("draft_model", other, target)


def test_a_draft_larger_than_its_target_is_probably_swapped(tmp_path: Path) -> None:
    target = checkpoints.target(tmp_path / "t")
    big = checkpoints.write(tmp_path / "b", {"vocab_size": 40}, {"w": np.zeros((99, 99), np.float32)})
    assert "swapped?" in adapter("draft_model").check(Checkpoint(big), Checkpoint(target))[0]


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs", b"\xff" * 30])
def test_a_file_that_is_no_checkpoint_is_named(tmp_path: Path, content: bytes) -> None:
    head = checkpoints.head(tmp_path / "h")
    (head / "model.safetensors").write_bytes(content)
    assert "model.safetensors" in refused("eagle3", head, checkpoints.target(tmp_path / "t"))


def by_the_rule(tokens: list[int], low: int, high: int, k: int) -> list[int]:
    """The rule said plainly: longest match first, then the earliest place; what followed it."""
    for n in range(min(high, len(tokens) - 1), low - 1, -1):
        for start in range(len(tokens) - n):
            if tokens[start : start + n] == tokens[-n:]:
                return tokens[start + n : start + n + k]
    return []


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 4), st.integers(0, 4), st.integers(1, 8)
)  # fmt: skip
def test_lookup_is_the_longest_match_at_its_earliest_place(tokens: list[int], low: int, more: int, k: int) -> None:
    found = propose(np.array(tokens), low, low + more, k)
    assert found.tolist() == by_the_rule(tokens, low, low + more, k)


@given(st.lists(st.integers(0, 2), min_size=3, max_size=30), st.lists(st.integers(0, 2), min_size=2, max_size=20))
def test_a_longer_proposal_extends_a_shorter_one(prompt: list[int], output: list[int]) -> None:
    long, short = (replay_ngram(prompt, output, 1, 3, k) for k in (6, 2))
    assert [min(a, 2) for a in long[0]] == short[0]
    assert [min(p, 2) for p in long[1]] == short[1]


def test_vllm_is_always_told_the_method() -> None:
    ngram = Strategy(method="ngram", lookup_min=2, lookup_max=4, num_speculative_tokens=3)
    eagle = Strategy(method="eagle3", drafter="h", num_speculative_tokens=2)
    assert adapter("ngram").vllm(ngram, None) == {
        "method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 4
    }  # fmt: skip
    assert adapter("eagle3").vllm(eagle, "/m") == {"method": "eagle3", "model": "/m", "num_speculative_tokens": 2}
    assert adapter("eagle").vllm(eagle, "/m") == {"method": "eagle", "model": "/m", "num_speculative_tokens": 2}
