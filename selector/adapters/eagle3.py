"""EAGLE-3: a one-layer head that drafts from three of the target's own hidden states."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from selector.adapters.base import INSTEAD
from selector.adapters.checkpoint import Checkpoint
from selector.errors import DrafterMismatch
from selector.strategy import Method, Strategy

if TYPE_CHECKING:
    from selector.adapters.base import Drafter
    from selector.engines.reference.model import DecoderModel


class Eagle3Adapter:
    """Heads as vLLM 0.32 reads them (Llama layout): `fc`, one `midlayer`, own `lm_head` and `d2t` when reduced."""

    method: Method = "eagle3"
    needs_drafter = True

    def check(self, drafter: Checkpoint, target: Checkpoint) -> list[str]:
        """The head must be an EAGLE-3 one, for this hidden size and vocabulary, with a usable `d2t`."""
        config, hidden = drafter.config, int(target.config["hidden_size"])
        _is_eagle3(drafter)
        _plain_rope(drafter)
        if config.get("vocab_size") != target.config.get("vocab_size"):
            raise DrafterMismatch(
                f"{drafter.path}: made for a vocabulary of {config.get('vocab_size')}, the target has "
                f"{target.config.get('vocab_size')}; {INSTEAD}"
            )
        _sizes_fit(drafter, hidden)
        _d2t_maps(drafter, int(target.config["vocab_size"]))
        digests = drafter.tokenizer_digest, target.tokenizer_digest
        if None not in digests and digests[0] != digests[1]:
            raise DrafterMismatch(f"{drafter.path}: its tokenizer is not the target's; {INSTEAD}")
        layers = aux_layers(config, int(target.config["num_hidden_layers"]))
        if max(layers) >= int(target.config["num_hidden_layers"]) or min(layers) < 1:
            raise DrafterMismatch(
                f"{drafter.path}: wants hidden states of layers {layers}, the target has "
                f"{target.config['num_hidden_layers']}; {INSTEAD}"
            )
        return []

    def vllm(self, strategy: Strategy, drafter_path: str | None) -> dict[str, Any] | None:
        """The method is always named: without it a head whose path lacks `eagle3` runs as a draft model."""
        return {"method": "eagle3", "model": drafter_path, "num_speculative_tokens": strategy.k}

    def drafter(self, target: DecoderModel, path: Path | None, strategy: Strategy) -> Drafter | None:
        """The head beside the target it reads from."""
        from selector.adapters.eagle3_model import Eagle3Drafter

        if path is None:
            raise DrafterMismatch("eagle3 needs a head: --drafter eagle3=PATH")
        return Eagle3Drafter(path, target)


def aux_layers(config: dict[str, Any], target_layers: int) -> tuple[int, ...]:
    """Target layers whose incoming hidden states the head reads; vLLM's default is 2, the middle, and n - 3."""
    eagle = config.get("eagle_config") or {}
    own = config.get("eagle_aux_hidden_state_layer_ids") or eagle.get("eagle_aux_hidden_state_layer_ids")
    return tuple(own) if own else (2, target_layers // 2, target_layers - 3)


def tensor(drafter: Checkpoint, *names: str) -> str | None:
    """The first of these tensor names that the checkpoint holds."""
    return next((n for n in names if n in drafter.tensors), None)


def _is_eagle3(drafter: Checkpoint) -> None:
    if tensor(drafter, "fc.weight") is None:
        raise DrafterMismatch(
            f"{drafter.path}: no fc.weight in it, so not an EAGLE-3 head; "
            "a whole model goes under --drafter draft_model=PATH"
        )
    if tensor(drafter, "midlayer.self_attn.q_proj.weight", "layers.0.self_attn.q_proj.weight") is None:
        raise DrafterMismatch(
            f"{drafter.path}: no midlayer.self_attn.q_proj.weight: not in the EAGLE-3 layout; {INSTEAD}"
        )
    if int(drafter.config.get("num_hidden_layers", 1)) != 1:
        raise DrafterMismatch(
            f"{drafter.path}: {drafter.config['num_hidden_layers']} layers; heads of one layer are supported"
        )


def _plain_rope(drafter: Checkpoint) -> None:
    """The head computes unscaled rotary positions; with scaling it would guess wrong without a word."""
    for key in ("rope_scaling", "rope_parameters"):
        rope = drafter.config.get(key)
        if not rope:
            continue
        known = isinstance(rope, dict)
        kind = rope.get("rope_type", rope.get("type", None if key == "rope_scaling" else "default")) if known else rope
        if kind != "default":
            raise DrafterMismatch(
                f"{drafter.path}: {key} asks for rope scaling ({kind or rope}), which the head's positions are not "
                f"computed with here: it would accept almost nothing; {INSTEAD}"
            )


def _sizes_fit(drafter: Checkpoint, hidden: int) -> None:
    width, inputs = drafter.tensors["fc.weight"].shape
    own = int(drafter.config.get("target_hidden_size") or hidden)
    if own != hidden or inputs % hidden or inputs == 2 * hidden:
        kind = " (2 x hidden: an EAGLE-1 head)" if inputs == 2 * hidden else ""
        raise DrafterMismatch(
            f"{drafter.path}: fc takes {inputs} numbers{kind}, "
            f"a multiple of the target's hidden size {hidden} (3 x) is needed; {INSTEAD}"
        )
    if width != hidden and tensor(drafter, "embed_tokens.weight") is None:
        raise DrafterMismatch(
            f"{drafter.path}: head of hidden size {width}, target {hidden}, and no embedding of its own; {INSTEAD}"
        )


def _d2t_maps(drafter: Checkpoint, vocabulary: int) -> None:
    reduced = int(drafter.config.get("draft_vocab_size") or vocabulary)
    if reduced == vocabulary:
        return
    if "d2t" not in drafter.tensors:
        raise DrafterMismatch(
            f"{drafter.path}: draft_vocab_size {reduced} of {vocabulary} but no d2t tensor: "
            "serving engines would map every "
            "draft to a wrong token and accept almost none; export the head again with d2t"
        )
    ids = drafter.integers("d2t") + np.arange(drafter.tensors["d2t"].shape[0])
    if len(ids) != reduced or ids.min() < 0 or ids.max() >= vocabulary or len(np.unique(ids)) != reduced:
        raise DrafterMismatch(
            f"{drafter.path}: d2t does not map {reduced} draft ids to different ids below {vocabulary}; "
            "export the head again"
        )
