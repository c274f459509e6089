"""Which tensors a head must hold, and the refusal of one that holds others: before torch is asked to load it."""

from __future__ import annotations

import re

from selector.adapters.checkpoint import Checkpoint
from selector.adapters.head_config import HeadConfig
from selector.errors import DrafterMismatch

Shapes = dict[str, tuple[int, ...]]
_FLOATS = ("F32", "F16", "BF16")
_UNUSED = re.compile(r"t2d|rotary_emb\.(inv_freq|cos_cached|sin_cached)|^layers\.[1-9]\d*\.hidden_norm\.")
_NAMED = 3


def plain_name(name: str) -> str:
    """A tensor's name with the first layer spelled `layers.0.`, as some heads say `midlayer.`."""
    return name.replace("midlayer.", "layers.0.")


def needed(head: HeadConfig) -> Shapes:
    """Name and shape of every tensor that the head computes with; `optional` has those it may borrow."""
    shapes: Shapes = {}
    for i in range(head.layers):
        shapes |= {f"layers.{i}.{name}": shape for name, shape in _layer(head, first=i == 0).items()}
    if not head.joins_in_layer:
        return shapes | {"fc.weight": (head.hidden, 2 * head.hidden)}
    shapes["norm.weight"] = (head.hidden,)
    if head.reads_aux:
        shapes["fc.weight"] = (head.hidden, head.features)
    if head.norm_before_fc:
        shapes["input_norm.weight"] = (head.features,)
    if head.fc_norm:
        shapes |= {f"fc_norm.{i}.weight": (head.target_hidden,) for i in range(head.aux_count)}
    if head.draft_vocabulary != head.vocabulary:
        shapes |= {"d2t": (head.draft_vocabulary,), "lm_head.weight": (head.draft_vocabulary, head.hidden)}
    return shapes | (optional(head) if head.hidden != head.target_hidden else {})


def optional(head: HeadConfig) -> Shapes:
    """Tensors that a head without them takes from the target."""
    shapes: Shapes = {"embed_tokens.weight": (head.vocabulary, head.hidden)}
    return shapes | ({"lm_head.weight": (head.draft_vocabulary, head.hidden)} if head.joins_in_layer else {})


def _layer(head: HeadConfig, *, first: bool) -> Shapes:
    hidden, inner = head.hidden, head.inner
    inputs = 2 * hidden if first and head.joins_in_layer else hidden
    rows = {"q": head.heads * head.head_size, "k": head.kv_heads * head.head_size, "v": head.kv_heads * head.head_size}
    shapes: Shapes = {f"self_attn.{n}_proj.weight": (size, inputs) for n, size in rows.items()}
    shapes["self_attn.o_proj.weight"] = (hidden, rows["q"])
    shapes |= {f"mlp.{n}_proj.weight": (inner, hidden) for n in ("gate", "up")}
    shapes |= {"mlp.down_proj.weight": (hidden, inner), "post_attention_layernorm.weight": (hidden,)}
    if head.joins_in_layer or not first:
        shapes["input_layernorm.weight"] = (hidden,)
    if head.joins_in_layer and first:
        shapes["hidden_norm.weight"] = (hidden,)
    if head.qkv_bias:
        shapes |= {f"self_attn.{n}_proj.bias": (size,) for n, size in rows.items()}
    if head.output_bias:
        shapes["self_attn.o_proj.bias"] = (hidden,)
    if head.mlp_bias:
        shapes |= {"mlp.gate_proj.bias": (inner,), "mlp.up_proj.bias": (inner,), "mlp.down_proj.bias": (hidden,)}
    if head.head_norms:
        shapes |= {f"self_attn.{n}_norm.weight": (head.head_size,) for n in ("q", "k")}
    return shapes


def check_tensors(drafter: Checkpoint, head: HeadConfig) -> list[str]:
    """Warnings about tensors that vLLM drops without a word; raises `DrafterMismatch` naming the wrong ones."""
    _refuse_two_names(drafter)
    held = {plain_name(n) for n in drafter.tensors}
    _refuse_missing_layers(drafter, head, held)
    must, may = needed(head), optional(head)
    found = {plain_name(n): t for n, t in drafter.tensors.items() if not _unused(n, head)}
    dropped = [n for n in found if n not in must | may and (n.endswith(".bias") or "mask_hidden" in n)]
    wrong = [f"{n} is missing, {_shape(s)} expected" for n, s in must.items() if n not in found]
    wrong += [
        f"{n} is {_shape(found[n].shape)}, {_shape(s)} expected"
        for n, s in (may | must).items()
        if n in found and found[n].shape != s
    ]
    wrong += [f"{n} is stored as {t.dtype}, one of {', '.join(_FLOATS)} expected"
              for n, t in found.items() if n != "d2t" and n in must | may and t.dtype not in _FLOATS]  # fmt: skip
    wrong += [f"{n} has no place in such a head" for n in found if n not in must | may and n not in dropped]
    if wrong:
        more = f" (and {len(wrong) - _NAMED} more)" if len(wrong) > _NAMED else ""
        raise DrafterMismatch(
            f"{drafter.path}: tensors and config.json do not fit each other: {'; '.join(wrong[:_NAMED])}{more}; "
            "copy or export the head again, or mend its config.json"
        )
    drafter.refuse_nan_and_inf(n for n in drafter.tensors if plain_name(n) in must | may)
    if not dropped:
        return []
    return [f"vLLM 0.32 drops {', '.join(dropped[:_NAMED])} without a word, and so does this: config.json has no such"]


def _refuse_two_names(drafter: Checkpoint) -> None:
    twice = [n for n in drafter.tensors if plain_name(n) != n and plain_name(n) in drafter.tensors]
    if twice:
        raise DrafterMismatch(
            f"{drafter.path}: both {twice[0]} and {plain_name(twice[0])}, two names of one tensor: which one counts? "
            "Export the head again with one of them"
        )


def _refuse_missing_layers(drafter: Checkpoint, head: HeadConfig, held: set[str]) -> None:
    """Counted first: `needed` names the tensors of every layer, and a broken config may say a billion."""
    layers = len({match[1] for name in held if (match := re.match(r"layers\.(\d+)\.", name))})
    if head.layers > layers:
        raise DrafterMismatch(
            f"{drafter.path}: num_hidden_layers is {head.layers} in its config.json, its tensors are those of "
            f"{layers}; copy or export the head again, or mend its config.json"
        )
    if head.fc_norm and head.aux_count > len(held):
        raise DrafterMismatch(
            f"{drafter.path}: {head.aux_count} hidden states with an fc_norm each by its config.json, "
            f"but it holds {len(held)} tensors; copy or export the head again, or mend its config.json"
        )


def _unused(name: str, head: HeadConfig) -> bool:
    return bool(_UNUSED.search(name)) or (head.joins_in_layer and not head.reads_aux and name.startswith("fc."))


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "a single number"
