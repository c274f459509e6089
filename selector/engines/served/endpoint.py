"""Servers that run already: nothing is launched, and what they cannot tell is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from selector.engines.served.base import OpenServer, Schedule
from selector.engines.served.client import Client
from selector.engines.served.models import drafter_info, model_info
from selector.errors import SelectorError
from selector.profile import DrafterInfo, EngineInfo, ModelInfo
from selector.strategy import Method, Strategy


class EndpointServers:
    """`urls`: strategy -> base URL. They must serve the same model; whoever started them knows what they decode by."""

    def __init__(
        self,
        urls: Mapping[Strategy, str],
        model: str | None,
        drafters: Mapping[str, DrafterInfo],
        *,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.urls, self._say = dict(urls), say or (lambda text: None)
        self._clients = {s: Client(url) for s, url in self.urls.items()}
        first = next(iter(self._clients.values()))
        self._target = model_info(model or first.models()[0], "auto", first.max_model_len())
        self._drafters = dict(drafters)

    @property
    def target(self) -> ModelInfo:
        """The model as its servers name it; sizes are known when its files are here (MODEL)."""
        return self._target

    @property
    def drafters(self) -> Mapping[str, DrafterInfo]:
        """The drafters that the strategies name."""
        return self._drafters

    @property
    def running(self) -> list[Strategy]:
        """What the servers decode by."""
        return list(self.urls)

    @property
    def settings(self) -> Mapping[str, object]:
        """Where the servers are."""
        return {"engine": "endpoint", "urls": {s.label: url for s, url in self.urls.items()}}

    def unmet(self, method: Method, *, asked: bool) -> str | None:
        """They run already."""
        return None

    def valid_k(self, strategy: Strategy) -> tuple[int, ...]:
        """The one that runs."""
        return (strategy.k,)

    @contextmanager
    def open(self, strategy: Strategy, *, schedule: Schedule | None, max_batch: int) -> Iterator[OpenServer]:
        """The running server of this strategy; it is neither started nor stopped."""
        if strategy not in self._clients:
            raise SelectorError(f"no --base-url decodes by {strategy.label}")
        client = self._clients[strategy]
        info = EngineInfo(name="endpoint", version="unknown", dtype="unknown", device="unknown", threads=0)
        yield OpenServer(client, 0.0, info, lambda: None)


def named_drafters(paths: Mapping[str, tuple[Method, Path]], model: str | None) -> dict[str, DrafterInfo]:
    """What is known of the drafters whose folders are given; the others are known by name alone."""
    target = model_info(model or "unknown", "auto")
    return {n: drafter_info(n, method, path, target, "auto", ()) for n, (method, path) in paths.items()}
