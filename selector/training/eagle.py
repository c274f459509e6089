"""The EAGLE-1 head in training: one decoder layer that foretells the target's next final hidden state."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from selector.errors import DrafterMismatch
from selector.training.features import Batch, Target, shifted, soft_cross_entropy
from selector.training.head import HeadAttention, HeadMlp, Past
from selector.training.rows import Row
from selector.training.tensors import read_tensors
from selector.training.trainee import POSITIONS, TRAINED_POSITIONS, Trainee

FREQUENT_TOKENS = 8192
STEP_WEIGHT = 0.8
#: Weight of the feature loss beside the cross entropy (Li et al. 2024 weigh the cross entropy 0.1 against 1).
FEATURE_WEIGHT = 0.5


class Layer(nn.Module):
    """A Llama layer without its input norm, as EAGLE-1 has it."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.self_attn, self.mlp = HeadAttention(config, config.hidden_size), HeadMlp(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], past: Past) -> Tensor:
        """The next hidden state."""
        x = x + self.self_attn(x, turn, past)
        return x + self.mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]  # modules are untyped calls


class EagleHead(Trainee):
    """`fc` joins embedding and hidden state; drafts are read off the target's own output head."""

    learning_rate, clip = 1e-3, 0.5

    def __init__(self, target: Target, frequent: Tensor) -> None:
        super().__init__()
        self.target, config = target, target.config
        self.frequent, self.rows = frequent, target.head[frequent].float()
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.layers = nn.ModuleList([Layer(config)])

    @property
    def identity(self) -> str:
        """The tokens that the loss is about."""
        return "eagle " + hashlib.sha256(str(self.frequent.tolist()).encode()).hexdigest()[:16]

    def _passes(self, batch: Batch, count: int) -> Iterator[Tensor]:
        """Outputs of each training-time-test pass; entry t of pass s stands for the hidden state at t+s+1."""
        hidden: Tensor = batch.last.float()
        past: Past = []
        tokens = torch.arange(batch.ids.shape[1])
        for s in range(count):
            embedding = self.target.embedding[shifted(batch.ids, s + 1)]
            joined = self.fc(
                torch.cat([embedding, hidden], -1)
            ).float()  # the residual stream stays exact in mixed precision
            hidden = self.layers[0](joined, self.target.rotary(tokens + s), past)
            yield hidden

    def loss(self, batch: Batch) -> Tensor:
        """Cross entropy on the frequent tokens plus the distance to the target's hidden state, later passes less."""
        total = torch.zeros(())
        for s, out in enumerate(self._passes(batch, TRAINED_POSITIONS)):
            spoken = shifted(batch.answer, s + 2)
            wanted, got = shifted(batch.last, s + 1)[spoken].float(), out[spoken]
            close = F.smooth_l1_loss(got, wanted) if len(got) else got.sum()
            exact = soft_cross_entropy(wanted @ self.rows.T, got @ self.rows.T)
            total = total + STEP_WEIGHT**s * (exact + FEATURE_WEIGHT * close)
        return total

    def guesses(self, batch: Batch) -> Iterator[Tensor]:
        """Entry t - 1 of a pass drafts behind token t, hence the move by one."""
        for out in self._passes(batch, POSITIONS):
            guess = torch.zeros_like(batch.ids)
            spoken = shifted(batch.answer, 1)  # no other entry is read, and the full vocabulary is dear
            guess[spoken] = (out[spoken].to(self.target.head.dtype) @ self.target.head.T).argmax(-1)
            yield torch.cat([torch.zeros_like(guess[:, :1]), guess[:, :-1]], 1)

    def save(self, folder: Path) -> None:
        """A folder that vLLM loads under method `eagle`; embedding and output head are the target's."""
        tensors = {name: t.to(torch.bfloat16).contiguous() for name, t in self.state_dict().items()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        config = json.loads((self.target.folder / "config.json").read_bytes()) | {
            "architectures": ["LlamaForCausalLM"],  # vLLM puts Eagle in front of it
            "num_hidden_layers": 1,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "mlp_bias": False,
        }
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", "utf-8")


def new_eagle(target: Target, rows: Iterable[Row], vocabulary: int = FREQUENT_TOKENS) -> EagleHead:
    """A head that starts by repeating the hidden state it is given."""
    if target.config.model_type != "llama":
        raise DrafterMismatch(f"{target.folder}: this trainer knows Llama-like targets only")
    counts = Counter(token for row in rows for token in row.answer)
    ranked = sorted(range(target.config.vocab_size), key=lambda token: (-counts[token], token))
    head = EagleHead(target, torch.tensor(sorted(ranked[:vocabulary])))
    hidden, layer = target.config.hidden_size, head.layers[0]
    with torch.no_grad():
        head.fc.weight.zero_()
        head.fc.weight[:, hidden:].copy_(torch.eye(hidden))
        for last in (layer.self_attn.o_proj, layer.mlp.down_proj):  # type: ignore[union-attr]  # torch's stub
            last.weight.zero_()  # type: ignore[union-attr, operator]  # as above
    return head


def load_eagle(target: Target, rows: Iterable[Row], folder: Path) -> EagleHead:
    """A shipped head, to train it further."""
    head = new_eagle(target, rows)
    tensors, _ = read_tensors(folder / "model.safetensors")
    try:
        head.load_state_dict({name: t.float() for name, t in tensors.items()})
    except RuntimeError as error:
        raise DrafterMismatch(f"{folder}: tensors do not fit an EAGLE-1 head of this target ({error})") from error
    return head
