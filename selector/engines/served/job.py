"""What is asked of a served engine, and how it is written down for one."""

from __future__ import annotations

import hashlib
from collections.abc import Set
from dataclasses import dataclass
from typing import Any

from selector.workload import Request

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"

#: Fields that not every OpenAI-compatible server takes; each is left out where it is refused.
EXTRAS = ("return_token_ids", "continuous_usage_stats", "seed", "ignore_eos", "min_tokens")


@dataclass(frozen=True)
class Job:
    """One request with its limits. `prompt`: a workload's request, or token ids (for probes of an exact length)."""

    prompt: Request | tuple[int, ...]
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    ignore_eos: bool = False
    min_tokens: int = 0
    seed: int | None = None

    @classmethod
    def of(cls, request: Request, *, seed: int | None = None, ignore_eos: bool = False) -> Job:
        """A workload's request with its own limits and sampling."""
        return cls(request, request.max_tokens, request.temperature, request.top_p, ignore_eos=ignore_eos, seed=seed)

    @property
    def digest(self) -> str:
        """16 hex digits that tell prompts apart; a request's is `Request.digest`."""
        if isinstance(self.prompt, Request):
            return self.prompt.digest
        return hashlib.sha256(",".join(map(str, self.prompt)).encode()).hexdigest()[:16]

    def path(self, *, has_template: bool) -> str:
        """Where it is sent: chat if it is one and the server can render it, else completions."""
        return CHAT if isinstance(self.prompt, Request) and has_template else COMPLETIONS

    def body(self, path: str, model: str, lacks: Set[str]) -> dict[str, Any]:
        """The JSON to send to `path`, without the extra fields that the server lacks."""
        body: dict[str, Any] = {"model": model, "max_tokens": self.max_tokens, "stream": True}
        # always both: what is left out, vLLM takes from the model's generation_config.json
        body |= {"temperature": self.temperature, "top_p": self.top_p}
        extra: dict[str, Any] = {"return_token_ids": True, "continuous_usage_stats": True, "seed": self.seed}
        extra |= {"ignore_eos": self.ignore_eos or None, "min_tokens": self.min_tokens or None}
        extra = {name: value for name, value in extra.items() if value is not None and name not in lacks}
        body["stream_options"] = {"include_usage": True} | {
            name: extra.pop(name) for name in ("continuous_usage_stats",) if name in extra
        }
        return body | extra | self._prompt(path)

    def _prompt(self, path: str) -> dict[str, Any]:
        if not isinstance(self.prompt, Request):
            return {"prompt": list(self.prompt)}
        if path == CHAT:
            return {"messages": self.prompt.chat}
        return {"prompt": joined_text(self.prompt.chat)}


def joined_text(messages: list[dict[str, Any]]) -> str:
    """All turns as plain text, for models without a chat template."""
    parts: list[str] = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, str):
            parts.append(content)
        elif isinstance(content, (list, tuple)):
            parts += [p["text"] for p in content if isinstance(p, dict) and isinstance(p.get("text"), str)]
    return "\n\n".join(parts)
