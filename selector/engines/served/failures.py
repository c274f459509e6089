"""What can go wrong between us and a served engine, one clear sentence each."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal

from selector.errors import SelectorError

if TYPE_CHECKING:
    from selector.engines.served.answer import Answer

#: Where `Client` finds the bearer token when none is passed: a name of our own, so that a key meant for another
#: provider is never sent to whatever address is being measured.
KEY_VARIABLE = "SELECTOR_API_KEY"

Kind = Literal[
    "key", "model", "refused", "server", "stalled", "timeout", "dropped", "unreachable", "not-openai", "no-usage"
]


class RequestFailed(SelectorError):
    """A request to a served engine did not end in a whole answer; the message says what to look at.

    kind: what happened, in one word; status: the HTTP status, if there was one; partial: what had arrived by then (an
    `Answer` with `finish` None), or None if nothing had.
    """

    def __init__(self, message: str, *, kind: Kind, status: int | None = None, partial: Answer | None = None) -> None:
        self.kind, self.status, self.partial = kind, status, partial
        super().__init__(message)


def refusal(url: str, status: int, body: bytes, *, has_key: bool) -> RequestFailed:
    """The error for an answer that is not 200."""
    said = message_of(body)
    if status in (401, 403):
        which = f"the key in {KEY_VARIABLE}" if has_key else "requests without a key"
        return RequestFailed(
            f"{url} refuses {which} (HTTP {status}): set {KEY_VARIABLE} to the key that the server was started with",
            kind="key",
            status=status,
        )
    if said is None:
        return not_openai(url, body, status)
    if status == 404 and "model" in said:
        return RequestFailed(f"{url}: {said}", kind="model", status=status)
    if status == 404:
        return RequestFailed(
            f"{url}: not found; give the address of an OpenAI-compatible server, without a path or ending in /v1",
            kind="not-openai",
            status=status,
        )
    if status >= 500 or status == 429:
        return RequestFailed(
            f"{url}: the server failed (HTTP {status}): {said}; its log says more", kind="server", status=status
        )
    return RequestFailed(f"{url}: the server refused the request: {said}", kind="refused", status=status)


def not_openai(url: str, body: bytes, status: int | None = None) -> RequestFailed:
    """The error for a page, or anything else that is no OpenAI answer."""
    start = " ".join(body[:300].decode("utf-8", "replace").split())[:60]
    what = f"an answer starting {start!r}" if start else "an empty answer"
    return RequestFailed(
        f"{url} is not an OpenAI-compatible server ({what}): check the address and the port",
        kind="server" if status is not None and status >= 500 else "not-openai",
        status=status,
    )


def message_of(body: bytes) -> str | None:
    """The message in an error body: `{"error": {"message": …}}`, or text under error or detail; None: there is none."""
    try:
        told = json.loads(body)
    except ValueError:
        return None
    if not isinstance(told, dict):
        return None
    error = told.get("error", told.get("detail", told.get("message")))
    if isinstance(error, dict):
        error = error.get("message")
    return None if error is None else " ".join(str(error).split())
