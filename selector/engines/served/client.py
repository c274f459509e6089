"""A client of an OpenAI-compatible server that keeps the times and counts a measurement needs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from selector.engines.served.answer import Answer
from selector.engines.served.failures import KEY_VARIABLE, RequestFailed, not_openai
from selector.engines.served.features import Features
from selector.engines.served.job import Job
from selector.engines.served.prometheus import Counters, Gauges
from selector.engines.served.session import Session
from selector.workload import Request

T = TypeVar("T")

_CONNECT_SECONDS = 10.0


class Client:
    """Streams answers from a server; all methods block, `session` is for code that is asynchronous itself.

    base_url: with or without /v1. model: None takes the only one served. key: bearer token, by default what the
    environment variable SELECTOR_API_KEY holds. timeout: seconds for one whole answer; stall_seconds: the longest
    silence within it, waiting for the first byte included. Every method raises `RequestFailed`.
    """

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        *,
        key: str | None = None,
        timeout: float = 600.0,
        stall_seconds: float = 60.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        parts = urlsplit(self.base_url)
        try:
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port that is no number
            usable = False
        if not usable:
            raise RequestFailed(f"{base_url!r} is no address; write it as http://HOST:PORT", kind="unreachable")
        self._features = Features(model)
        self._key = (os.environ.get(KEY_VARIABLE, "") if key is None else key).strip()
        self._timeout, self._stall, self._transport = timeout, stall_seconds, transport
        # made once: reading the certificates takes longer than a short request
        self._tls = httpx.create_ssl_context() if parts.scheme == "https" else False
        # a proxy of the environment would stand between us and a server on this very machine
        self._trust_env = parts.hostname not in ("localhost", "127.0.0.1", "::1")

    @property
    def model(self) -> str | None:
        """The model asked for; None until the first request if none was named."""
        return self._features.model

    @property
    def lacks(self) -> tuple[str, ...]:
        """What this server was found not to have, sorted; empty before the first request.

        Of: return_token_ids, continuous_usage_stats, per-request metrics (rightly absent where nothing is speculated),
        seed, ignore_eos, min_tokens, chat template.
        """
        return self._features.lacks

    @asynccontextmanager
    async def session(self, connections: int | None = None) -> AsyncIterator[Session]:
        """A connection pool; it lives as long as one call, as servers drop connections that idle between calls."""
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        # compression would make the server or a proxy hold chunks back
        headers = {"accept-encoding": "identity"} | ({"authorization": f"Bearer {self._key}"} if self._key else {})
        async with httpx.AsyncClient(
            base_url=self.base_url,
            headers=headers,
            timeout=httpx.Timeout(self._stall, connect=_CONNECT_SECONDS, pool=None),
            limits=limits,
            transport=self._transport,
            verify=self._tls,
            trust_env=self._trust_env,
        ) as http:
            yield Session(http, self._features, timeout=self._timeout, stall_seconds=self._stall)

    def _call(self, what: Callable[[Session], Awaitable[T]]) -> T:
        async def call() -> T:
            async with self.session() as session:
                return await what(session)

        return asyncio.run(call())

    def prepare(self) -> tuple[str, ...]:
        """Find out what the server lacks, for chats and for token ids, before anything is timed or counted.

        Otherwise the first request of each kind does so, with a few tokens that show in the server's counters.
        """

        async def prepare(session: Session) -> tuple[str, ...]:
            for prompt in (Request(prompt="Hello"), (1, 2, 3)):
                await session.path(Job(prompt, 1))
            return self.lacks

        return self._call(prepare)

    def ask(self, job: Job) -> Answer:
        """One streamed answer."""
        return self._call(lambda session: session.ask(job))

    def complete(self, request: Request, *, seed: int | None = None, ignore_eos: bool = False) -> Answer:
        """Answer a workload's request: as a chat, or as plain text where the model has no chat template."""
        return self.ask(Job.of(request, seed=seed, ignore_eos=ignore_eos))

    def complete_ids(
        self,
        prompt_ids: Sequence[int],
        max_tokens: int,
        temperature: float = 0.0,
        top_p: float = 1.0,
        ignore_eos: bool = True,
        min_tokens: int = 0,
        seed: int | None = None,
    ) -> Answer:
        """Continue exact token ids, for probes of a known length."""
        return self.ask(Job(tuple(prompt_ids), max_tokens, temperature, top_p, ignore_eos, min_tokens, seed))

    def models(self) -> list[str]:
        """Names of the models served."""
        return self._call(lambda session: session.models())

    def max_model_len(self) -> int | None:
        """Longest context in tokens; None where the server does not list it."""
        return self._call(lambda session: session.max_model_len())

    def tokenize(self, request: Request) -> tuple[int, ...] | None:
        """The request's token ids after the chat template; None where the server has no /tokenize (only vLLM has)."""

        async def tokenize(session: Session) -> tuple[int, ...] | None:
            body: dict[str, Any] = {"model": await session.model(), "messages": request.chat}
            told = await self._optional(session, "POST", "/tokenize", body)
            return None if told is None else tuple(told["tokens"])

        return self._call(tokenize)

    def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache; False where it cannot be (vLLM needs VLLM_SERVER_DEV_MODE=1 in its environment)."""

        async def reset(session: Session) -> bool:
            try:
                await session.fetch_bytes("POST", "/reset_prefix_cache")
            except RequestFailed as error:
                if error.status in (404, 405):
                    return False
                raise
            return True

        return self._call(reset)

    def counters(self) -> Counters | None:
        """All metrics as they stand; None where the server shows none."""
        text = self._call(self._metrics)
        return None if text is None else Counters.parse(text)

    def gauges(self) -> Gauges:
        """Requests running and waiting, KV cache use; a cheap look for polling under load."""
        text = self._call(self._metrics)
        return Gauges.parse(text or "")

    async def _metrics(self, session: Session) -> str | None:
        try:
            return (await session.fetch_bytes("GET", "/metrics")).decode("utf-8", "replace")
        except RequestFailed as error:
            if error.status in (404, 405):
                return None
            raise

    @staticmethod
    async def _optional(session: Session, method: str, path: str, body: dict[str, Any]) -> dict[str, list[int]] | None:
        try:
            told = await session.fetch(method, path, body)
        except RequestFailed as error:
            if error.status in (404, 405):
                return None
            raise
        if not isinstance(told, dict) or "tokens" not in told:
            raise not_openai(session.url(path), str(told).encode())
        return told
