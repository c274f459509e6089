"""A forward pass of our own for Llama-like decoders: the loaded weights, without the framework's work around them.

Against transformers' forward: q, k and v are one product, rotary tables and masks are made once, keys and values are
written in place, the query heads that share a key head attend as rows of one product, and nothing is looked up or
allocated per layer. `lean_decoder` compares both on a random input before ours is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from selector.adapters.base import FINAL
from selector.engines.reference.attention import attend, folded, turned
from selector.engines.reference.cache import KeyValues
from selector.engines.reference.lean_layer import LeanLayer, take
from selector.engines.reference.linear import MIN_ROWS, PackedLinear, gated, packing_available

#: Largest difference of logits from transformers' own, norm against norm; in bfloat16 either is 0.03 off float32.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1}


class LeanDecoder:
    """Takes over the weights of a transformers model, layer by layer: that model cannot run any more afterwards."""

    def __init__(self, model: Any, *, pack: bool) -> None:
        config, decoder = model.config.get_text_config(), model.get_decoder()
        self.embedding: Tensor = decoder.embed_tokens.weight.detach()
        self.dtype, self.device = self.embedding.dtype, self.embedding.device
        attention = decoder.layers[0].self_attn
        self.heads, self.kv_heads = int(config.num_attention_heads), int(config.num_key_value_heads)
        self.size, self.scale = int(attention.head_dim), float(attention.scaling)
        self.eps = torch.tensor(float(config.rms_norm_eps), device=self.device)
        self.pack = pack and packing_available(self.dtype, self.device)
        self.layers = [take(layer, pack=self.pack) for layer in decoder.layers]
        decoder.layers = nn.ModuleList()
        self.norm: Tensor = decoder.norm.weight.detach()
        self.head = PackedLinear(model.get_output_embeddings()) if self.pack else model.get_output_embeddings()
        model.set_output_embeddings(nn.Identity())
        self.packed = (5 * len(self.layers) + 1) if self.pack else 0
        self.rotary = decoder.rotary_emb
        self.cos = self.sin = self.embedding.new_zeros((0, 1, self.size))
        width, rows = self.heads * self.size, MIN_ROWS if self.pack else 0
        self.filled = self.embedding.new_zeros((rows, self.embedding.shape[1]))
        self.attended = torch.zeros((rows, width), dtype=self.dtype, device=self.device)

    def new_cache(self, batch: int, capacity: int) -> KeyValues:
        """An empty cache; positions up to its capacity get their rotary angles now."""
        if capacity > self.cos.shape[0]:
            positions = torch.arange(max(capacity, 2 * self.cos.shape[0]), device=self.device)[None]
            cos, sin = self.rotary(self.embedding[:1], positions)
            sin[..., : self.size // 2].neg_()  # so that x * cos + swapped halves * sin turns x
            self.cos, self.sin = cos[0, :, None], sin[0, :, None]
        return KeyValues(self.embedding, len(self.layers), batch, self.kv_heads, capacity, self.size)

    def forward(
        self,
        tokens: Tensor,
        cache: KeyValues,
        positions: Tensor | None,
        mask: Tensor | None,
        keep: int,
        taps: Sequence[int],
    ) -> tuple[Tensor, list[Tensor]]:
        """As `DecoderModel.forward`; the states that enter the layers `taps` come as a list."""
        batch, new = tokens.shape
        rows, past = batch * new, cache.length
        x = self._filled_up(functional.embedding(tokens.reshape(rows), self.embedding))
        turn = self._turn(past, new, positions)
        group = self.heads // self.kv_heads
        if mask is not None:
            mask = folded(mask, group)
        elif new > 1 and past > 0:
            mask = cache.mask(new, group)
        kept: dict[int, Tensor] = {}
        whole = not 0 < keep < new or FINAL in taps or len(self.layers) in taps
        unread_from = None if whole else len(self.layers) - 1  # behind its attention only `keep` positions are read
        for i, (layer, slots) in enumerate(zip(self.layers, cache.extend(new), strict=True)):
            if i in taps:
                kept[i] = x[:rows].view(batch, new, -1)
            qkv = layer.qkv(self._rms(x, layer.attention_norm))[:rows].view(batch, new, -1, self.size)
            attended = self._attend(layer, qkv, slots, turn, mask)
            if i == unread_from:
                attended, x = attended[:, -keep:], x[:rows].view(batch, new, -1)[:, -keep:]
                new, rows = keep, batch * keep
                x = self._filled_up(x.reshape(rows, -1))
            x = x + layer.o(self._padded(attended, rows))
            x = x + layer.down(gated(layer.gate, layer.up, self._rms(x, layer.mlp_norm)))
        last = x[:rows].view(batch, new, -1)
        if len(self.layers) in taps:
            kept[len(self.layers)] = last
        if FINAL in taps:
            kept[FINAL] = self._rms(last, self.norm)
        logits: Tensor = self.head(self._rms(last[:, -keep:], self.norm))
        return logits, [kept[i] for i in taps]

    def _filled_up(self, x: Tensor) -> Tensor:
        """Rows of zeros up to the least a packed product wants: they stay zeros and nothing reads them."""
        return x if len(x) >= len(self.filled) else torch.cat([x, self.filled[len(x) :]])

    def _turn(self, past: int, new: int, positions: Tensor | None) -> tuple[Tensor, Tensor]:
        if positions is None:
            return self.cos[past : past + new], self.sin[past : past + new]
        return self.cos[positions], self.sin[positions]

    def _attend(
        self,
        layer: LeanLayer,
        qkv: Tensor,
        slots: tuple[Tensor, Tensor, Tensor, Tensor],
        turn: tuple[Tensor, Tensor],
        mask: Tensor | None,
    ) -> Tensor:
        """(batch, new, all heads, size) -> (batch, new, query heads, size); fills the cache's slots."""
        new_keys, new_values, keys, values = slots
        qk, v = qkv.split_with_sizes((self.heads + self.kv_heads, self.kv_heads), 2)
        if layer.head_norm is not None:
            qk = self._rms(qk, layer.head_norm)
        q, k = turned(qk, *turn).transpose(1, 2).split_with_sizes((self.heads, self.kv_heads), 1)
        new_keys.copy_(k)
        new_values.copy_(v.transpose(1, 2))
        return attend(q, keys, values, mask, self.scale)

    def _padded(self, attended: Tensor, rows: int) -> Tensor:
        if rows >= len(self.filled):
            return attended.reshape(rows, -1)
        self.attended[:rows].view(attended.shape).copy_(attended)
        return self.attended

    def _rms(self, x: Tensor, weight: Tensor) -> Tensor:
        """Root-mean-square norm; float32 inside, as transformers does."""
        if x.dtype != torch.float32:
            return weight * self._scaled(x.float()).to(x.dtype)
        return self._scaled(x).mul_(weight)

    def _scaled(self, x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x * torch.addcmul(self.eps, length, length, value=1 / x.shape[-1]).rsqrt_()


def lean_decoder(model: Any, *, pack: bool) -> LeanDecoder | None:
    """Our forward pass with the weights of `model`, which is used up; None: it differs from transformers' pass.

    Compared on random ids: one pass with no past, then a few tokens behind it, then one.
    """
    vocabulary, device = model.get_input_embeddings().weight.shape[0], model.get_input_embeddings().weight.device
    ids = torch.randint(vocabulary, (2, 16), generator=torch.Generator().manual_seed(0)).to(device)
    with torch.inference_mode():
        theirs = model(input_ids=ids, use_cache=False).logits.float()
        lean = LeanDecoder(model, pack=pack)
        cache = lean.new_cache(2, 16)
        parts = [lean.forward(part, cache, None, None, 0, ())[0] for part in ids.tensor_split((12, 15), 1)]
        difference = (torch.cat(parts, 1).float() - theirs).norm() / theirs.norm()
    return lean if float(difference) < TOLERANCE[lean.dtype] else None
