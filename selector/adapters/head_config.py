"""What a head's `config.json` says, under the rules and defaults of vLLM 0.32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from selector.adapters.checkpoint import Checkpoint
from selector.adapters.tensor_file import AGAIN
from selector.errors import DrafterMismatch

#: Architectures that vLLM 0.32 loads as a Llama- or Qwen-like head.
EAGLE_ARCHITECTURES = frozenset({"LlamaForCausalLM", "EagleLlamaForCausalLM"})
QWEN3_ARCHITECTURES = frozenset({"Qwen3ForCausalLM", "Eagle3Qwen3ForCausalLM"})
EAGLE3_ARCHITECTURES = QWEN3_ARCHITECTURES | {
    "LlamaForCausalLM", "Eagle3LlamaForCausalLM", "LlamaForCausalLMEagle3",
    "Eagle3MiniMaxM2ForCausalLM", "Eagle3Qwen2_5vlForCausalLM", "Eagle3Qwen3vlForCausalLM",
}  # fmt: skip
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True)
class HeadConfig:
    """Sizes and variants of a head; `features` is the width of what it reads from the target."""

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_size: int
    eps: float
    layers: int
    vocabulary: int
    draft_vocabulary: int
    logit_scale: float
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    head_norms: bool  # q_norm and k_norm, as Qwen3 has them
    joins_in_layer: bool  # EAGLE-3: embedding and hidden state meet in the first layer; EAGLE-1: in `fc`
    reads_aux: bool = False
    aux_count: int = 1
    target_hidden: int = 0
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False

    @property
    def features(self) -> int:
        """Numbers per position that the target hands over."""
        return self.aux_count * self.target_hidden


def eagle_config(drafter: Checkpoint) -> HeadConfig:
    """An EAGLE-1 head: always Llama layers, full vocabulary, the target's final hidden state."""
    config = drafter.config
    bias = bool(config.get("attention_bias") or config.get("bias"))
    return HeadConfig(
        **_sizes(drafter),
        draft_vocabulary=drafter.whole("vocab_size"),
        qkv_bias=bool(config.get("qkv_bias", bias)),
        output_bias=bias,
        mlp_bias=bool(config.get("mlp_bias")),
        head_norms=False,
        joins_in_layer=False,
        target_hidden=drafter.whole("hidden_size"),
    )


def eagle3_config(drafter: Checkpoint) -> HeadConfig:
    """An EAGLE-3 head of Llama or Qwen3 layers."""
    config = drafter.config
    qwen3 = bool(QWEN3_ARCHITECTURES & set(drafter.architectures))  # the name decides for vLLM too
    _refuse_layer_ids(drafter)
    eagle = eagle_section(config)
    reads_aux = bool(eagle.get("use_aux_hidden_state", True))
    bias = bool(config.get("attention_bias"))
    return HeadConfig(
        **_sizes(drafter),
        draft_vocabulary=drafter.whole("draft_vocab_size", drafter.whole("vocab_size")),
        qkv_bias=bias,
        output_bias=not qwen3 and (bias or bool(config.get("bias"))),
        mlp_bias=not qwen3 and bool(config.get("mlp_bias")),
        head_norms=qwen3,
        joins_in_layer=True,
        reads_aux=reads_aux,
        aux_count=_aux_count(drafter, qwen3) if reads_aux else 1,
        target_hidden=drafter.whole("target_hidden_size", drafter.whole("hidden_size")),
        norm_before_fc=reads_aux and bool(eagle.get("norm_before_fc", config.get("norm_before_fc", False))),
        fc_norm=reads_aux and bool(config.get("fc_norm")),
        norm_before_residual=bool(config.get("norm_before_residual")),
        norm_output=bool(config.get("norm_output")),
    )


def aux_layers(config: dict[str, Any], target_layers: int) -> tuple[int, ...]:
    """Target layers whose incoming hidden states an EAGLE-3 head reads, in ascending order whatever the config says.

    The top of the config comes first, `eagle_config` next; without either vLLM takes 2, the middle and n - 3.
    """
    ids = config.get(LAYER_IDS) or eagle_section(config).get(LAYER_IDS)
    return tuple(sorted(set(ids))) if ids else tuple(sorted({2, target_layers // 2, target_layers - 3}))


def eagle_section(config: dict[str, Any]) -> dict[str, Any]:
    """The nested `eagle_config`, or nothing."""
    section = config.get("eagle_config")
    return section if isinstance(section, dict) else {}


def _refuse_layer_ids(drafter: Checkpoint) -> None:
    for place, told in (("", drafter.config), ("eagle_config: ", eagle_section(drafter.config))):
        ids = told.get(LAYER_IDS)
        if ids and not (isinstance(ids, list) and all(type(i) is int for i in ids)):
            raise DrafterMismatch(
                f"{drafter.path / 'config.json'}: {place}{LAYER_IDS} is {ids!r}, a list of layers is needed; {AGAIN}"
            )


def _aux_count(drafter: Checkpoint, qwen3: bool) -> int:
    """How many hidden states `fc` joins. Llama heads do not count the ids at the top of the config, Qwen3 ones do."""
    config, ids = drafter.config, eagle_section(drafter.config).get(LAYER_IDS)
    if qwen3:
        ids = config.get(LAYER_IDS) or ids
        if config.get("num_aux_layers") is not None:
            return drafter.whole("num_aux_layers")
    return drafter.whole("num_aux_hidden_states", len(ids) if ids else 3)


def _sizes(drafter: Checkpoint) -> dict[str, Any]:
    config, hidden, heads = drafter.config, drafter.whole("hidden_size"), drafter.whole("num_attention_heads")
    own = 128 if config.get("model_type") == "qwen3" else max(1, hidden // heads)
    return {
        "hidden": hidden,
        "inner": drafter.whole("intermediate_size"),
        "heads": heads,
        "kv_heads": drafter.whole("num_key_value_heads", heads),
        "head_size": drafter.whole("head_dim", own),
        "eps": drafter.number("rms_norm_eps", config.get("rms_norm_eps", 1e-6)),
        "layers": drafter.whole("num_hidden_layers"),
        "vocabulary": drafter.whole("vocab_size"),
        "logit_scale": drafter.number("logit_scale", config.get("logit_scale", 1.0)),
    }
