"""The EAGLE-3 head in training: one decoder layer over three of the target's hidden states."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from selector.errors import DrafterMismatch
from selector.training.features import Batch, Target, shifted, soft_cross_entropy
from selector.training.head import HeadAttention, HeadMlp, Past
from selector.training.rows import Row
from selector.training.tensors import read_tensors
from selector.training.trainee import POSITIONS, TRAINED_POSITIONS, Trainee

DRAFT_VOCABULARY = 8192
STEP_WEIGHT = 0.8
#: Below these the layers it reads are none of the start, the middle and the end.
LEAST_LAYERS = 5


class MidLayer(nn.Module):
    """The head's one layer; its attention reads embedding and hidden state side by side."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.self_attn, self.mlp = HeadAttention(config, 2 * config.hidden_size), HeadMlp(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, embedding: Tensor, hidden: Tensor, turn: tuple[Tensor, Tensor], past: Past) -> Tensor:
        """The next hidden state, before the final norm."""
        x = torch.cat([self.input_layernorm(embedding), self.hidden_norm(hidden)], -1)
        hidden = hidden + self.self_attn(x, turn, past)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))  # type: ignore[no-any-return]  # as above


class Eagle3Head(Trainee):
    """The head, its tensors named as shipped; `draft_ids` (draft vocabulary,) are target token ids."""

    learning_rate, clip = 6e-4, 0.5

    def __init__(self, target: Target, draft_ids: Tensor) -> None:
        super().__init__()
        self.target, config = target, target.config
        self.draft_ids = draft_ids
        self.target_rows = target.head[draft_ids].float()
        self.fc = nn.Linear(3 * config.hidden_size, config.hidden_size, bias=False)
        self.midlayer = MidLayer(config)
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, len(draft_ids), bias=False)

    @property
    def identity(self) -> str:
        """The draft vocabulary: `lm_head` rows of another one would mean other tokens."""
        return "eagle3 " + hashlib.sha256(str(self.draft_ids.tolist()).encode()).hexdigest()[:16]

    def _passes(self, batch: Batch, count: int) -> Iterator[Tensor]:
        """Final hidden states of each training-time-test pass; entry t of pass s is about token t+s+2."""
        hidden: Tensor = self.fc(batch.aux.float()).float()  # the residual stream stays exact in mixed precision
        past: Past = []
        tokens = torch.arange(batch.ids.shape[1])
        for s in range(count):
            embedding = self.target.embedding[shifted(batch.ids, s + 1)]
            hidden = self.midlayer(embedding, hidden, self.target.rotary(tokens + s), past)
            yield self.norm(hidden)

    def loss(self, batch: Batch) -> Tensor:
        """Cross entropy to the target on the draft vocabulary, later passes weighing less."""
        total = torch.zeros(())
        for s, out in enumerate(self._passes(batch, TRAINED_POSITIONS)):
            spoken = shifted(batch.answer, s + 2)
            wanted = shifted(batch.last, s + 1)[spoken].float() @ self.target_rows.T
            total = total + STEP_WEIGHT**s * soft_cross_entropy(wanted, self.lm_head(out[spoken]))
        return total

    def guesses(self, batch: Batch) -> Iterator[Tensor]:
        """Entry t - 1 of a pass drafts behind token t, hence the move by one."""
        for out in self._passes(batch, POSITIONS):
            guess = self.draft_ids[self.lm_head(out).argmax(-1)]
            yield torch.cat([torch.zeros_like(guess[:, :1]), guess[:, :-1]], 1)

    def save(self, folder: Path) -> None:
        """A folder that vLLM loads: `d2t` holds offsets, the embedding is the target's."""
        tensors = {name: t.to(torch.bfloat16).contiguous() for name, t in self.state_dict().items()}
        tensors["d2t"] = self.draft_ids - torch.arange(len(self.draft_ids))
        tensors["t2d"] = torch.zeros(self.target.config.vocab_size, dtype=torch.bool)
        tensors["t2d"][self.draft_ids] = True
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        config = json.loads((self.target.folder / "config.json").read_bytes()) | {
            "architectures": ["LlamaForCausalLMEagle3"],
            "num_hidden_layers": 1,
            "draft_vocab_size": len(self.draft_ids),
            "tie_word_embeddings": False,
            "attention_bias": False,
            "mlp_bias": False,
        }
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", "utf-8")


def new_head(target: Target, rows: Iterable[Row], vocabulary: int = DRAFT_VOCABULARY) -> Eagle3Head:
    """A head that starts near the target: its last layer's MLP and projection, its used tokens' rows."""
    _check(target)
    counts = Counter(token for row in rows for token in row.answer)
    ranked = sorted(range(target.config.vocab_size), key=lambda token: (-counts[token], token))
    head = Eagle3Head(target, torch.tensor(sorted(ranked[:vocabulary])))
    layer = target.model.model.layers[-1]
    hidden = target.config.hidden_size
    with torch.no_grad():
        head.fc.weight.zero_()
        head.fc.weight[:, -hidden:].copy_(torch.eye(hidden))  # pass the highest of the three states through
        head.lm_head.weight.copy_(head.target_rows)
    head.norm.load_state_dict(target.model.model.norm.state_dict())
    head.midlayer.mlp.load_state_dict(layer.mlp.state_dict())
    head.midlayer.self_attn.o_proj.load_state_dict(layer.self_attn.o_proj.state_dict())
    head.midlayer.post_attention_layernorm.load_state_dict(layer.post_attention_layernorm.state_dict())
    return head


def load_head(target: Target, folder: Path) -> Eagle3Head:
    """A shipped head, to train it further."""
    _check(target)
    tensors, _ = read_tensors(folder / "model.safetensors")
    if "d2t" not in tensors:
        raise DrafterMismatch(f"{folder}: no d2t in model.safetensors: not an EAGLE-3 head of this trainer")
    offsets = tensors.pop("d2t")
    tensors.pop("t2d", None)
    ids = offsets + torch.arange(len(offsets))
    if not 0 <= int(ids.min()) <= int(ids.max()) < target.config.vocab_size:
        raise DrafterMismatch(f"{folder}: d2t points outside the target's vocabulary")
    head = Eagle3Head(target, ids)
    try:
        head.load_state_dict({name: t.float() for name, t in tensors.items()})
    except RuntimeError as error:
        raise DrafterMismatch(f"{folder}: tensors do not fit an EAGLE-3 head of this target ({error})") from error
    return head


def _check(target: Target) -> None:
    layers, kind = target.config.num_hidden_layers, target.config.model_type
    if kind != "llama" or layers < LEAST_LAYERS:
        raise DrafterMismatch(
            f"{target.folder}: a {kind} of {layers} layers; EAGLE-3 is trained for Llama-like targets of at least "
            f"{LEAST_LAYERS} (`eagle` and `draft` take fewer)"
        )
