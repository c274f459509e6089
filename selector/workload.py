"""What the traffic looks like: requests read from JSONL, grouped into classes."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator

from selector.errors import WorkloadError
from selector.resources import data_dir
from selector.strategy import Frozen

DEFAULT_MAX_TOKENS = 128
_MAX_NESTING = 64
#: What request traces hold in place of text (Mooncake's format).
_TRACE_KEYS = {"input_length", "output_length", "hash_ids"}


class Request(Frozen):
    """One request of a workload. Either `prompt` (one user turn) or `messages` (OpenAI chat form)."""

    prompt: str | None = None
    messages: tuple[dict[str, Any], ...] | None = None
    task: str = Field(default="default", alias="class", min_length=1)
    temperature: Annotated[float, Field(ge=0, le=5)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    max_tokens: Annotated[int, Field(ge=1, le=131072)] = DEFAULT_MAX_TOKENS
    output: str | None = None

    model_config = Frozen.model_config | {"populate_by_name": True}

    @model_validator(mode="after")
    def _has_text(self) -> Self:
        for key, value in {"class": self.task, "prompt": self.prompt, "output": self.output}.items():
            _check_text(value, key)
        _check_text(self.messages, "messages")
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give exactly one of 'prompt' and 'messages'")
        if self.prompt is not None and not self.prompt.strip():
            raise ValueError("'prompt' is empty")
        if self.messages is not None and not any(m.get("role") == "user" for m in self.messages):
            raise ValueError("'messages' holds no user turn")
        return self

    @property
    def request_class(self) -> str:
        """Class name with its sampling, the key everything is measured by: `chat`, `chat, t=0.8`."""
        return class_name(self.task, self.temperature, self.top_p)

    @property
    def chat(self) -> list[dict[str, Any]]:
        """The request as chat messages."""
        if self.messages is not None:
            return [dict(m) for m in self.messages]
        return [{"role": "user", "content": self.prompt}]

    @property
    def digest(self) -> str:
        """First 16 hex digits of the SHA-256 of what the model would see."""
        body = json.dumps(self.chat, ensure_ascii=False, sort_keys=True)
        return hashlib.sha256(body.encode()).hexdigest()[:16]


class Workload:
    """Requests in file order, with the digest of their content."""

    def __init__(self, requests: Sequence[Request], source: str) -> None:
        if not requests:
            raise WorkloadError(f"{source}: no usable request in it")
        self.requests = tuple(requests)
        self.source = source
        #: Temperatures that sampled requests were moved up to; None: they keep their own.
        self.temperature_bands: tuple[float, ...] | None = None
        self._check_names()

    def _check_names(self) -> None:
        """A greedy class called `chat, t=0.8` and `chat` at temperature 0.8 would be measured as one."""
        keys: dict[str, tuple[str, float, float]] = {}
        for r in self.requests:
            key = (r.task, r.temperature, r.top_p if r.temperature > 0 else 1.0)
            known = keys.setdefault(r.request_class, key)
            if known != key:
                (one, *first), (two, *second) = known, key
                raise WorkloadError(
                    f"{self.source}: two different classes print as {r.request_class!r}: class {one!r} at temperature, "
                    f"top_p {first} and class {two!r} at {second}; rename one"
                )

    @property
    def digest(self) -> str:
        """SHA-256 over every request's class, limits and content, in order (64 hex digits)."""
        total = hashlib.sha256()
        for r in self.requests:
            total.update(f"{r.request_class}|{r.max_tokens}|{r.digest}\n".encode())
        return total.hexdigest()

    def banded(self, edges: Sequence[float]) -> Workload:
        """Sampled requests moved up to the nearest of these temperatures, so that few classes hold many requests.

        Higher, as the router takes the nearest higher class: greedy drafts are mostly accepted less often there. That
        is a rule of thumb, not a bound (drawn drafts can gain with temperature): narrow bands err little either way.
        Raises `WorkloadError` for a temperature above all edges.
        """
        moved = []
        for r in self.requests:
            above = [e for e in edges if e >= r.temperature]
            if r.temperature > 0 and not above:
                raise WorkloadError(
                    f"{self.source}: a request has temperature {r.temperature:g}, above every temperature band "
                    f"({', '.join(f'{e:g}' for e in sorted(edges))}): add a band that holds it"
                )
            moved.append(r if r.temperature == 0 else r.model_copy(update={"temperature": min(above)}))
        banded = Workload(moved, self.source)
        banded.temperature_bands = tuple(sorted(edges))
        return banded

    def by_class(self) -> dict[str, list[Request]]:
        """Requests per class name, classes in order of first appearance, repeated prompts dropped."""
        groups: dict[str, dict[str, Request]] = {}
        for r in self.requests:
            groups.setdefault(r.request_class, {}).setdefault(r.digest, r)
        return {name: list(rs.values()) for name, rs in groups.items()}


def class_name(task: str, temperature: float, top_p: float) -> str:
    """`task` alone for greedy requests, else with the sampling that changes acceptance."""
    if temperature == 0:
        return task
    return f"{task}, t={temperature:g}" + (f", top_p={top_p:g}" if top_p < 1 else "")


