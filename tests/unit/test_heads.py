"""EAGLE heads are recognised by their tensors, and refused by shape, vocabulary, tokenizer or depth."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selector.adapters import adapter
from selector.adapters.checkpoint import Checkpoint
from selector.adapters.recognise import recognise, refuse_as_target
from selector.errors import DrafterMismatch

from . import checkpoints

SPECULATORS: dict[str, Any] = {
    "architectures": ["Eagle3Speculator"],
    "speculators_model_type": "eagle3",
    "draft_vocab_size": 10,
    "speculators_config": {
        "proposal_methods": [{"speculative_tokens": 3}],
        "verifier": {"name_or_path": "org/My-Target", "architectures": ["LlamaForCausalLM"]},
    },
    "transformer_layer_config": checkpoints.LAYER_CONFIG | {"model_type": "llama"},
}


LENGTH = "original_max_position_embeddings"
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, LENGTH: 64
}  # fmt: skip


def zeros(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


def warned(method: str, head: Path, target: Path) -> list[str]:
    return adapter(method).check(Checkpoint(head), Checkpoint(target))


def refused(method: str, head: Path, target: Path) -> str:
    with pytest.raises(DrafterMismatch) as caught:
        warned(method, head, target)
    assert str(head) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("write", "method", "called"),
    [
        (checkpoints.head, "eagle3", "llama-draft"),
        (checkpoints.eagle_head, "eagle", "eagle3-llama"),
        (checkpoints.whole_model, "draft_model", "eagle3-foo"),
    ],
)
def test_the_kind_is_read_off_the_tensors_whatever_the_folder_is_called(
    tmp_path: Path, write: Callable[[Path], Path], method: str, called: str
) -> None:
    folder, target = write(tmp_path / called), checkpoints.target(tmp_path / "t")
    assert recognise(Checkpoint(folder)) == method
    assert warned(method, folder, target) == []
    for other in {"eagle", "eagle3", "draft_model"} - {method}:
        assert f": --drafter {method}={folder}" in refused(other, folder, target)


def test_an_eagle3_head_of_two_hidden_states_is_told_from_an_eagle1_head_by_its_first_layer(tmp_path: Path) -> None:
    """Both have an `fc` from 2h to h."""
    two = checkpoints.head(tmp_path / "h", tensors={"fc.weight": zeros(16, 32)}, num_aux_hidden_states=2)
    assert recognise(Checkpoint(two)) == "eagle3"
    assert "this is an EAGLE-3 head, not an EAGLE-1 head" in refused("eagle", two, checkpoints.target(tmp_path / "t"))


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"medusa_head.0.linear.weight": zeros(4, 4)}, "it holds medusa_head.0.linear.weight; give a folder"),
        ({}, "it holds no safetensors file"),
        ({"fc.weight": zeros(16, 48)}, "fc.weight of an EAGLE head, but no layers.0.self_attn.q_proj.weight"),
    ],
)
def test_what_is_no_drafter_is_refused_with_what_it_holds(tmp_path: Path, arrays: dict[str, Any], said: str) -> None:
    folder = checkpoints.write(tmp_path / "x", {"vocab_size": 40}, arrays)
    with pytest.raises(DrafterMismatch, match=said):
        recognise(Checkpoint(folder))


@pytest.mark.parametrize("method", ["", "draft_model"])
def test_the_layers_of_a_pruned_draft_are_told_from_a_drafter(tmp_path: Path, method: str) -> None:
    part = checkpoints.write(tmp_path / "p", {"vocab_size": 40}, {"model.layers.0.mlp.up_proj.weight": zeros(4, 4)})
    (part / "model.safetensors").rename(part / "layers.safetensors")
    with pytest.raises(DrafterMismatch, match=r"used when neither a model nor a --drafter is given"):
        warned(method, part, checkpoints.target(tmp_path / "t")) if method else recognise(Checkpoint(part))


@pytest.mark.parametrize(("write", "kind"), [(checkpoints.head, "EAGLE-3"), (checkpoints.eagle_head, "EAGLE-1")])
def test_a_head_is_no_target(tmp_path: Path, write: Callable[[Path], Path], kind: str) -> None:
    head = write(tmp_path / "h")
    with pytest.raises(DrafterMismatch, match=f"this is an {kind} head, .*: give it with --drafter {head}, and its"):
        refuse_as_target(Checkpoint(head))


def test_a_whole_model_is_a_target_whatever_its_weights_are_stored_as(tmp_path: Path) -> None:
    model = checkpoints.whole_model(tmp_path / "m")
    refuse_as_target(Checkpoint(model))
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    refuse_as_target(Checkpoint(model))


@pytest.mark.parametrize(
    ("tensors", "config", "said"),
    [
        ({}, {"vocab_size": 41}, "vocabulary of 41, the target has 40"),
        ({}, {"target_hidden_size": 24}, "a target of hidden size 24, this one has 16"),
        ({}, {"eagle_aux_hidden_state_layer_ids": [2, 5, 9]}, "layers (2, 5, 9), the target has 8"),
        ({}, {"eagle_aux_hidden_state_layer_ids": [2, 5]}, 'write "num_aux_hidden_states": 2 if fc has that width'),
        ({}, {"eagle_aux_hidden_state_layer_ids": [2, 5, "7"]}, "a list of layers is needed"),
        ({"d2t": None}, {}, "draft_vocab_size 10 of 40 but no d2t"),
        ({"d2t": np.zeros(10, np.int64) - np.arange(10)}, {}, "d2t does not map 10 draft ids to different ids"),
        ({"d2t": np.arange(10) + 40}, {}, "d2t does not map"),
        ({"d2t": np.arange(9)}, {}, "d2t is 9, 10 expected"),
        ({"d2t": np.zeros(10, np.float32)}, {}, "tensor d2t is F32, integers expected"),
        ({}, {"draft_vocab_size": None}, "lm_head.weight is 10 x 16, 40 x 16 expected; d2t has no place"),
        ({"lm_head.weight": None}, {}, "lm_head.weight is missing, 10 x 16 expected"),
        ({"fc.weight": zeros(16, 32)}, {}, "fc.weight is 16 x 32, 16 x 48 expected"),
        ({"fc.weight": zeros(12, 48)}, {"hidden_size": 12}, "a target of hidden size 12, this one has 16"),
        ({}, {"num_key_value_heads": 2}, "layers.0.self_attn.k_proj.weight is 8 x 32, 16 x 32 expected"),
        ({}, {"head_dim": 4}, "layers.0.self_attn.q_proj.weight is 16 x 32, 8 x 32 expected"),
        ({"midlayer.mlp.up_proj.weight": None}, {}, "layers.0.mlp.up_proj.weight is missing, 24 x 16 expected"),
        ({"model.norm.weight": zeros(16)}, {}, "model.norm.weight has no place in such a head"),
        ({"norm.weight": np.zeros(16, np.float16), "fc.weight": np.zeros((16, 48), np.int64)}, {}, "stored as I64"),
        ({}, {"norm_before_fc": True}, "input_norm.weight is missing, 48 expected"),
        ({}, {"fc_norm": True}, "fc_norm.0.weight is missing, 16 expected"),
        ({}, {"num_hidden_layers": 2}, "num_hidden_layers is 2 in its config.json, its tensors are those of 1"),
        ({}, {"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({}, {"fc_norm": True, "num_aux_hidden_states": 10**9}, "1000000000 hidden states with an fc_norm each"),
        ({"layers.0.mlp.up_proj.weight": zeros(24, 16)}, {}, "both midlayer.mlp.up_proj.weight and layers.0.mlp.up"),
        ({"fc.weight": zeros(16, 48) + np.nan}, {}, "model.safetensors: tensor fc.weight holds NaN or Inf"),
        ({"norm.weight": np.full(16, -np.inf, np.float16)}, {}, "tensor norm.weight holds NaN or Inf"),
        ({"norm.weight": np.full(16, 0x7FC0, np.uint16)}, {}, "tensor norm.weight holds NaN or Inf"),
        ({}, {"architectures": ["Qwen3ForCausalLM"]}, "layers.0.self_attn.q_norm.weight is missing, 8 expected"),
        ({}, {"attention_bias": True}, "layers.0.self_attn.q_proj.bias is missing, 16 expected"),
        ({}, {"num_hidden_layers": None}, "no num_hidden_layers in it; copy or export the checkpoint again"),
        ({}, {"intermediate_size": "24"}, "intermediate_size is '24', a whole number above 0 is needed"),
        ({}, {"rms_norm_eps": "small"}, "rms_norm_eps is 'small', a finite number above 0 is needed; copy or"),
        ({}, {"rms_norm_eps": -1e-5}, "config.json: rms_norm_eps is -1e-05, a finite number above 0 is needed"),
        ({}, {"rms_norm_eps": float("nan")}, "rms_norm_eps is nan, a finite number"),
        ({}, {"logit_scale": 0}, "logit_scale is 0, a finite number above 0"),
        ({}, {"logit_scale": float("inf")}, "logit_scale is inf, a finite number"),
        ({}, {"num_attention_heads": 3}, "num_attention_heads 3, num_key_value_heads 1, head_dim 5: the first"),
        ({}, {"architectures": 7}, "config.json: architectures is 7, a list of names is needed"),
        ({}, {"architectures": [{}]}, "architectures is [{}], a list of names"),
        ({}, {"architectures": "LlamaForCausalLM"}, "architectures is 'LlamaForCausalLM', a list of names"),
        (
            {},
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": 5}},
            "eagle_config: eagle_aux_hidden_state_layer_ids",
        ),
        ({}, {"layer_types": 5}, "config.json: layer_types is 5, a list of names is needed"),
        ({}, {"hidden_act": "gelu"}, "hidden_act gelu"),
        ({}, {"quantization_config": {"bits": 4}}, "a quantised head"),
        ({}, {"layer_types": ["sliding_attention"]}, "sliding attention"),
        ({}, {"rope_scaling": {"rope_type": "dynamic", "factor": 8.0}}, "asks for rope scaling (dynamic)"),
        ({}, {"rope_scaling": {"type": "longrope"}}, "asks for rope scaling (longrope)"),
        ({}, {"rope_parameters": {"rope_type": "yarn"}}, "rope scaling (yarn) without factor"),
        ({}, {"rope_scaling": {"rope_type": [1]}}, "asks for rope scaling ([1])"),
        ({}, {"rope_parameters": 5}, "config.json: rope_parameters is 5, an object of rope settings is needed"),
        (
            {},
            {"rope_parameters": {"full_attention": {}}},
            "rope_parameters of several kinds of layers (full_attention)",
        ),
        ({}, {"rope_theta": -5}, "config.json: rope_theta is -5, a finite number above 1 is needed"),
        ({}, {"rope_parameters": {"rope_theta": "abc"}}, "rope_parameters: rope_theta is 'abc', a finite number"),
        ({}, {"rope_parameters": {"rope_theta": None}}, "rope_parameters: rope_theta is None, a finite number"),
        ({}, {"rope_scaling": {"type": "linear", "factor": 0.5}}, "rope_scaling: factor is 0.5, a finite number of at"),
        ({}, {"rope_scaling": {"type": "yarn", "factor": 2, "beta_fast": "x"}}, "beta_fast is 'x', a finite number"),
        (
            {},
            {"rope_scaling": LLAMA3 | {"type": "yarn", "rope_type": "yarn", LENGTH: None}},
            f"{LENGTH} is None, a fin",
        ),
        ({}, {"rope_scaling": LLAMA3 | {"factor": "two"}}, "rope_scaling: factor is 'two', a finite number of at"),
        ({}, {"rope_scaling": LLAMA3 | {"high_freq_factor": 1}}, "high_freq_factor 1 is not above low_freq_factor 1"),
        ({}, {"max_position_embeddings": "x"}, "max_position_embeddings is 'x', a whole number"),
        ({}, {"rope_parameters": {"partial_rotary_factor": None}}, "asks for partial_rotary_factor None"),
        ({}, {"partial_rotary_factor": 0.5}, "asks for partial_rotary_factor 0.5"),
    ],
)
def test_an_eagle3_head_that_does_not_fit_is_refused(
    tmp_path: Path, tensors: dict[str, Any], config: dict[str, Any], said: str
) -> None:
    head = checkpoints.head(tmp_path / "h", tensors=tensors, **config)
    assert said in refused("eagle3", head, checkpoints.target(tmp_path / "t"))


@pytest.mark.parametrize(
    ("tensors", "config", "said"),
    [
        ({}, {"vocab_size": 41}, "vocabulary of 41, the target has 40"),
        ({}, {"hidden_size": 32}, "a target of hidden size 32, this one has 16"),
        ({"fc.weight": zeros(16, 30)}, {}, "fc.weight is 16 x 30, 16 x 32 expected"),
        ({"lm_head.weight": zeros(40, 16)}, {}, "lm_head.weight has no place in such a head"),
        ({"norm.weight": zeros(16)}, {}, "norm.weight has no place in such a head"),
        ({"layers.0.input_layernorm.weight": zeros(16)}, {}, "layers.0.input_layernorm.weight has no place"),
        ({}, {"bias": True}, "layers.0.self_attn.q_proj.bias is missing"),
        ({"embed_tokens.weight": zeros(40, 8)}, {}, "embed_tokens.weight is 40 x 8, 40 x 16 expected"),
        ({"embed_tokens.weight": zeros(40, 16) + np.inf}, {}, "tensor embed_tokens.weight holds NaN or Inf"),
        ({}, {"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000 in its config.json"),
    ],
)
def test_an_eagle1_head_that_does_not_fit_is_refused(
    tmp_path: Path, tensors: dict[str, Any], config: dict[str, Any], said: str
) -> None:
    head = checkpoints.eagle_head(tmp_path / "h", tensors=tensors, **config)
    assert said in refused("eagle", head, checkpoints.target(tmp_path / "t"))


@pytest.mark.parametrize(("method", "write"), [("eagle", checkpoints.eagle_head), ("eagle3", checkpoints.head)])
def test_a_head_with_another_tokenizer_is_refused(tmp_path: Path, method: str, write: Callable[..., Path]) -> None:
    head, target = write(tmp_path / "h", tokens={"a": 0}), checkpoints.target(tmp_path / "t", {"b": 0})
    assert "its tokenizer is not the target's" in refused(method, head, target)


def test_a_head_that_was_cut_off_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    head = checkpoints.head(tmp_path / "h")
    file = head / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    assert "cut off: " in refused("eagle3", head, checkpoints.target(tmp_path / "t"))


@pytest.mark.parametrize(
    "config",
    [
        {"rope_scaling": None, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_scaling": LLAMA3},
        {"rope_scaling": {"type": "yarn", "factor": 4, "beta_fast": 32, "attention_factor": None}},
        {"eagle_aux_hidden_state_layer_ids": [0, 4, 8]},
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}},
        {"eagle_config": {"use_aux_hidden_state": False}},
    ],
)
def test_what_vllm_loads_passes(tmp_path: Path, config: dict[str, Any]) -> None:
    assert warned("eagle3", checkpoints.head(tmp_path / "h", **config), checkpoints.target(tmp_path / "t")) == []


@pytest.mark.parametrize(
    ("method", "tensors", "config", "said"),
    [
        ("eagle", {}, {"architectures": ["LlamaForCausalLMEagle"]}, '"architectures": ["LlamaForCausalLM"]'),
        ("eagle", {}, {"architectures": ["Qwen2ForCausalLM"]}, "vLLM 0.32 refuses eagle with architectures Qwen2"),
        ("eagle", {}, {"layer_types": ["full_attention"]}, "refuses eagle with layer_types"),
        ("eagle", {"fc.bias": zeros(16)}, {}, "drops fc.bias without a word"),
        ("eagle3", {"mask_hidden": zeros(1, 48)}, {}, "drops mask_hidden"),
        ("eagle3", {"d2t": np.zeros(10, np.int64)}, {}, "d2t is all zeros, so the head drafts the first 10 ids only"),
        ("eagle3", {}, {"architectures": ["MedusaModel"]}, "refuses eagle3 with architectures MedusaModel"),
        ("eagle3", {}, {"architectures": ["Qwen2ForCausalLM"]}, "refuses eagle3 with architectures Qwen2ForCausalLM"),
        ("eagle3", {}, {"use_aux_hidden_state": False}, "ignores use_aux_hidden_state outside eagle_config"),
        ("eagle3", {}, {"eagle_config": {"norm_before_residual": True}}, "ignores norm_before_residual inside"),
        ("eagle3", {}, {"norm_before_fc": True, "eagle_config": {"norm_before_fc": False}}, "stands twice"),
        ("eagle3", {}, {"eagle_aux_hidden_state_layer_ids": [5, 2, 4]}, "in ascending order, once each"),
    ],
)
def test_what_vllm_refuses_or_ignores_is_a_warning(
    tmp_path: Path, method: str, tensors: dict[str, Any], config: dict[str, Any], said: str
) -> None:
    write = checkpoints.eagle_head if method == "eagle" else checkpoints.head
    (warning,) = warned(method, write(tmp_path / "h", tensors=tensors, **config), checkpoints.target(tmp_path / "t"))
    assert said in warning


def test_the_speculators_format_gets_vllms_defaults(tmp_path: Path) -> None:
    head = checkpoints.head(tmp_path / "h", replaced=SPECULATORS | {"eagle_aux_hidden_state_layer_ids": [1, 4, 7]})
    assert Checkpoint(head).config == checkpoints.LAYER_CONFIG | {
        "architectures": ["Eagle3LlamaForCausalLM"],
        "draft_vocab_size": 10,
        "norm_before_residual": True,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
        "eagle_aux_hidden_state_layer_ids": [1, 4, 7],
    }
    assert warned("eagle3", head, checkpoints.target(tmp_path / "my-target", architectures=["LlamaForCausalLM"])) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"speculators_model_type": "peagle"}, "'peagle', not supported: a P-EAGLE head drafts all k tokens in one"),
        ({"speculators_model_type": "dflash"}, "fills a block of mask tokens"),
        ({"speculators_model_type": "new"}, "vLLM 0.32 knows eagle3, peagle"),
        ({"transformer_layer_config": None}, "no transformer_layer_config"),
        ({"transformer_layer_config": {"model_type": "qwen2"}}, "of type 'qwen2'; vLLM 0.32 loads"),
        ({"transformer_layer_config": {"model_type": ["llama"]}}, "of type ['llama']; vLLM 0.32 loads"),
        ({"transformer_layer_config": checkpoints.LAYER_CONFIG | {"rope_parameters": 5}}, "rope_parameters is 5"),
    ],
)
def test_a_speculators_file_of_another_kind_is_refused(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    head = checkpoints.head(tmp_path / "h", replaced=SPECULATORS | changed)
    assert said in refused("eagle3", head, checkpoints.target(tmp_path / "t"))


def test_a_verifier_that_is_evidently_another_model_is_a_warning(tmp_path: Path) -> None:
    head = checkpoints.head(tmp_path / "h", replaced=SPECULATORS | {"logit_scale": 2.0})
    unread, verifier = warned("eagle3", head, checkpoints.target(tmp_path / "t", architectures=["Qwen3ForCausalLM"]))
    assert unread == "config.json: logit_scale outside transformer_layer_config, which vLLM ignores"
    assert "made for org/My-Target (LlamaForCausalLM), the target is" in verifier
