"""The speculators format of a head's `config.json`, turned into the plain one under vLLM 0.32's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from selector.adapters.tensor_file import AGAIN
from selector.errors import DrafterMismatch

_ARCHITECTURES = {"llama": "Eagle3LlamaForCausalLM", "qwen3": "Eagle3Qwen3ForCausalLM"}
#: Why the other kinds that vLLM serves are not drafted with here.
_OTHER_KINDS = {
    "peagle": "a P-EAGLE head drafts all k tokens in one pass, from mask tokens",
    "dflash": "a DFlash drafter fills a block of mask tokens in one pass",
    "dflash2": "a DFlash drafter fills a block of mask tokens in one pass",
    "dspark": "a DSpark drafter fills a block and needs its Markov head",
}
#: Keys that vLLM moves from the top of the file into the head's own settings, with its defaults.
_MOVED: Mapping[str, Any] = {
    "draft_vocab_size": None,
    "norm_before_residual": True,  # the plain format says False
    "norm_before_fc": False,
    "fc_norm": False,
    "norm_output": False,
}
_MOVED_IF_SET = ("target_hidden_size", "eagle_aux_hidden_state_layer_ids")
#: Keys that mean something to an EAGLE-3 head, but not at the top of this format.
_UNREAD = ("eagle_config", "num_aux_hidden_states", "use_aux_hidden_state", "logit_scale", "attention_bias")


def is_speculators(source: Mapping[str, Any]) -> bool:
    """Whether a parsed `config.json` is in this format."""
    return "speculators_config" in source or "speculators_model_type" in source


def plain_config(source: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """The config that vLLM makes of it; raises `DrafterMismatch` for kinds that are not EAGLE-3."""
    kind, layer = source.get("speculators_model_type"), source.get("transformer_layer_config")
    if kind != "eagle3":
        reason = _OTHER_KINDS.get(str(kind), f"vLLM 0.32 knows eagle3, {', '.join(_OTHER_KINDS)}")
        raise DrafterMismatch(f"{file}: speculators_model_type is {kind!r}, not supported: {reason}; use an eagle3 one")
    if not isinstance(layer, dict):
        raise DrafterMismatch(f"{file}: no transformer_layer_config, so the head's layer sizes are not known; {AGAIN}")
    family = layer.get("model_type", "llama")
    if not isinstance(family, str) or family not in _ARCHITECTURES:
        raise DrafterMismatch(
            f"{file}: transformer_layer_config is of type {family!r}; vLLM 0.32 loads EAGLE-3 heads of "
            f"{' and '.join(_ARCHITECTURES)} layers; use one of these"
        )
    plain = layer | {key: source.get(key, default) for key, default in _MOVED.items()}
    plain |= {key: source[key] for key in _MOVED_IF_SET if source.get(key)}
    plain.pop("model_type", None)  # vLLM reads these settings without the defaults of a model type
    rope = plain.get("rope_parameters")  # what is no object is refused with the other rope settings
    if family == "qwen3" and "rope_theta" not in {**plain, **(rope if isinstance(rope, dict) else {})}:
        plain["rope_theta"] = 1e6
    return plain | {"architectures": [_ARCHITECTURES[family]]}


def speculators_warnings(source: Mapping[str, Any], target: Path, architectures: list[str]) -> list[str]:
    """Keys that vLLM does not read there, and a verifier that is evidently not this target."""
    if not is_speculators(source):
        return []
    unread = [key for key in _UNREAD if source.get(key) is not None]
    said = [f"config.json: {', '.join(unread)} outside transformer_layer_config, which vLLM ignores"] if unread else []
    section = source.get("speculators_config")
    verifier = section.get("verifier") if isinstance(section, dict) else None
    if not isinstance(verifier, dict):
        return said
    name, made_for = str(verifier.get("name_or_path") or ""), verifier.get("architectures")
    last = name.rstrip("/").rpartition("/")[2].lower()
    made_for = [str(kind) for kind in made_for] if isinstance(made_for, list) else []
    other_kind = bool(made_for and architectures) and not set(made_for) & set(architectures)
    if other_kind or (last and last not in str(target.resolve()).lower()):
        kinds = f" ({', '.join(made_for)})" if other_kind else ""
        said.append(
            f"made for {name or 'another model'}{kinds}, the target is {target}: another model's hidden states?"
        )
    return said
