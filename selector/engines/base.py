"""The contract of an engine: generate, replay acceptance, time a step, time a prefill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from selector.profile import DrafterInfo, EngineInfo, ModelInfo, Sampling
from selector.strategy import Strategy
from selector.workload import Request

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Generation:
    """One request decoded. Token lists are ids; `output_ids` ends with the stop token when `finish` is `stop`.

    `decode_steps` counts target passes after the prefill; `accepted` leaves out drafts past the output's end.
    `prefill_seconds` ends with the first output token, `decode_seconds` covers the rest.
    """

    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    finish: Literal["stop", "length"]
    decode_steps: int
    drafted: int
    accepted: int
    prefill_seconds: float
    decode_seconds: float
    accepted_per_step: tuple[int, ...] = ()


@dataclass(frozen=True)
class Acceptance:
    """Per-position acceptance of one recorded output (length: output tokens - 1); see `selector.walks`."""

    accepted: tuple[int, ...]
    proposed: tuple[int, ...] | None


@dataclass(frozen=True)
class TokenScores:
    """Every output token against the distribution it should be drawn from, given the tokens before it; arrays (n,).

    p: its probability; likelier: mass of the tokens likelier than it; excess: -ln p less its expectation (nan: p = 0);
    beyond: by how much the nucleus was full before it, of the whole distribution (0 or less: inside).
    before: mass of the tokens of smaller id; log_tail: log of the mass of it and all less likely ones (nan: outside the
    nucleus), exact where 1 - likelier has rounded to 0.
    favoured: by family, mass of the tokens that the drafter favours more (larger q / p; nan: nothing drafted there).
    """

    p: Scores
    likelier: Scores
    excess: Scores
    beyond: Scores
    before: Scores
    log_tail: Scores
    favoured: Mapping[str, Scores]


class Engine(Protocol):
    """What the measuring code asks of an engine. All times are seconds from the engine's own clock."""

    @property
    def info(self) -> EngineInfo:
        """Name, version and settings that matter."""

    @property
    def target(self) -> ModelInfo:
        """The model being served."""

    @property
    def drafters(self) -> Mapping[str, DrafterInfo]:
        """Usable drafters by name."""

    def prompt_tokens(self, request: Request) -> int:
        """Length of the request after the chat template."""

    def generate(self, request: Request, strategy: Strategy, *, seed: int) -> Generation:
        """Decode one request at load 1 with a strategy."""

    def record(self, requests: Sequence[Request], *, seed: int) -> list[Generation]:
        """Plain outputs of several requests, batched if the engine likes; their times are no measurement."""

    def replay(
        self, recorded: Generation, strategy: Strategy, *, temperature: float = 0.0, top_p: float = 1.0, seed: int = 0
    ) -> Acceptance:
        """What the strategy (at its k) would get accepted at every position of a plain recording.

        `temperature` and `top_p` it was recorded with matter to drawn drafts only, as does `seed`: each recorded
        token then gets through with its probability (design: min(1, q / p)), by one draw per position and draft.
        """

    def step_seconds(
        self, strategy: Strategy, *, batch: int, context: int, sampling: Sampling, repeats: int
    ) -> Sequence[float]:
        """`repeats` timings of one decode step of `batch` equal requests, drafting included."""

    def prefill_seconds(self, strategy: Strategy, *, prompt_tokens: int, repeats: int) -> Sequence[float]:
        """`repeats` timings of one prompt's prefill, the drafter's included."""
