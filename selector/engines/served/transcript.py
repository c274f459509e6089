"""Chunks of a stream put together to an `Answer`."""

from __future__ import annotations

from typing import Any

from selector.engines.served.answer import Answer, within_output


class Transcript:
    """Takes the chunks of one request in order. Raises KeyError, TypeError, … on chunks of a foreign shape."""

    def __init__(self, digest: str, sent: float) -> None:
        self.digest, self.sent = digest, sent
        self.request_id = ""
        self.finish: str | None = None
        self.output_tokens: int | None = None
        self.has_token_ids = False
        self.usage_chunks = 0
        self._prompt_ids: tuple[int, ...] = ()
        self._prompt_tokens = 0
        self._cached: int | None = None
        self._ids: list[int] = []
        self._text: list[str] = []
        self._chunks: list[tuple[float, int | None]] = []
        self._speculation: dict[str, Any] | None = None

    @property
    def tells_acceptance(self) -> bool:
        """The server counts accepted drafts per request."""
        return self._speculation is not None

    def take(self, at: float, event: dict[str, Any]) -> None:
        """Read one chunk that arrived at `at` (seconds, monotonic)."""
        self.request_id = event.get("id") or self.request_id
        self._speculation = (event.get("metrics") or {}).get("speculative_decoding") or self._speculation
        before = self.output_tokens or 0
        self._count(event.get("usage"), of_chunk=bool(event.get("choices")))
        for choice in event.get("choices") or ():
            # chat answers carry the prompt beside the choices, completions inside
            prompt = choice.get("prompt_token_ids") or event.get("prompt_token_ids")
            self._prompt_ids = tuple(prompt) if prompt else self._prompt_ids
            text = _text(choice)
            tokens: int | None = None
            if (ids := choice.get("token_ids")) is not None:
                self.has_token_ids = True
                self._ids += ids
                tokens = len(ids)
            elif event.get("usage"):
                tokens = (self.output_tokens or 0) - before
            if tokens or (tokens is None and text):  # the role and the finish may come in chunks of their own
                self._chunks.append((at, tokens))
            self._text.append(text)
            self.finish = choice.get("finish_reason") or self.finish

    def _count(self, usage: dict[str, Any] | None, *, of_chunk: bool) -> None:
        if not usage:
            return
        self.usage_chunks += of_chunk
        self._prompt_tokens = int(usage["prompt_tokens"])
        self.output_tokens = int(usage.get("completion_tokens") or 0)
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        self._cached = self._cached if cached is None else int(cached)

    def answer(self, done: float, *, whole: bool = True) -> Answer:
        """What has arrived until `done`; with `whole` false it is marked as unfinished."""
        tokens = self.output_tokens or len(self._ids)
        accepted, drafted = self._per_step()
        return Answer(
            request_id=self.request_id,
            digest=self.digest,
            prompt_ids=self._prompt_ids,
            output_ids=tuple(self._ids),
            text="".join(self._text),
            finish=self.finish if whole else None,
            prompt_tokens=self._prompt_tokens,
            output_tokens=tokens,
            cached_tokens=self._cached,
            sent=self.sent,
            done=done,
            chunks=tuple(self._chunks),
            accepted_per_step=None if accepted is None else within_output(accepted, tokens),
            drafted_per_step=drafted,
        )

    def _per_step(self) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
        told = self._speculation
        if told is None:
            return None, None
        if told.get("num_spec_steps") == 0:  # vLLM then leaves the lists out, whatever its level of detail
            return (), ()
        accepted, drafted = told.get("per_step_accepted"), told.get("per_step_drafted")
        return None if accepted is None else tuple(accepted), None if drafted is None else tuple(drafted)


def _text(choice: dict[str, Any]) -> str:
    """What a chunk adds to the text, reasoning included; arguments of tool calls count as text too."""
    delta = choice.get("delta")
    if delta is None:
        return choice.get("text") or ""
    calls = "".join((c.get("function") or {}).get("arguments") or "" for c in delta.get("tool_calls") or ())
    reasoning = delta.get("reasoning") or delta.get("reasoning_content") or ""
    return reasoning + (delta.get("content") or "") + calls