def load_workload(path: str | Path | None = None) -> Workload:
    """Read a workload: a JSONL file, a TOML manifest of several, or (None) the shipped default.

    Raises `WorkloadError` naming file and line.
    """
    file = data_dir("profiles") / "workloads" / "default.toml" if path is None else Path(path)
    try:
        found = file.is_file()
    except (OSError, ValueError):  # a name too long, or with a NUL in it
        found = False
    if not found:
        raise WorkloadError(f"{file}: no such workload file")
    source = "default" if path is None else str(path)
    requests = _read_manifest(file) if file.suffix == ".toml" else _read_jsonl(file)
    return Workload(requests, source)


def _read_manifest(file: Path) -> list[Request]:
    try:
        entries = tomllib.loads(file.read_text("utf-8"))["class"]
    except (ValueError, KeyError, RecursionError, OSError) as error:  # TOML and UTF-8 errors are ValueErrors
        raise WorkloadError(f"{file}: not a workload manifest with [[class]] entries ({error})") from error
    if not isinstance(entries, list):
        raise WorkloadError(f"{file}: 'class' is {type(entries).__name__}, not a list of [[class]] entries")
    requests: list[Request] = []
    for i, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise WorkloadError(f"{file}: class entry {i + 1} is {type(entry).__name__}, not a [[class]] table")
        unknown = set(entry) - {"file", "temperature", "top_p", "max_tokens"}
        if "file" not in entry or unknown:
            raise WorkloadError(
                f"{file}: [[class]] entry {i + 1} needs 'file' and allows temperature, top_p, max_tokens"
                + (f"; unknown: {', '.join(sorted(unknown))}" if unknown else "")
            )
        settings = {k: v for k, v in entry.items() if k != "file"}
        if not isinstance(entry["file"], str):
            raise WorkloadError(
                f"{file}: [[class]] entry {i + 1}: file: a path, this is {type(entry['file']).__name__}"
            )
        for r in _read_jsonl(file.parent / entry["file"]):
            try:
                requests.append(Request.model_validate(r.model_dump(by_alias=True) | settings))
            except ValidationError as error:
                raise WorkloadError(f"{file}: [[class]] entry {i + 1}: {first_problem(error)}") from error
    return requests


def _read_jsonl(file: Path) -> list[Request]:
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise WorkloadError(f"{file}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise WorkloadError(f"{file}: not UTF-8 at byte {error.start}; convert it first (iconv -t UTF-8)") from error
    except ValueError as error:
        raise WorkloadError(f"{file}: cannot be read ({error})") from error
    lines = text.split("\n")  # splitlines() would also break at U+2028 inside a string
    return [_parse(file, n, line) for n, line in enumerate(lines, 1) if line.strip()]


def _parse(file: Path, number: int, line: str) -> Request:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise WorkloadError(f"{file}:{number}: not JSON ({error.msg} at column {error.colno})") from error
    except RecursionError as error:
        raise WorkloadError(f"{file}:{number}: nested too deeply") from error
    except ValueError as error:  # a number of thousands of digits
        raise WorkloadError(f"{file}:{number}: {error}") from error
    if not isinstance(row, dict):
        raise WorkloadError(f"{file}:{number}: a request is a JSON object, this is {type(row).__name__}")
    if _TRACE_KEYS & row.keys() and not {"prompt", "messages"} & row.keys():
        raise WorkloadError(
            f"{file}:{number}: no text in it, only {', '.join(row)}: acceptance depends on the text and cannot be "
            "measured from this file. It may be used for arrival times and lengths only; give a workload with 'prompt' "
            "or 'messages'"
        )
    try:
        return Request.model_validate(row)
    except ValidationError as error:
        known = "prompt or messages, class, temperature, top_p, max_tokens, output"
        hint = f" (a request may hold {known})" if error.errors()[0]["type"] == "extra_forbidden" else ""
        raise WorkloadError(f"{file}:{number}: {first_problem(error)}{hint}") from error


def _check_text(value: Any, key: str, depth: int = 0) -> None:
    """Refuse what cannot be encoded or digested later: lone surrogates, nesting without end."""
    if depth > _MAX_NESTING:
        raise ValueError(f"{key!r} is nested too deeply (more than {_MAX_NESTING} levels)")
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
            raise ValueError(f"{key!r} holds a lone surrogate (half of a character): write the whole character")
    elif isinstance(value, dict):
        for name, part in value.items():
            _check_text(name, key, depth + 1)
            _check_text(part, key, depth + 1)
    elif isinstance(value, (list, tuple)):
        for part in value:
            _check_text(part, key, depth + 1)


def first_problem(error: ValidationError) -> str:
    """The first complaint of a pydantic error as one line with its key."""
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"])
    message = "unknown key" if problem["type"] == "extra_forbidden" else str(problem["msg"])
    message = message.removeprefix("Value error, ")
    return f"{where}: {message}" if where else message


def texts(requests: Iterable[Request]) -> list[str]:
    """What a classifier may read of each request: the user turns, joined."""
    return [user_text(r.chat) for r in requests]


def user_text(messages: Iterable[Any]) -> str:
    """All text of the user turns; anything that is not text (images, tool calls, null) is passed over."""
    parts: list[str] = []
    for m in messages:
        if not isinstance(m, dict) or m.get("role") != "user":
            continue
        content = m.get("content")
        if isinstance(content, str):
            parts.append(content)
        elif isinstance(content, (list, tuple)):
            parts += [str(p["text"]) for p in content if isinstance(p, dict) and isinstance(p.get("text"), str)]
    return "\n".join(parts)
