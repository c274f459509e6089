"""The drafter that runs an EAGLE head beside its target in the reference engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from selector.adapters.base import FINAL, Drafts, DraftSampling, Recording
from selector.adapters.branches import Branches
from selector.adapters.checkpoint import Checkpoint
from selector.adapters.draft_head import DraftHead, Lent
from selector.adapters.eagle3_head import Eagle3Head
from selector.adapters.eagle_head import EagleHead
from selector.adapters.head_config import aux_layers, eagle3_config, eagle_config
from selector.engines.reference.cache import causal_mask
from selector.engines.reference.linear import pack_linears
from selector.engines.reference.model import DecoderModel
from selector.engines.reference.rope import frequencies
from selector.engines.reference.sampling import choose, side_by_side


def eagle_drafter(path: Path, target: DecoderModel) -> HeadDrafter:
    """An EAGLE-1 head, which reads the target's final hidden state."""
    checkpoint = Checkpoint(path)
    config = eagle_config(checkpoint)
    head = EagleHead(config, frequencies(checkpoint.config, config.head_size), Lent(target.embedding, target.read))
    return HeadDrafter(head, checkpoint, target, (FINAL,))


def eagle3_drafter(path: Path, target: DecoderModel) -> HeadDrafter:
    """An EAGLE-3 head with the layers it reads."""
    checkpoint = Checkpoint(path)
    config = eagle3_config(checkpoint)
    layers = aux_layers(checkpoint.config, target.config.num_hidden_layers) if config.reads_aux else (FINAL,)
    rope = frequencies(checkpoint.config, config.head_size)
    own_output = "lm_head.weight" in checkpoint.tensors
    head = Eagle3Head(config, rope, Lent(target.embedding, target.read), own_output=own_output)
    return HeadDrafter(head, checkpoint, target, layers)


class HeadDrafter:
    """Entry p of its cache joins the target's hidden state at p with the token at p + 1.

    Only entries with true hidden states are kept between steps; those of the drafts are dropped by `commit`.
    """

    def __init__(self, head: DraftHead, checkpoint: Checkpoint, target: DecoderModel, layers: Sequence[int]) -> None:
        self.aux_layers, self.head = layers, head
        files = sorted(checkpoint.path.glob("*.safetensors"))
        head.load({name: tensor for file in files for name, tensor in load_file(file).items()})
        head.to(device=target.device, dtype=target.dtype).eval()
        self.parameters = sum(p.numel() for p in head.parameters())
        pack_linears(head, target.dtype, target.device)
        self.dtype, self.device = target.dtype, target.device
        self.start(1, 1)

    def start(self, batch: int, capacity: int) -> None:
        """No entries."""
        self.head.start(batch, capacity)
        self.entries = 0
        self.pending: tuple[Tensor, Tensor] | None = None
        self.last_aux: Tensor | None = None

    @torch.inference_mode()
    def prefill(self, prompt: Tensor, aux: Tensor | None) -> None:
        """Entries for all but the last prompt token, whose successor is not known yet."""
        assert aux is not None
        self.last_aux = aux[:, -1:]
        if prompt.shape[1] > 1:
            self._run(prompt[:, 1:], self.head.combine(aux[:, :-1]))
            self.entries = prompt.shape[1] - 1

    def commit(self, tokens: Tensor, aux: Tensor | None) -> None:
        """New true entries wait for the next `draft`; a second commit before it (no draft asked) joins the first."""
        features = self.last_aux if aux is None else aux
        assert features is not None
        self.head.length = self.entries
        if self.pending is not None:
            tokens, features = torch.cat([self.pending[0], tokens], 1), torch.cat([self.pending[1], features], 1)
        self.pending = (tokens, features)

    @torch.inference_mode()
    def draft(self, k: int, sampling: DraftSampling | None = None) -> Drafts:
        """The waiting entries in one pass give the first draft, then one pass per further draft."""
        assert self.pending is not None
        tokens, aux = self.pending
        hidden = self._run(tokens, self.head.combine(aux))[:, -1:]
        self.entries, self.pending = self.entries + tokens.shape[1], None
        drafts = [choose(self.head.logits(hidden)[:, 0], sampling)]
        while len(drafts) < k:
            hidden = self._run(drafts[-1].tokens, hidden)
            drafts.append(choose(self.head.logits(hidden)[:, 0], sampling))
        return side_by_side(drafts)

    def _run(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        """Feed entries (batch, new) behind the cache; returns their outputs (batch, new, hidden)."""
        past, new = self.head.length, tokens.shape[1]
        positions = torch.arange(past, past + new, device=self.device)
        return self.head.step(tokens, hidden, positions, causal_mask(new, past, self.dtype, self.device))

    def pretend(self, length: int) -> None:
        """All true entries are in the cache but the last one, which waits with hidden states of the right shape."""
        self.entries = self.head.length = length - 2
        batch, features = self.head.batch, self.head.config.features
        tokens = torch.zeros((batch, 1), dtype=torch.long, device=self.device)
        self.pending = (tokens, torch.ones((batch, 1, features), dtype=self.dtype, device=self.device))

    @torch.inference_mode()
    def replay(self, recording: Recording, k: int) -> tuple[list[int], list[int] | None]:
        """All positions at once: one causal pass over true entries, then one masked pass per further draft."""
        tokens, aux = recording.tokens, recording.aux
        assert aux is not None
        entries = len(tokens) - 1
        self.head.start(1, entries + (entries - recording.prompt_length) * (k - 1))
        branches = Branches(recording, past=entries, lag=1)
        features, positions = self.head.combine(aux[None, :entries]), torch.arange(entries, device=self.device)
        out = self.head.step(tokens[None, 1:], features, positions, None)
        hidden = out[0, branches.roots - 1]
        while branches.advance(self.head.logits(hidden)) and branches.depth < k:
            hidden = hidden[branches.kept]
            mask = branches.mask(self.dtype)
            hidden = self.head.step(branches.tokens[None], hidden[None], branches.positions, mask)[0]
        return branches.accepted, None
