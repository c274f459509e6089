"""A causal language model loaded for decoding: forward passes over a fixed cache, with hidden states on request."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from selector.adapters.base import FINAL
from selector.engines.reference.cache import FixedCache, KeyValues, causal_mask
from selector.engines.reference.lean import lean_decoder
from selector.engines.reference.lean_layer import fits
from selector.engines.reference.linear import pack_linears
from selector.errors import SelectorError
from selector.profile import ModelInfo

KeyCache = FixedCache | KeyValues
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def usable(device: str) -> torch.device:
    """The device by its name; raises `SelectorError` when this torch cannot compute there."""
    reason = "neither cpu nor cuda"
    if device.partition(":")[0] in ("cpu", "cuda"):
        try:
            return torch.empty(1, device=device).device
        except (RuntimeError, AssertionError) as error:  # a torch without CUDA asserts
            reason = str(error).partition("\n")[0]
    raise SelectorError(
        f"--device {device}: torch {torch.__version__} cannot decode there ({reason}): "
        "use --device cpu, or cuda where torch finds a GPU"
    )


class DecoderModel:
    """Target or draft model. Only full attention: a sliding window would need another mask and another crop."""

    def __init__(self, path: Path, dtype: str, device: str, *, pack: bool = True, lean: bool = True) -> None:
        if not (path / "config.json").is_file():
            raise SelectorError(f"{path}: no config.json there, so not a local model folder; give the path of one")
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # untyped upstream
        self.path, self.dtype, self.device = path, DTYPES[dtype], usable(device)
        self.pack = pack
        self.model = self._load()
        self.config = self.model.config.get_text_config()
        self._refuse_windows()
        self.parameters = sum(p.numel() for p in self.model.parameters())
        self.weight_bytes = sum(p.numel() * p.element_size() for p in self.model.parameters())
        layers = self.model.get_decoder().layers
        self.lean = lean_decoder(self.model, pack=pack) if lean and fits(self.config, layers) else None
        if self.lean:
            self.packed = self.lean.packed
        else:
            if not len(self.model.get_decoder().layers):  # our own pass took the weights and then differed
                self.model = self._load()
            self.packed = pack_linears(self.model, self.dtype, self.device) if pack else 0
        self.embedding: Tensor = self.model.get_input_embeddings().weight.detach()
        self.layers = self.model.get_decoder().layers
        self.tapped: tuple[int, ...] = ()
        self._taps: dict[int, Tensor] = {}
        self._hooks: list[Any] = []

    def _load(self) -> Any:
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(self.path, dtype=self.dtype, local_files_only=True)
        except (OSError, ValueError) as error:  # what transformers raises for a folder that is no model it knows
            reason = str(error).partition("\n")[0]
            raise SelectorError(
                f"{self.path}: transformers cannot load it ({reason}); give the folder of a causal language model"
            ) from error
        return model.to(self.device).eval()

    def _refuse_windows(self) -> None:
        kinds = set(getattr(self.config, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"} or getattr(self.config, "sliding_window", None):
            raise SelectorError(
                f"{self.path}: layers of kind {', '.join(sorted(kinds))}: the reference engine decodes full attention "
                "only; measure this model on the engine that serves it"
            )

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values one context token takes over all layers."""
        head = getattr(self.config, "head_dim", None) or self.config.hidden_size // self.config.num_attention_heads
        heads = getattr(self.config, "num_key_value_heads", None) or self.config.num_attention_heads
        return int(2 * heads * head * self.config.num_hidden_layers * self.dtype.itemsize)

    @property
    def forward_by(self) -> str:
        """Whose forward pass runs: `lean`, our own, or `transformers`."""
        return "lean" if self.lean else "transformers"

    def new_cache(self, batch: int, capacity: int) -> KeyCache:
        """An empty cache for `batch` rows of at most `capacity` tokens."""
        if self.lean:
            return self.lean.new_cache(batch, capacity)
        return FixedCache(self.config.num_hidden_layers, batch, capacity)

    def tap(self, layers: Sequence[int]) -> None:
        """Keep the hidden states that enter these layers (vLLM's numbering), or `FINAL`, in the next passes."""
        self.tapped = tuple(layers)
        for hook in self._hooks:
            hook.remove()
        self._taps.clear()
        self._hooks = [] if self.lean else [self._source(i).register_forward_hook(self._keep(i)) for i in layers]

    def _source(self, index: int) -> Any:
        """The module whose output enters layer `index`, or is the final hidden state."""
        if index == FINAL:
            return self.model.get_decoder().norm
        return self.layers[index - 1] if index else self.model.get_input_embeddings()

    def _keep(self, index: int) -> Any:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            self._taps[index] = output[0] if isinstance(output, tuple) else output

        return hook

    def read(self, hidden: Tensor) -> Tensor:
        """Logits of final hidden states (..., hidden): the output head alone."""
        logits: Tensor = (self.lean.head if self.lean else self.model.get_output_embeddings())(hidden)
        return logits

    @torch.inference_mode()
    def forward(
        self,
        tokens: Tensor,
        cache: KeyCache,
        *,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        keep: int = 0,
    ) -> tuple[Tensor, Tensor | None]:
        """Run `tokens` (batch, new) behind the cache.

        Returns logits of the last `keep` positions (0: all), shape (batch, kept, vocabulary), and the tapped hidden
        states side by side, shape (batch, new, taps * hidden), or None.
        """
        if self.lean and isinstance(cache, KeyValues):
            logits, taps = self.lean.forward(tokens, cache, positions, mask, keep, self.tapped)
            return logits, torch.cat(taps, -1) if taps else None
        past, new = cache.length, tokens.shape[1]
        if mask is None:
            mask = causal_mask(new, past, self.dtype, self.device)
        if positions is None:
            positions = torch.arange(past, past + new, device=self.device)[None]
        out = self.model(
            input_ids=tokens,
            past_key_values=cache,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=keep,
        )
        taps = [self._taps[i] for i in self.tapped]
        return out.logits, torch.cat(taps, -1) if taps else None

    def info(self, name: str) -> ModelInfo:
        """Identity for profiles and policies."""
        text = (self.path / "config.json").read_bytes()
        return ModelInfo(
            name=name,
            path=str(self.path),
            config_sha256=hashlib.sha256(text).hexdigest(),
            parameters=self.parameters,
            weight_bytes=self.weight_bytes,
            kv_bytes_per_token=self.kv_bytes_per_token,
            vocab_size=self.config.vocab_size,
            max_model_len=self.config.max_position_embeddings,
            architecture=str((json.loads(text).get("architectures") or ["unknown"])[0]),
        )
