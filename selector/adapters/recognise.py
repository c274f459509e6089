"""Tells a drafter's kind from its tensors; what its folder or its config calls it is not asked."""

from __future__ import annotations

from typing import Literal

from selector.adapters.checkpoint import Checkpoint
from selector.adapters.head_layout import plain_name
from selector.errors import DrafterMismatch
from selector.strategy import Method

_KINDS = {"eagle": "an EAGLE-1 head", "eagle3": "an EAGLE-3 head", "draft_model": "a whole model"}
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight", "embeddings.weight")
_QUERY = "layers.0.self_attn.q_proj.weight"
_NAMED = 4
#: The weights of a pruned draft model before `selector.embedded.draft` completes it.
LAYERS_FILE = "layers.safetensors"


def recognise(checkpoint: Checkpoint) -> Method:
    """The method that this checkpoint drafts under; raises `DrafterMismatch` naming what it holds instead."""
    kind = head_kind(checkpoint)
    if kind is not None:
        return kind
    if any(name.endswith(_EMBEDDINGS) for name in checkpoint.tensors):
        return "draft_model"
    _refuse_part(checkpoint)
    names = sorted(checkpoint.tensors)
    seen = f"{', '.join(names[:_NAMED])}{f' and {len(names) - _NAMED} more' if len(names) > _NAMED else ''}"
    raise DrafterMismatch(
        f"{checkpoint.path}: neither an EAGLE head (layers.0 or midlayer, with fc) nor a whole model (with an "
        f"embedding): it holds {seen or 'no safetensors file'}; give a folder of one of these, or name the method of "
        "what tensors do not tell: medusa=PATH, dflash=PATH"
    )


def _refuse_part(checkpoint: Checkpoint) -> None:
    if (checkpoint.path / LAYERS_FILE).is_file():
        raise DrafterMismatch(
            f"{checkpoint.path}: the layers of a pruned draft model ({LAYERS_FILE}), which lacks what it borrows "
            "of its target; the embedded model's is put together and used when neither a model nor a --drafter is given"
        )


def refuse_as_target(checkpoint: Checkpoint) -> None:
    """Raise `DrafterMismatch` when what was given as the model is a head."""
    if not any(checkpoint.path.glob("*.safetensors")):
        return  # a target may be stored otherwise
    kind = head_kind(checkpoint) if _QUERY in map(plain_name, checkpoint.tensors) else None
    if kind is not None:
        raise DrafterMismatch(
            f"{checkpoint.path}: this is {_KINDS[kind]}, which drafts for a model and is none: "
            f"give it with --drafter {checkpoint.path}, and its target as the model"
        )


def head_kind(checkpoint: Checkpoint) -> Literal["eagle", "eagle3"] | None:
    """Which EAGLE head it is, if it is one.

    An EAGLE-3 head of two hidden states has the same `fc` as an EAGLE-1 head, so the first layer decides: its
    attention reads embedding and hidden state side by side in EAGLE-3, one vector in EAGLE-1.
    """
    shapes = {plain_name(name): entry.shape for name, entry in checkpoint.tensors.items()}
    query, fc = shapes.get(_QUERY), shapes.get("fc.weight")
    fc = fc if fc and len(fc) == 2 else None
    marked = {"d2t", "layers.0.hidden_norm.weight"} & set(shapes)
    if query is None or len(query) != 2:
        if fc is None and not marked:
            return None
        raise DrafterMismatch(
            f"{checkpoint.path}: {'fc.weight' if fc else min(marked)} of an EAGLE head, but no "
            "layers.0.self_attn.q_proj.weight or midlayer.self_attn.q_proj.weight: copy or export the head again"
        )
    out = shapes.get("layers.0.self_attn.o_proj.weight") or fc
    if marked or (out and query[1] == 2 * out[0]) or (fc and fc[1] > 2 * fc[0]):
        return "eagle3"
    return None if fc is None else "eagle"


def confirm(checkpoint: Checkpoint, method: Method) -> None:
    """Raise `DrafterMismatch` with the right spelling when the tensors contradict the method that was named."""
    kind = head_kind(checkpoint)
    if kind is None and method == "draft_model":
        _refuse_part(checkpoint)
        return  # any model may be one, under whatever names
    found = kind or recognise(checkpoint)
    if found != method:
        raise DrafterMismatch(
            f"{checkpoint.path}: this is {_KINDS[found]}, not {_KINDS[method]}: --drafter {found}={checkpoint.path}"
        )
