"""What the measuring code asks of engines that serve: an open server at a time, and what is known beforehand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from selector.engines.served.client import Client
from selector.profile import DrafterInfo, EngineInfo, ModelInfo
from selector.strategy import Method, Strategy

Schedule = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class OpenServer:
    """A server that answers. `start_seconds`: from its command to its first healthy answer; 0 when it ran already.

    `check` raises `ServerFailed` when the server has died.
    """

    client: Client
    start_seconds: float
    info: EngineInfo
    check: Callable[[], None]


class Servers(Protocol):
    """Where servers come from: started one after the other, or running already."""

    @property
    def target(self) -> ModelInfo:
        """The model being served."""

    @property
    def drafters(self) -> Mapping[str, DrafterInfo]:
        """Usable drafters by name."""

    @property
    def running(self) -> Sequence[Strategy] | None:
        """What the servers that run already decode by; None: any strategy can be started."""

    @property
    def settings(self) -> Mapping[str, object]:
        """What a journal must agree on to be continued."""

    def unmet(self, method: Method, *, asked: bool) -> str | None:
        """Why a server of this method would not start, as far as can be told beforehand; None: nothing is known.

        `asked`: by the user; what nobody asked for is not tried where its requirements cannot be looked at.
        """

    def valid_k(self, strategy: Strategy) -> tuple[int, ...]:
        """Every k from 1 to the strategy's own that its checkpoints allow."""

    def open(
        self, strategy: Strategy, *, schedule: Schedule | None, max_batch: int
    ) -> AbstractContextManager[OpenServer]:
        """A server that decodes with this strategy, for at most so many requests at once; gone when the block ends.

        Raises `ServerFailed` with the engine's own last error.
        """
