"""The contract of an adapter: everything this package knows about one method, in one file each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from selector.adapters.checkpoint import Checkpoint
from selector.adapters.widths import Widths
from selector.strategy import Method, Strategy

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from selector.engines.reference.model import DecoderModel

#: Among `aux_layers`: the hidden state that the target's output head reads, behind its last norm.
FINAL = -1


@dataclass(frozen=True)
class DraftSampling:
    """How drafts are drawn when they are not the drafter's best guess: its softmax at the request's temperature.

    Neither top-p nor top-k touches the drafts, as in vLLM: that costs acceptance, never exactness.
    """

    temperature: float
    generator: Generator


@dataclass(frozen=True)
class Drafts:
    """Proposals. tokens: (batch, n), int64; q: (batch, n, vocabulary), what each was drawn from; None: greedy."""

    tokens: Tensor
    q: Tensor | None = None


@dataclass(frozen=True)
class SampledRecording:
    """What replaying sampled drafts needs to know of a recording of n output tokens.

    `temperature` of the request; `p`: (n,), the probability under which the target emitted each token, top-p and all;
    `u`: (n - 1, k) uniform numbers, one for each draft that could be made.
    """

    temperature: float
    p: Tensor
    u: Tensor


@dataclass(frozen=True)
class Recording:
    """One plain output to replay on. tokens: (prompt + n,); aux: (prompt + n, taps * hidden), or None.

    `sampled` None replays greedy drafts: accepted where they equal the recording, whatever its temperature.
    """

    tokens: Tensor
    prompt_length: int
    aux: Tensor | None = None
    sampled: SampledRecording | None = None


class Drafter(Protocol):
    """Proposes tokens in the reference engine; its state depends on the committed tokens alone.

    Rows of a batch move in lock step: all have the same length. Token tensors are (batch, new), int64.
    """

    aux_layers: Sequence[int]
    """Target layers whose incoming hidden states `prefill` and `commit` want, or `FINAL`; empty: none."""

    def start(self, batch: int, capacity: int) -> None:
        """Forget everything; room for `capacity` tokens a row."""

    def prefill(self, prompt: Tensor, aux: Tensor | None) -> None:
        """Take in the prompt (batch, prompt) and its hidden states (batch, prompt, aux)."""

    def commit(self, tokens: Tensor, aux: Tensor | None) -> None:
        """Take in emitted tokens; `aux` belongs to the positions just before each of them."""

    def draft(self, k: int, sampling: DraftSampling | None = None) -> Drafts:
        """At most k proposals a row behind the committed tokens; greedy without `sampling`."""

    def pretend(self, length: int) -> None:
        """For timing: behave as if `length` tokens a row had been committed; what they are does not matter."""

    def replay(self, recording: Recording, k: int) -> tuple[list[int], list[int] | None]:
        """Accepted and proposed counts at positions 1..n-1 of a recording; see `walks`."""


class Adapter(Protocol):
    """What one method needs, how its drafter is checked, built and told to a serving engine."""

    method: Method
    needs_drafter: bool

    def check(self, drafter: Checkpoint, target: Checkpoint) -> list[str]:
        """Warnings about the pair; raises `DrafterMismatch` saying what differs and what to use instead."""

    def widths(self, drafter: Checkpoint | None, target: Checkpoint) -> Widths:
        """Which k the checkpoints allow; `drafter` None where the method has none."""

    def vllm(self, strategy: Strategy, drafter_path: str | None) -> dict[str, Any] | None:
        """The mapping for vLLM's `speculative_config`; None: leave the key out."""

    def drafter(self, target: DecoderModel, path: Path | None, strategy: Strategy) -> Drafter | None:
        """The reference engine's drafter; None for plain decoding."""


INSTEAD = "use one trained for this target, or a method that needs none (ngram, none)"
