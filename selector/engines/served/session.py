"""An open connection pool to a server: one streamed request, and what the server can do."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx

from selector.engines.served import failures
from selector.engines.served.answer import Answer
from selector.engines.served.events import DONE, Events
from selector.engines.served.failures import RequestFailed
from selector.engines.served.features import Features
from selector.engines.served.job import Job
from selector.engines.served.transcript import Transcript


class Session:
    """Made by `Client.session()`; use it inside that `async with`. Many requests may be under way at once."""

    def __init__(self, http: httpx.AsyncClient, features: Features, *, timeout: float, stall_seconds: float) -> None:
        self._http, self.features = http, features
        self._timeout, self._stall = timeout, stall_seconds
        self._finding_out = asyncio.Lock()

    async def ask(self, job: Job) -> Answer:
        """Send one request and read its stream to the end. Raises `RequestFailed`."""
        path = await self.path(job)
        body = job.body(path, await self.model(), self.features.lacking[path])
        transcript = await self.exchange(path, body, job.digest)
        return transcript.answer(time.monotonic())

    async def path(self, job: Job) -> str:
        """Where this job goes; finds out, once for each path, which optional fields the server takes."""
        while (path := job.path(has_template=self.features.has_template)) not in self.features.lacking:
            async with self._finding_out:
                if path not in self.features.lacking:
                    await self.features.find_out(self, path, job.prompt)
        return path

    async def model(self) -> str:
        """The model asked for, or the only one served. Raises `RequestFailed` if there are several."""
        if self.features.model is None:
            names = await self.models()
            if len(names) != 1:
                offered = ", ".join(names) or "none"
                raise RequestFailed(f"{self.url('/v1/models')}: name the model; served are: {offered}", kind="model")
            self.features.model = names[0]
        return self.features.model

    async def models(self) -> list[str]:
        """Names of the models served."""
        listing = await self.fetch("GET", "/v1/models")
        try:
            return [str(entry["id"]) for entry in listing["data"]]
        except (KeyError, TypeError) as error:
            raise failures.not_openai(self.url("/v1/models"), json.dumps(listing).encode()) from error

    async def max_model_len(self) -> int | None:
        """Longest context in tokens of the first model, as vLLM lists it; None: not told."""
        listing = await self.fetch("GET", "/v1/models")
        told = listing["data"][0].get("max_model_len") if await self.models() else None
        return told if isinstance(told, int) else None

    def url(self, path: str) -> str:
        """The full address of a path."""
        return str(self._http.base_url).rstrip("/") + path

    async def fetch(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """A short request's JSON answer. Raises `RequestFailed`."""
        raw = await self.fetch_bytes(method, path, body)
        try:
            return json.loads(raw)
        except ValueError as error:
            raise failures.not_openai(self.url(path), raw) from error

    async def fetch_bytes(self, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
        """A short request's answer as it is. Raises `RequestFailed`."""
        try:
            response = await self._http.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise self._lost(error, path, None) from error
        if response.status_code != 200:
            raise failures.refusal(self.url(path), response.status_code, response.content, has_key=self._has_key)
        return response.content

    async def exchange(self, path: str, body: dict[str, Any], digest: str) -> Transcript:
        """One streamed exchange. Raises `RequestFailed` with what had arrived."""
        transcript = Transcript(digest, time.monotonic())
        try:
            async with asyncio.timeout(self._timeout), self._http.stream("POST", path, json=body) as response:
                if response.status_code != 200:
                    raw = await response.aread()
                    raise failures.refusal(self.url(path), response.status_code, raw, has_key=self._has_key)
                if "event-stream" not in response.headers.get("content-type", "event-stream"):
                    raise failures.not_openai(self.url(path), await response.aread())
                ended = await self._read(response, path, transcript)
        except RequestFailed as error:
            if error.kind == "model":
                raise await self._with_models(error) from error
            error.partial = error.partial or _partial(transcript)
            raise
        except TimeoutError as error:
            text = f"no whole answer within {self._timeout:g} s: raise the timeout, or ask for fewer tokens"
            raise self._failed(path, text, "timeout", transcript) from error
        except httpx.HTTPError as error:
            raise self._lost(error, path, transcript) from error
        if not ended and transcript.finish is None:
            raise self._lost(None, path, transcript)
        if transcript.output_tokens is None:
            text = (
                "the answer holds no usage, and tokens are not counted in any other way: this server cannot be measured"
            )
            raise self._failed(path, text, "no-usage", transcript)
        return transcript

    async def _read(self, response: httpx.Response, path: str, transcript: Transcript) -> bool:
        """Read the stream; whether its end was marked."""
        events, ended = Events(), False
        async for piece in response.aiter_bytes():
            now = time.monotonic()  # before any parsing
            ended |= self._take(events.feed(piece), now, path, transcript)
        return self._take(events.end(), time.monotonic(), path, transcript) or ended

    def _take(self, events: list[bytes], now: float, path: str, transcript: Transcript) -> bool:
        ended = False
        for data in events:
            if data == DONE:
                ended = True
                continue
            try:
                event = json.loads(data)
                if event.get("error"):
                    text = f"the server failed in mid-stream: {failures.message_of(data)}; its log says more"
                    raise self._failed(path, text, "server", transcript)
                transcript.take(now, event)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise failures.not_openai(self.url(path), data) from error
        return ended

    @property
    def _has_key(self) -> bool:
        return "authorization" in self._http.headers

    def _failed(self, path: str, text: str, kind: failures.Kind, transcript: Transcript | None) -> RequestFailed:
        partial = None if transcript is None else _partial(transcript)
        after = f" (after {partial.output_tokens} tokens)" if partial is not None else ""
        return RequestFailed(f"{self.url(path)}: {text}{after}", kind=kind, partial=partial)

    def _lost(self, error: httpx.HTTPError | None, path: str, transcript: Transcript | None) -> RequestFailed:
        """The error for a connection that never came, fell silent, or broke."""
        if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol)):
            text = f"nothing answers ({error}): is the server running, and is this its address?"
            return self._failed(path, text, "unreachable", transcript)
        if isinstance(error, httpx.TimeoutException):
            text = f"no byte for {self._stall:g} s: the server hangs or queues; lower the load or raise stall_seconds"
            return self._failed(path, text, "stalled", transcript)
        why = f" ({error})" if error is not None and str(error) else ""
        text = f"the server closed the connection in the middle of an answer{why}: it may have died; its log says more"
        return self._failed(path, text, "dropped", transcript)

    async def _with_models(self, error: RequestFailed) -> RequestFailed:
        try:
            served = ", ".join(await self.models())
        except RequestFailed:  # the first message is the one that matters
            return error
        return RequestFailed(f"{error}; served are: {served}", kind="model", status=error.status)


def _partial(transcript: Transcript) -> Answer | None:
    answer = transcript.answer(time.monotonic(), whole=False)
    return answer if answer.request_id or answer.chunks else None
