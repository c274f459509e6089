"""The pruned draft model in training: a few of the target's own layers, distilled."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from selector.adapters.recognise import LAYERS_FILE
from selector.embedded.draft import SHARED_TENSORS
from selector.errors import DrafterMismatch
from selector.training.features import Batch, Target, shifted, soft_cross_entropy
from selector.training.rows import Row
from selector.training.tensors import read_tensors
from selector.training.trainee import POSITIONS, Trainee

FREQUENT_TOKENS = 12288
RANDOM_TOKENS = 2048


class PrunedDraft(Trainee):
    """The first and last layers of the target; embedding and output head stay the target's, frozen."""

    learning_rate, clip = 1e-3, 1.0

    def __init__(self, target: Target, layers: int, frequent: Tensor) -> None:
        super().__init__()
        from transformers import AutoModelForCausalLM

        if target.config.model_type != "llama":
            raise DrafterMismatch(f"{target.folder}: this trainer knows Llama-like targets only")
        config = copy.deepcopy(target.config)
        config.num_hidden_layers = layers
        self.frequent, self.head = frequent, target.head.float()
        causal: Any = AutoModelForCausalLM  # typed as a class that cannot be called so
        model: Any = causal.from_config(config)
        self.model = model.float()
        depth = target.config.num_hidden_layers
        kept = [round(i * (depth - 1) / max(1, layers - 1)) for i in range(layers)]
        for mine, theirs in zip(self.model.model.layers, kept, strict=True):
            mine.load_state_dict(target.model.model.layers[theirs].state_dict())
        self.model.model.norm.load_state_dict(target.model.model.norm.state_dict())
        for name, shared in (("embed_tokens", target.embedding), ("lm_head", self.head)):
            owner = self.model.model if name == "embed_tokens" else self.model
            getattr(owner, name).weight = torch.nn.Parameter(shared, requires_grad=False)

    @property
    def identity(self) -> str:
        """The number of layers; their names tell them apart."""
        return f"draft {len(self.model.model.layers)}"

    def loss(self, batch: Batch) -> Tensor:
        """Cross entropy to the target on the frequent tokens and some random ones, drawn anew each time."""
        spoken = shifted(batch.answer, 1)
        random = torch.randint(len(self.head), (RANDOM_TOKENS,))
        rows = self.head[torch.cat([self.frequent, random]).unique()]  # type: ignore[no-untyped-call]  # torch's stub
        out = self.model.model(batch.ids).last_hidden_state[spoken]
        return soft_cross_entropy(batch.last[spoken].float() @ rows.T, out @ rows.T)

    def guesses(self, batch: Batch) -> Iterator[Tensor]:
        """One pass serves all positions: while a chain lives, its drafts are the recorded tokens."""
        guess = (self.model.model(batch.ids).last_hidden_state @ self.head.T).argmax(-1)
        for i in range(POSITIONS):
            yield shifted(guess, i)

    def save(self, folder: Path) -> None:
        """The layers and final norm only; `selector.embedded.draft.assemble_draft` adds the target's part."""
        own = {
            n: t.to(torch.bfloat16).contiguous() for n, t in self.model.state_dict().items() if n not in SHARED_TENSORS
        }
        save_file(own, folder / LAYERS_FILE, metadata={"format": "pt"})
        config = copy.deepcopy(self.model.config)
        config.dtype = torch.bfloat16
        config.architectures = ["LlamaForCausalLM"]
        config.save_pretrained(folder)


def new_draft(target: Target, rows: Iterable[Row], layers: int = 2) -> PrunedDraft:
    """A draft of `layers` evenly spaced layers, first and last included."""
    counts = Counter(token for row in rows for token in row.prompt + row.answer)
    return PrunedDraft(target, layers, torch.tensor(sorted(t for t, _ in counts.most_common(FREQUENT_TOKENS))))


def load_draft(target: Target, rows: Iterable[Row], folder: Path) -> PrunedDraft:
    """A shipped draft, to train it further."""
    tensors, _ = read_tensors(folder / LAYERS_FILE)
    draft = new_draft(target, rows, len({name.split(".")[2] for name in tensors if ".layers." in name}))
    missing, unexpected = draft.model.load_state_dict({n: t.float() for n, t in tensors.items()}, strict=False)
    if unexpected or set(missing) - set(SHARED_TENSORS):
        raise DrafterMismatch(f"{folder}: tensors do not fit this target ({(unexpected or missing)[0]})")
    return draft
