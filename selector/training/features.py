"""What the target says about a batch: hidden states and best next tokens, computed once and kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from selector.training.rows import Row

MAX_TOKENS = 420


@dataclass(frozen=True)
class Batch:
    """Tensors of shape (rows, tokens, ...); `answer` is True where the token belongs to the answer.

    `aux` (of width 0 where nothing asks for it) and `last` are the target's hidden states at a token, `best` its
    likeliest next token.
    """

    ids: Tensor
    answer: Tensor
    aux: Tensor
    last: Tensor
    best: Tensor

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return sum(getattr(self, f.name).nbytes for f in fields(self))


class Target:
    """The frozen model that is being imitated. `aux`: whether EAGLE-3's layers are wanted of it."""

    def __init__(self, folder: Path, *, aux: bool = True) -> None:
        from transformers import AutoModelForCausalLM

        self.folder = folder
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        self.model = model.eval().requires_grad_(False)
        self.config: Any = self.model.config
        layers = self.config.num_hidden_layers
        # vLLM's default for EAGLE-3: near the start, the middle and near the end.
        self.aux_layers = (2, layers // 2, layers - 3) if aux else ()
        self.embedding: Tensor = self.model.model.embed_tokens.weight.float()
        self.head: Tensor = self.model.lm_head.weight

    def rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines (tokens, head size) as the target turns its own keys."""
        cos, sin = self.model.model.rotary_emb(torch.zeros(1), positions[None])
        return cos[0].float(), sin[0].float()

    @torch.no_grad()
    def features(self, rows: Sequence[Row]) -> Batch:
        """One forward pass over the rows, padded to the longest."""
        texts = [(row.prompt + row.answer)[:MAX_TOKENS] for row in rows]
        length = max(map(len, texts))
        ids = torch.zeros(len(rows), length, dtype=torch.long)
        answer = torch.zeros(len(rows), length, dtype=torch.bool)
        for i, (row, text) in enumerate(zip(rows, texts, strict=True)):
            ids[i, : len(text)] = torch.tensor(text)
            answer[i, len(row.prompt) : len(text)] = True
        out = self.model.model(ids, output_hidden_states=True)  # right padding is invisible to what stands before it
        last = out.last_hidden_state
        before = shifted(answer, 1)
        best = torch.zeros_like(ids)
        best[before] = (last[before] @ self.head.T).argmax(-1)
        aux = torch.cat([last[..., :0], *(out.hidden_states[i] for i in self.aux_layers)], -1)
        return Batch(ids, answer, aux, last, best)


class FeatureCache:
    """Batches by index; the target runs on first use, and results are kept until `limit_bytes` are full."""

    def __init__(self, target: Target, batches: Sequence[Sequence[Row]], limit_bytes: int) -> None:
        self.target, self.batches, self.free_bytes = target, batches, limit_bytes
        self._kept: dict[int, Batch] = {}

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Batch:
        batch = self._kept.get(index)
        if batch is None:
            batch = self.target.features(self.batches[index])
            if batch.nbytes <= self.free_bytes:
                self._kept[index] = batch
                self.free_bytes -= batch.nbytes
        return batch


def shifted(x: Tensor, steps: int) -> Tensor:
    """`x` moved `steps` tokens to the left along dimension 1; zeros come in at the end."""
    out = torch.zeros_like(x)
    if steps < x.shape[1]:
        out[:, : x.shape[1] - steps] = x[:, steps:]
    return out


def soft_cross_entropy(target_logits: Tensor, logits: Tensor) -> Tensor:
    """Mean cross entropy against the target's distribution; 0 where there is nothing to predict."""
    if not len(logits):
        return logits.sum()
    return -(target_logits.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean()
