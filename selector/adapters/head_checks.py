"""What every EAGLE head must share with its target, each refused with its reason."""

from __future__ import annotations

from typing import Any

from selector.adapters.base import INSTEAD
from selector.adapters.checkpoint import Checkpoint
from selector.adapters.head_config import EAGLE3_ARCHITECTURES, EAGLE_ARCHITECTURES, HeadConfig
from selector.adapters.head_layout import check_tensors
from selector.adapters.speculators import speculators_warnings
from selector.errors import DrafterMismatch

#: Rotary scalings that transformers and vLLM compute alike, and what each needs.
_ROPE_NEEDS = {
    "default": (),
    "linear": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


def check_head(drafter: Checkpoint, target: Checkpoint, head: HeadConfig) -> list[str]:
    """Warnings about the pair; raises `DrafterMismatch`."""
    _refuse_unlike_layers(drafter)
    _refuse_rope(drafter)
    vocabulary, hidden = target.whole("vocab_size"), target.whole("hidden_size")
    if head.vocabulary != vocabulary:
        raise DrafterMismatch(
            f"{drafter.path}: made for a vocabulary of {head.vocabulary}, the target has {vocabulary}; {INSTEAD}"
        )
    if head.target_hidden != hidden:
        raise DrafterMismatch(
            f"{drafter.path}: made for a target of hidden size {head.target_hidden}, this one has {hidden}; {INSTEAD}"
        )
    digests = drafter.tokenizer_digest, target.tokenizer_digest
    if None not in digests and digests[0] != digests[1]:
        raise DrafterMismatch(f"{drafter.path}: its tokenizer is not the target's; {INSTEAD}")
    warnings = check_tensors(drafter, head)
    warnings += speculators_warnings(drafter.source, target.path, target.config.get("architectures"))
    refusal = refused_architecture(drafter.config, "eagle3" if head.joins_in_layer else "eagle")
    return warnings + ([refusal] if refusal else [])


def refused_architecture(config: dict[str, Any], method: str) -> str | None:
    """What to mend when vLLM 0.32 refuses the name that the config gives a head; None when it loads it."""
    known = EAGLE3_ARCHITECTURES if method == "eagle3" else EAGLE_ARCHITECTURES
    names = [str(name) for name in config.get("architectures") or []]
    if names and set(names) <= known:
        return None
    instead = "Qwen3ForCausalLM" if method == "eagle3" and any("Qwen3" in n for n in names) else "LlamaForCausalLM"
    return (
        f"vLLM 0.32 refuses {method} with architectures {', '.join(names) or '(none)'}; "
        f'write "architectures": ["{instead}"] in its config.json'
    )


def _refuse_rope(drafter: Checkpoint) -> None:
    """Refuse rotary scalings that change with the text's length, or that engines compute each in their own way."""
    config = drafter.config
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    rope = rope if isinstance(rope, dict) else {"rope_type": str(rope)}
    kind = rope.get("rope_type", rope.get("type", "default"))
    part = config.get("partial_rotary_factor") or rope.get("partial_rotary_factor") or 1
    if kind not in _ROPE_NEEDS or part != 1:
        asked = f"rope scaling ({kind})" if kind not in _ROPE_NEEDS else f"partial_rotary_factor {part}"
        raise DrafterMismatch(
            f"{drafter.path}: asks for {asked}, which a head's positions are not computed with here "
            f"({', '.join(_ROPE_NEEDS)} are): it would accept almost nothing; {INSTEAD}"
        )
    missing = [key for key in _ROPE_NEEDS[kind] if key not in rope]
    if missing:
        raise DrafterMismatch(f"{drafter.path}: rope scaling ({kind}) without {', '.join(missing)} in its config.json")


def _refuse_unlike_layers(drafter: Checkpoint) -> None:
    """Settings under which the layer would compute something else than it does here."""
    config = drafter.config
    if config.get("hidden_act", "silu") != "silu":
        raise DrafterMismatch(f"{drafter.path}: hidden_act {config['hidden_act']}: vLLM 0.32 loads silu heads only")
    if config.get("quantization_config"):
        raise DrafterMismatch(f"{drafter.path}: a quantised head; give one in float32, float16 or bfloat16")
    if "sliding_attention" in (config.get("layer_types") or []):
        raise DrafterMismatch(
            f"{drafter.path}: a layer of sliding attention; heads attend to everything here; {INSTEAD}"
        )
