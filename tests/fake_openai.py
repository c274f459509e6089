"""A scripted server with the interface of `vllm serve`, for tests of everything that talks to one.

In a test: `with FakeOpenAI(Script(acceptance=0.6, k=4)) as server: Client(server.url)`.
As a process: `python -m tests.fake_openai --port N [--config FILE] [--speculative-config JSON] ...`, which ignores all
other options of `vllm serve`; the environment variable FAKE_OPENAI may hold a Script's fields as JSON.

It decodes in steps shared by all running requests, so that counters, queueing and lockstep behave as in an engine. Its
tokens depend on prompt and position only: speculation never changes an output, and runs of one script are all alike.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import yaml

EOS = 2
WORDS = 50_000


@dataclass(frozen=True)
class Script:
    """What the server does; times are seconds.

    A step takes step_seconds + token_seconds x tokens in it (1 + k for each request) + draft_seconds x k; a prefill
    step takes token_seconds x prompt tokens more. acceptance: probability that a draft is accepted, after those before
    it. schedule: (first batch, last batch, k) as vLLM's num_speculative_tokens_per_batch_size.
    """

    model: str = "t"
    step_seconds: float = 0.001
    token_seconds: float = 0.0
    draft_seconds: float = 0.0
    k: int = 0
    acceptance: float = 0.6
    schedule: tuple[tuple[int, int, int], ...] = ()
    max_num_seqs: int = 64
    stops_after: int | None = None
    key: str | None = None
    start_seconds: float = 0.0
    # what it lacks
    refuses: tuple[str, ...] = ()
    ignores: tuple[str, ...] = ()
    has_template: bool = True
    per_step: bool = True
    stats: bool = True
    chunk_steps: int = 1
    # faults: 500 to requests after so many; a stream that falls silent, or a server that dies, after so many chunks
    fails_after: int | None = None
    stalls_after: int | None = None
    dies_after: int | None = None


@dataclass
class Running:
    """A request in the engine."""

    ids: tuple[int, ...]
    max_tokens: int
    ignore_eos: bool
    script: Script
    out: queue.Queue[tuple[list[int], str | None] | None] = field(default_factory=queue.Queue)
    produced: int = 0
    accepted: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    cancelled: bool = False

    def token(self, position: int) -> int:
        if self.script.stops_after is not None and position + 1 == self.script.stops_after and not self.ignore_eos:
            return EOS
        return 3 + hash((self.ids, position)) % WORDS

    def step(self, k: int) -> str | None:
        """One engine step; the finish reason when it was the last."""
        got = 0
        if self.produced:
            draws = random.Random(hash((self.ids, self.produced)))
            while got < k and draws.random() < self.script.acceptance:
                got += 1
            if k:
                self.accepted.append(got)
                self.drafted.append(k)
        tokens = []
        finish = None
        for _ in range(1 + got):
            tokens.append(self.token(self.produced))
            self.produced += 1
            stopped = tokens[-1] == EOS
            if stopped or self.produced >= self.max_tokens:
                finish = "stop" if stopped else "length"
                break
        self.out.put((tokens, finish))
        return finish


class FakeOpenAI:
    """The server; `url` is where it listens. Use it as a context manager, or `serve` in a process of its own."""

    def __init__(self, script: Script | None = None, *, port: int = 0) -> None:
        self.script = script or Script()
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.counts = dict.fromkeys(("steps", "prompt", "generated", "drafts", "drafted", "accepted", "finished"), 0)
        self.per_position: dict[int, int] = {}
        self.running: list[Running] = []
        self.waiting: list[Running] = []
        self.born = time.time()
        self._wake = threading.Condition()
        self._closing = False
        self._open: set[socket.socket] = set()
        self.http = _Server(("127.0.0.1", port), _Handler)
        self.http.fake = self

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_address[1]}"

    def __enter__(self) -> Self:
        self._threads = [threading.Thread(target=t, daemon=True) for t in (self._engine, self._serve)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        self.http.serve_forever(poll_interval=0.01)

    def close(self) -> None:
        """Stop, cutting open connections, as a killed server does."""
        with self._wake:
            if self._closing:
                return
            self._closing = True
            self._wake.notify_all()
        threading.Thread(target=self.http.shutdown, daemon=True).start()
        self.http.server_close()
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def submit(self, request: Running) -> None:
        with self._wake:
            self.waiting.append(request)
            self._wake.notify_all()

    def k(self, batch: int) -> int:
        for first, last, k in self.script.schedule:
            if first <= batch <= last:
                return min(k, self.script.k)
        return self.script.k

    def _engine(self) -> None:
        while True:
            with self._wake:
                while not (self.running or self.waiting or self._closing):
                    self._wake.wait()
                if self._closing:
                    break
                self.running = [r for r in self.running if not r.cancelled]
                room = self.script.max_num_seqs - len(self.running)
                new, self.waiting = self.waiting[:room], self.waiting[room:]
                self.running += new
                batch = list(self.running)
            if batch:
                self._step(batch, sum(len(r.ids) for r in new))
        for request in self.running + self.waiting:
            request.out.put(None)

    def _step(self, batch: list[Running], prefilled: int) -> None:
        k, script = self.k(len(batch)), self.script
        tokens = len(batch) * (1 + k) + prefilled
        time.sleep(script.step_seconds + script.token_seconds * tokens + script.draft_seconds * k)
        ended = []
        with self._wake:
            self.counts["steps"] += 1
            self.counts["prompt"] += prefilled
            for request in batch:
                before, speculated = request.produced, len(request.accepted)
                if request.step(k) is not None:
                    ended.append(request)
                    self.counts["finished"] += 1
                self.counts["generated"] += request.produced - before
                for accepted, drafted in zip(request.accepted[speculated:], request.drafted[speculated:], strict=True):
                    self.counts["drafts"] += 1
                    self.counts["drafted"] += drafted
                    self.counts["accepted"] += accepted
                    for position in range(accepted):
                        self.per_position[position] = self.per_position.get(position, 0) + 1
            self.running = [r for r in self.running if r not in ended]

    def metrics(self) -> str:
        """/metrics in vLLM's words."""
        labels = f'engine="0",model_name="{self.script.model}"'
        lines = ["# TYPE process_start_time_seconds gauge", f"process_start_time_seconds {self.born}"]
        c = self.counts
        gauges = {"num_requests_running": len(self.running), "num_requests_waiting": len(self.waiting)}
        gauges["kv_cache_usage_perc"] = 0
        for name, value in gauges.items():
            lines += [f"# TYPE vllm:{name} gauge", f"vllm:{name}{{{labels}}} {float(value)}"]
        counters = {"prompt_tokens": c["prompt"], "generation_tokens": c["generated"], "num_preemptions": 0}
        counters |= {"prefix_cache_queries": 0, "prefix_cache_hits": 0, "request_success": c["finished"]}
        if self.script.k:
            counters |= {"spec_decode_num_drafts": c["drafts"], "spec_decode_num_draft_tokens": c["drafted"]}
            counters["spec_decode_num_accepted_tokens"] = c["accepted"]
            name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
            lines.append(f"# TYPE {name} counter")
            lines += [
                f'{name}{{{labels},position="{p}"}} {float(self.per_position.get(p, 0))}' for p in range(self.script.k)
            ]
        for name, value in counters.items():
            lines += [f"# TYPE vllm:{name}_total counter", f"vllm:{name}_total{{{labels}}} {float(value)}"]
        lines += ["# TYPE vllm:iteration_tokens_total histogram"]
        lines += [f"vllm:iteration_tokens_total_count{{{labels}}} {float(c['steps'])}"]
        return "\n".join(lines) + "\n"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256
    fake: FakeOpenAI

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Connections are cut on purpose here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # without it, every small chunk waits for the acknowledgement of the one before
    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.fake._open.add(self.connection)

    def finish(self) -> None:
        self.fake._open.discard(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def log_message(self, format: str, *args: object) -> None:
        """Silent: tests print what they want to see."""

    @property
    def fake(self) -> FakeOpenAI:
        return self.server.fake

    @property
    def script(self) -> Script:
        return self.server.fake.script

    def do_GET(self) -> None:
        if self.path == "/health":
            self._send(200, b"", "text/plain")
        elif self.path == "/metrics" and self.script.stats:
            self._send(200, self.fake.metrics().encode(), "text/plain; version=0.0.4")
        elif self.path == "/v1/models":
            if self._has_key():
                self._json(200, {"object": "list", "data": [{"id": self.script.model, "max_model_len": 1024}]})
        elif self.path == "/version":
            self._json(200, {"version": "0.32.0"})
        else:
            self._json(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        body: dict[str, Any] = json.loads(raw) if raw else {}
        if self.path == "/reset_prefix_cache":
            self._json(200, {"success": True})
        elif self.path == "/tokenize" and self._has_key():
            ids = _prompt_ids(body)
            self._json(200, {"count": len(ids), "max_model_len": 1024, "tokens": list(ids)})
        elif self.path in ("/v1/chat/completions", "/v1/completions"):
            if self._has_key() and self._accepts(body):
                self._generate(body)
        else:
            self._json(404, {"detail": "Not Found"})

    def _has_key(self) -> bool:
        if self.script.key is None or self.headers.get("authorization") == f"Bearer {self.script.key}":
            return True
        self._json(401, {"error": "Unauthorized"})
        return False

    def _accepts(self, body: dict[str, Any]) -> bool:
        self.fake.requests.append((self.path, body))
        if self.script.fails_after is not None and len(self.fake.requests) > self.script.fails_after:
            return self._refuse(500, "EngineCore encountered an issue. See stack trace for the root cause.")
        if body.get("model") != self.script.model:
            return self._refuse(404, f"The model `{body.get('model')}` does not exist.")
        given = set(body) | set(body.get("stream_options") or {})
        if refused := sorted(given & set(self.script.refuses)):
            return self._refuse(400, f"Unrecognized request argument supplied: {refused[0]}")
        if "messages" in body and not self.script.has_template:
            return self._refuse(400, "this model has no chat template, so you must provide one")
        return True

    def _refuse(self, status: int, message: str) -> bool:
        self._json(status, {"error": {"message": message, "type": "Error", "param": None, "code": status}})
        return False

    def _json(self, status: int, value: object) -> None:
        self._send(status, json.dumps(value).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _generate(self, body: dict[str, Any]) -> None:
        ignore_eos = bool(body.get("ignore_eos")) and "ignore_eos" not in self.script.ignores
        request = Running(_prompt_ids(body), int(body.get("max_tokens") or 16), ignore_eos, self.script)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.fake.submit(request)
        try:
            for number, event in enumerate(self._events(request, body), 1):
                self._chunk(f"data: {json.dumps(event)}\n\n".encode())
                if number == self.script.stalls_after:
                    request.cancelled = True
                    while not self.fake._closing and not _hung_up(self.connection):
                        time.sleep(0.01)
                if number == self.script.dies_after:
                    self.fake.close()
            if self.fake._closing:
                raise BrokenPipeError
            self._chunk(b"data: [DONE]\n\n")
            self.wfile.write(b"0\r\n\r\n")
        except OSError:  # the client went away, or this server is dying
            request.cancelled = True
            self.close_connection = True

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _events(self, request: Running, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        chat = "messages" in body
        options = body.get("stream_options") or {}
        with_ids = body.get("return_token_ids") and "return_token_ids" not in self.script.ignores
        with_usage = options.get("continuous_usage_stats") and "continuous_usage_stats" not in self.script.ignores
        base = {"id": f"{'chatcmpl' if chat else 'cmpl'}-{id(request):x}", "created": 0, "model": self.script.model}
        sent = 0

        def usage() -> dict[str, Any]:
            return {
                "prompt_tokens": len(request.ids),
                "completion_tokens": sent,
                "total_tokens": sent + len(request.ids),
            }

        for number, (tokens, finish) in enumerate(_batched(request, self.script.chunk_steps)):
            prompt = {"prompt_token_ids": list(request.ids)} if with_ids and number == 0 else {}
            if chat and number == 0:
                role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
                yield base | prompt | {"choices": [role]} | ({"usage": usage()} if with_usage else {})
                prompt = {}
            sent += len(tokens)
            text = "".join(f" w{t}" for t in tokens if t != EOS)
            choice: dict[str, Any] = {"index": 0, "finish_reason": finish, **prompt}
            choice |= {"delta": {"content": text}} if chat else {"text": text}
            choice |= {"token_ids": tokens} if with_ids else {}
            yield base | {"choices": [choice]} | ({"usage": usage()} if with_usage else {})
        if options.get("include_usage"):
            last = base | {"choices": [], "usage": usage() | {"prompt_tokens_details": {"cached_tokens": 0}}}
            yield last | ({"metrics": {"speculative_decoding": _speculation(request)}} if self._tells() else {})

    def _tells(self) -> bool:
        return self.script.k > 0 and self.script.per_step


def _batched(request: Running, steps: int) -> Iterator[tuple[list[int], str | None]]:
    """The engine's steps, `steps` of them to a chunk; like vLLM, the first and the last are sent at once."""
    held: list[int] = []
    count = 0
    first = True
    while (step := request.out.get()) is not None:
        tokens, finish = step
        held += tokens
        count += 1
        if first or finish or count == steps:
            yield held, finish
            held, count, first = [], 0, False
        if finish:
            return
    raise BrokenPipeError  # the engine died


def _speculation(request: Running) -> dict[str, Any]:
    told: dict[str, Any] = {"num_spec_steps": len(request.accepted), "num_spec_tokens": request.script.k}
    told["num_accepted_draft_tokens"] = sum(request.accepted)
    told["num_draft_tokens"] = sum(request.drafted)
    if request.accepted:
        told |= {"per_step_accepted": request.accepted, "per_step_drafted": request.drafted}
    return told


def _prompt_ids(body: dict[str, Any]) -> tuple[int, ...]:
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        return tuple(prompt)
    text = prompt if isinstance(prompt, str) else json.dumps(body.get("messages"), sort_keys=True)
    return tuple(3 + sum(word.encode()) % WORDS for word in text.split())


def _hung_up(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def script_of(arguments: list[str]) -> tuple[Script, int]:
    """The script and port that a `vllm serve` command line asks for."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for option in ("config", "port", "speculative-config", "served-model-name", "max-num-seqs", "api-key"):
        parser.add_argument(f"--{option}")
    parser.add_argument("--per-request-spec-decode-metrics", default=None)
    given, _ = parser.parse_known_args(arguments)
    options: dict[str, Any] = {}
    if given.config:
        with open(given.config, encoding="utf-8") as file:
            options = {name.replace("-", "_"): value for name, value in (yaml.safe_load(file) or {}).items()}
    options |= {name: value for name, value in vars(given).items() if value is not None}
    asked = {f.name for f in fields(Script)}
    script = replace(Script(per_step=False), **{k: v for k, v in _environment().items() if k in asked})
    names = options.get("served_model_name")
    script = replace(script, model=(names[0] if isinstance(names, list) else names) or script.model)
    script = replace(script, key=options.get("api_key") or script.key)
    script = replace(script, max_num_seqs=int(options.get("max_num_seqs") or script.max_num_seqs))
    if (speculative := options.get("speculative_config")) is not None:
        told = json.loads(speculative) if isinstance(speculative, str) else speculative
        schedule = tuple(tuple(row) for row in told.get("num_speculative_tokens_per_batch_size") or ())
        script = replace(script, k=int(told["num_speculative_tokens"]), schedule=schedule)
    if options.get("per_request_spec_decode_metrics") == "detailed":
        script = replace(script, per_step=True)
    return script, int(options.get("port") or 8000)


def _environment() -> dict[str, Any]:
    told: dict[str, Any] = json.loads(os.environ.get("FAKE_OPENAI") or "{}")
    return told


def main() -> None:
    """Serve until told to end (SIGTERM or Ctrl-C)."""
    script, port = script_of(sys.argv[1:])
    time.sleep(script.start_seconds)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with FakeOpenAI(script, port=port) as server:
        print(f"serving {script} at {server.url}", file=sys.stderr, flush=True)
        while not ended.wait(0.05):
            if server._closing:  # died on purpose
                sys.exit(1)


if __name__ == "__main__":
    main()
