"""EAGLE-3: a head that drafts from three of the target's own hidden states, or from those its config names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from selector.adapters.base import INSTEAD
from selector.adapters.checkpoint import Checkpoint
from selector.adapters.head_checks import check_head
from selector.adapters.head_config import LAYER_IDS, HeadConfig, aux_layers, eagle3_config, eagle_section
from selector.adapters.recognise import confirm
from selector.adapters.widths import ANY, Widths
from selector.errors import DrafterMismatch
from selector.strategy import Method, Strategy

if TYPE_CHECKING:
    from selector.adapters.base import Drafter
    from selector.engines.reference.model import DecoderModel

#: All that vLLM 0.32 reads from the nested section; the rest of a head's settings counts at the top only.
_SECTION_KEYS = {"use_aux_hidden_state", "norm_before_fc", LAYER_IDS}
_TOP_KEYS = {
    "norm_before_residual",
    "norm_output",
    "fc_norm",
    "num_aux_hidden_states",
    "target_hidden_size",
    "logit_scale",
}


class Eagle3Adapter:
    """Heads as vLLM 0.32 reads them, of Llama or Qwen3 layers, in the plain or the speculators format."""

    method: Method = "eagle3"
    needs_drafter = True

    def check(self, drafter: Checkpoint, target: Checkpoint) -> list[str]:
        """The head must be an EAGLE-3 one, for this hidden size, depth and vocabulary, with a usable `d2t`."""
        drafter.architectures  # noqa: B018  # a config that is broken or not supported is named before its tensors
        confirm(drafter, self.method)
        head = eagle3_config(drafter)
        _d2t_is_there(drafter, head)
        warnings = check_head(drafter, target, head)
        warnings += _d2t_maps(drafter, head)
        _layers_fit(drafter, head, target.whole("num_hidden_layers"))
        return warnings + _ignored_keys(drafter)

    def widths(self, drafter: Checkpoint | None, target: Checkpoint) -> Widths:
        """Any k."""
        return ANY

    def vllm(self, strategy: Strategy, drafter_path: str | None) -> dict[str, Any] | None:
        """The method is always named: without it a head whose path lacks `eagle3` runs as a draft model."""
        return {"method": "eagle3", "model": drafter_path, "num_speculative_tokens": strategy.k}

    def drafter(self, target: DecoderModel, path: Path | None, strategy: Strategy) -> Drafter | None:
        """The head beside the target it reads from."""
        from selector.adapters.head_model import eagle3_drafter

        if path is None:
            raise DrafterMismatch("eagle3 needs a head: --drafter eagle3=PATH")
        return eagle3_drafter(path, target)


def _layers_fit(drafter: Checkpoint, head: HeadConfig, depth: int) -> None:
    """Layer n is what the last layer puts out, before the final norm; vLLM takes it, and 0, the embedding, too."""
    if not head.reads_aux:
        if head.hidden != head.target_hidden:
            raise DrafterMismatch(
                f"{drafter.path}: use_aux_hidden_state is false, so the head of hidden size {head.hidden} would read "
                f"the target's {head.target_hidden} numbers as they are; {INSTEAD}"
            )
        return
    layers = aux_layers(drafter.config, depth)
    if layers[0] < 0 or layers[-1] > depth:
        raise DrafterMismatch(
            f"{drafter.path}: wants hidden states of layers {layers}, the target has {depth}; {INSTEAD}"
        )
    if len(layers) != head.aux_count:
        raise DrafterMismatch(
            f"{drafter.path}: fc joins {head.aux_count} hidden states, but layers {layers} are read: "
            f'vLLM 0.32 counts num_aux_hidden_states; write "num_aux_hidden_states": {len(layers)} if fc has that width'
        )


def _ignored_keys(drafter: Checkpoint) -> list[str]:
    config = drafter.config
    ignored = sorted(_TOP_KEYS & set(eagle_section(config)))
    said = [f"config.json: vLLM 0.32 ignores {', '.join(ignored)} inside eagle_config"] if ignored else []
    if config.get("use_aux_hidden_state") is False:
        said.append("config.json: vLLM 0.32 ignores use_aux_hidden_state outside eagle_config")
    if "norm_before_fc" in eagle_section(config) and "norm_before_fc" in config:
        said.append("config.json: norm_before_fc stands twice, vLLM 0.32 reads the one inside eagle_config")
    ids = config.get(LAYER_IDS)
    if ids and ids != sorted(set(ids)):
        said.append(f"vLLM 0.32 reads layers {ids} in ascending order, once each: was fc trained so?")
    return said


def _d2t_is_there(drafter: Checkpoint, head: HeadConfig) -> None:
    if head.draft_vocabulary != head.vocabulary and "d2t" not in drafter.tensors:
        raise DrafterMismatch(
            f"{drafter.path}: draft_vocab_size {head.draft_vocabulary} of {head.vocabulary} but no d2t tensor: "
            "serving engines would map every "
            "draft to a wrong token and accept almost none; export the head again with d2t"
        )


def _d2t_maps(drafter: Checkpoint, head: HeadConfig) -> list[str]:
    if head.draft_vocabulary == head.vocabulary:
        return []
    offsets = drafter.integers("d2t")
    ids = offsets + np.arange(len(offsets))
    if ids.min() < 0 or ids.max() >= head.vocabulary or len(np.unique(ids)) != head.draft_vocabulary:
        raise DrafterMismatch(
            f"{drafter.path}: d2t does not map {head.draft_vocabulary} draft ids to different ids below "
            f"{head.vocabulary}; export the head again"
        )
    if offsets.any():
        return []
    return [
        f"d2t is all zeros, so the head drafts the first {head.draft_vocabulary} ids only: was it left empty "
        "at export? Then almost no draft is accepted"
    ]
