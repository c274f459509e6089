"""Drafters are checked against the target before use, and refused with what to use instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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


def test_a_fitting_head_passes(tmp_path: Path) -> None:
    head, target = checkpoints.head(tmp_path / "h"), checkpoints.target(tmp_path / "t")
    assert adapter("eagle3").check(Checkpoint(head), Checkpoint(target)) == []


@pytest.mark.parametrize(
    ("tensors", "config", "said"),
    [
        ({}, {"vocab_size": 41}, "vocabulary of 41, the target has 40"),
        ({"d2t": None}, {}, "draft_vocab_size 10 of 40 but no d2t"),
        ({"d2t": np.zeros(10, np.int64) - np.arange(10)}, {}, "d2t does not map 10 draft ids to different ids"),
        ({"d2t": np.arange(10) + 40}, {}, "d2t does not map"),
        ({"d2t": np.arange(9)}, {}, "d2t does not map"),
        ({"fc.weight": np.zeros((16, 32), np.float32)}, {}, "an EAGLE-1 head"),
        ({"fc.weight": np.zeros((16, 60), np.float32)}, {}, "fc takes 60 numbers"),
        ({"fc.weight": np.zeros((12, 48), np.float32)}, {}, "hidden size 12, target 16"),
        ({"fc.weight": None}, {}, "no fc.weight in it, so not an EAGLE-3 head; a whole model goes under"),
        ({"midlayer.self_attn.q_proj.weight": None}, {}, "not in the EAGLE-3 layout"),
        ({}, {"eagle_aux_hidden_state_layer_ids": [2, 9, 30]}, "the target has 8"),
        ({}, {"num_hidden_layers": 2}, "heads of one layer"),
        ({}, {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "asks for rope scaling (llama3)"),
        ({}, {"rope_scaling": {"type": "linear", "factor": 2.0}}, "asks for rope scaling (linear)"),
        ({}, {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "asks for rope scaling (yarn)"),
        ({}, {"speculators_config": {}}, "speculators format (speculators_config), not supported yet"),
    ],
)
def test_a_head_that_does_not_fit_is_refused(
    tmp_path: Path, tensors: dict[str, Any], config: dict[str, Any], said: str
) -> None:
    head = checkpoints.head(tmp_path / "h", tensors=tensors, **config)
    message = refused("eagle3", head, checkpoints.target(tmp_path / "t"))
    assert said in message
    assert str(head) in message


def test_unscaled_rope_in_either_spelling_passes(tmp_path: Path) -> None:
    rope = {"rope_scaling": None, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
    head, target = checkpoints.head(tmp_path / "h", **rope), checkpoints.target(tmp_path / "t")
    assert adapter("eagle3").check(Checkpoint(head), Checkpoint(target)) == []


@pytest.mark.parametrize("method", ["eagle3", "draft_model"])
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
    assert "it is an EAGLE head" in refused("draft_model", checkpoints.head(tmp_path / "h"), target)


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
