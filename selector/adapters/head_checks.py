"""What every EAGLE head must share with its target, each refused with its reason."""

from __future__ import annotations

from typing import Any

from selector.adapters.base import INSTEAD
from selector.adapters.checkpoint import Checkpoint
from selector.adapters.head_config import EAGLE3_ARCHITECTURES, EAGLE_ARCHITECTURES, HeadConfig
from selector.adapters.head_layout import check_tensors
from selector.adapters.head_rope import refuse_rope
from selector.adapters.speculators import speculators_warnings
from selector.adapters.tensor_file import AGAIN
from selector.errors import DrafterMismatch


def check_head(drafter: Checkpoint, target: Checkpoint, head: HeadConfig) -> list[str]:
    """Warnings about the pair; raises `DrafterMismatch`."""
    _refuse_unlike_layers(drafter, head)
    refuse_rope(drafter)
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
    warnings += speculators_warnings(drafter.source, target.path, target.architectures)
    refusal = refused_architecture(drafter.config, "eagle3" if head.joins_in_layer else "eagle")
    return warnings + ([refusal] if refusal else [])


def refused_architecture(config: dict[str, Any], method: str) -> str | None:
    """What to mend when vLLM 0.32 refuses the name that the config gives a head; None when it loads it."""
    known = EAGLE3_ARCHITECTURES if method == "eagle3" else EAGLE_ARCHITECTURES
    names = config.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return f'architectures is {names!r}, no list of names; write "architectures": ["LlamaForCausalLM"]'
    if names and set(names) <= known:
        return None
    instead = "Qwen3ForCausalLM" if method == "eagle3" and any("Qwen3" in n for n in names) else "LlamaForCausalLM"
    return (
        f"vLLM 0.32 refuses {method} with architectures {', '.join(names) or '(none)'}; "
        f'write "architectures": ["{instead}"] in its config.json'
    )


def _refuse_unlike_layers(drafter: Checkpoint, head: HeadConfig) -> None:
    """Settings under which the layer would compute something else than it does here, or nothing."""
    config, file = drafter.config, drafter.path / "config.json"
    if config.get("hidden_act", "silu") != "silu":
        raise DrafterMismatch(f"{file}: hidden_act {config['hidden_act']}: vLLM 0.32 loads silu heads only; {INSTEAD}")
    if config.get("quantization_config"):
        raise DrafterMismatch(f"{drafter.path}: a quantised head; give one in float32, float16 or bfloat16")
    if not isinstance(config.get("layer_types") or [], list):
        raise DrafterMismatch(f"{file}: layer_types is {config['layer_types']!r}, a list of names is needed; {AGAIN}")
    if head.head_size % 2 or head.heads % head.kv_heads:
        raise DrafterMismatch(
            f"{file}: num_attention_heads {head.heads}, num_key_value_heads {head.kv_heads}, head_dim "
            f"{head.head_size}: the first must be a multiple of the second, the last even; {AGAIN}"
        )
    if "sliding_attention" in (config.get("layer_types") or []):
        raise DrafterMismatch(
            f"{drafter.path}: a layer of sliding attention; heads attend to everything here; {INSTEAD}"
        )
