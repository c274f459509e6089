"""The streaming client: recorded vLLM answers, servers that lack things, and everything that can break."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from selector.engines.served.answer import Answer
from selector.engines.served.client import Client
from selector.engines.served.events import Events
from selector.engines.served.failures import KEY_VARIABLE, RequestFailed
from selector.engines.served.job import CHAT, COMPLETIONS, Job
from selector.workload import Request
from tests.fake_openai import FakeOpenAI, Script

DATA = Path(__file__).parent / "data" / "vllm-0.32"
HELLO = Request(prompt="Say hello.", max_tokens=24)
Handler = Callable[[httpx.Request], httpx.Response]


def mocked(handler: Handler, **options: Any) -> Client:
    return Client("http://server:8000", "t", transport=httpx.MockTransport(handler), **options)


def recorded(name: str) -> Client:
    """A client whose server sends this recording to whatever it is asked."""
    stream = (DATA / f"{name}.sse").read_bytes()
    return mocked(lambda _: httpx.Response(200, content=stream, headers={"content-type": "text/event-stream"}))


def tokens(answer: Answer) -> list[int | None]:
    return [count for _, count in answer.chunks]


# recordings


def test_a_recorded_chat_is_read_whole() -> None:
    client = recorded("chat")
    answer = client.complete(HELLO)
    assert answer.request_id == "chatcmpl-874f5b165c50e1b5"
    assert answer.digest == HELLO.digest
    assert answer.text.startswith("1. Red: The most popular colour among the 11 colors of the rainbow.\n2. Blue")
    assert (answer.finish, answer.prompt_tokens, answer.output_tokens, answer.cached_tokens) == ("length", 34, 24, 0)
    assert (len(answer.prompt_ids), len(answer.output_ids)) == (34, 24)
    # the role comes in a chunk of its own, before the first token
    assert tokens(answer) == [1, 2, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1, 3, 2, 3, 1, 1]
    assert client.lacks == ()


def test_drafts_accepted_past_the_end_are_left_out() -> None:
    answer = recorded("chat").complete(HELLO)
    told = json.loads((DATA / "chat.sse").read_text().split("\n\n")[-3].removeprefix("data: "))
    raw = told["metrics"]["speculative_decoding"]["per_step_accepted"]
    assert answer.accepted_per_step == (*raw[:-1], raw[-1] - 1)
    assert answer.decode_steps == len(answer.chunks) - 1 == len(raw)
    assert answer.drafted_per_step == (4,) * 16


def test_a_recorded_completion_of_token_ids_is_read_whole() -> None:
    answer = recorded("completion").complete_ids([504, 3575, 282], 24)
    assert answer.prompt_ids[:3] == (504, 3575, 282)
    assert tokens(answer) == [1, 2, 3, 1, 1, 5, 2, 2, 1, 1, 2, 3]
    assert answer.accepted_per_step == (1, 2, 0, 0, 4, 1, 1, 0, 0, 1, 2)
    assert answer.text.startswith(" Madrid.\n\nThe answer is: 1.")


def test_one_token_has_no_time_per_token_and_no_step() -> None:
    answer = recorded("one-token").complete(HELLO)
    assert (answer.output_tokens, answer.decode_steps, answer.accepted_per_step) == (1, 0, ())
    assert (answer.tpot, answer.decode_seconds, answer.chunk_gaps, answer.buffered) == (None, None, (), False)
    assert answer.ttft is not None


def test_a_held_back_tool_call_has_no_chunk_latency() -> None:
    answer = recorded("tool-call").complete(HELLO)
    assert (answer.output_tokens, tokens(answer), answer.buffered) == (24, [19, 5], True)
    assert (answer.ttft, answer.decode_seconds, answer.chunk_gaps) == (None, None, None)
    assert answer.tpot == answer.request_seconds / 24


def test_tokens_are_never_counted_from_chunks() -> None:
    with pytest.raises(RequestFailed, match="holds no usage") as caught:
        recorded("bare").complete(HELLO)
    assert caught.value.kind == "no-usage"
    assert caught.value.partial is not None
    assert caught.value.partial.text == " Madrid.\n\nThe answer is: 1.\n"


def test_events_are_found_however_the_bytes_are_cut() -> None:
    stream = b': ping\r\n\r\ndata: {"a":1}\r\n\r\nevent: x\ndata:2\ndata: 3\n\ndata: [DONE]'
    for size in range(1, len(stream)):
        events = Events()
        pieces = [stream[i : i + size] for i in range(0, len(stream), size)]
        found = [e for piece in pieces for e in events.feed(piece)] + events.end()
        assert found == [b'{"a":1}', b"2\n3", b"[DONE]"]


def answer_of(**changes: Any) -> Answer:
    fields: dict[str, Any] = {"request_id": "r", "digest": "d", "prompt_ids": (), "output_ids": (), "text": ""}
    fields |= {"finish": "stop", "prompt_tokens": 3, "output_tokens": 5, "cached_tokens": None, "sent": 1.0}
    fields |= {"done": 5.0, "chunks": ((2.0, 1), (3.0, 2), (4.5, 2))}
    return Answer(**(fields | changes))


def test_times_of_an_answer() -> None:
    answer = answer_of()
    assert (answer.ttft, answer.request_seconds, answer.decode_seconds) == (1.0, 4.0, 2.5)
    assert answer.tpot == 2.5 / 4  # not per chunk: a chunk holds what a step accepted
    assert answer.chunk_gaps == (1.0, 1.5)
    assert answer.tokens_between(2.0, 4.5) == 4


def test_steps_without_a_draft_are_steps_too() -> None:
    assert answer_of(accepted_per_step=(1, 0), output_tokens=9).decode_steps == 7
    assert answer_of().decode_steps is None


# what is sent


def test_a_request_is_sent_as_chat_with_its_sampling_spelled_out() -> None:
    with FakeOpenAI(Script(k=4)) as server:
        request = Request(prompt="Hi.", max_tokens=7, temperature=0.5, top_p=0.9)
        answer = Client(server.url + "/v1/").complete(request, seed=3)
        path, body = server.requests[-1]
    assert path == CHAT
    assert body == {
        "model": "t",
        "messages": [{"role": "user", "content": "Hi."}],
        "max_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 3,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "return_token_ids": True,
    }
    assert answer.output_tokens == 7
    assert answer.decode_steps == len(answer.chunks) - 1


def test_what_the_server_lacks_is_found_out_once_and_left_out() -> None:
    refused = ("return_token_ids", "ignore_eos", "min_tokens")
    with FakeOpenAI(Script(refuses=refused, per_step=False, k=2, ignores=("continuous_usage_stats",))) as server:
        client = Client(server.url)
        first = client.complete_ids([5, 6, 7], 6, seed=1)
        asked = len(server.requests)
        client.complete_ids([5, 6, 8], 6, seed=1)
        assert len(server.requests) == asked + 1
        assert "ignore_eos" not in server.requests[-1][1]
        assert server.requests[-1][1]["seed"] == 1
    assert client.lacks == (
        "continuous_usage_stats",
        "ignore_eos",
        "min_tokens",
        "per-request metrics",
        "return_token_ids",
    )
    assert (first.output_ids, first.output_tokens, first.accepted_per_step) == ((), 6, None)
    assert {count for _, count in first.chunks} == {None}


def test_preparing_asks_what_measuring_then_need_not() -> None:
    with FakeOpenAI(Script(refuses=("seed",))) as server:
        client = Client(server.url)
        assert client.prepare() == ("per-request metrics", "seed")
        asked = len(server.requests)
        client.complete(HELLO)
        client.complete_ids([1, 2], 3)
        assert len(server.requests) == asked + 2


def test_a_model_without_a_chat_template_gets_the_joined_text() -> None:
    turns = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi."}]})
    with FakeOpenAI(Script(has_template=False)) as server:
        client = Client(server.url)
        client.complete(Request(messages=turns))
        assert server.requests[-1][0] == COMPLETIONS
        assert server.requests[-1][1]["prompt"] == "Be brief.\n\nHi."
    assert "chat template" in client.lacks


def test_a_stop_token_is_in_the_ids_and_ignored_on_demand() -> None:
    with FakeOpenAI(Script(stops_after=5)) as server:
        client = Client(server.url)
        stopped = client.complete_ids([5, 6, 7], 9, ignore_eos=False)
        ran_on = client.complete_ids([5, 6, 7], 9)
    assert (stopped.finish, stopped.output_tokens, stopped.output_ids[-1]) == ("stop", 5, 2)
    assert (ran_on.finish, ran_on.output_tokens) == ("length", 9)


def test_the_other_calls() -> None:
    with FakeOpenAI() as server:
        client = Client(server.url)
        assert client.models() == ["t"]
        ids = client.tokenize(HELLO)
        assert ids is not None
        assert client.complete(HELLO).prompt_ids == ids
        assert client.reset_prefix_cache() is True
        counters = client.counters()
        assert counters is not None
        assert counters.prompt_tokens == counters.total("vllm:prompt_tokens_total")
        assert client.gauges().running == 0
    with FakeOpenAI(Script(stats=False)) as server:
        client = Client(server.url)
        assert client.counters() is None
        assert client.gauges().running is None


def test_a_server_without_the_extra_calls() -> None:
    client = mocked(lambda _: httpx.Response(404, json={"detail": "Not Found"}))
    assert client.tokenize(HELLO) is None
    assert client.reset_prefix_cache() is False
    assert client.counters() is None


# what can go wrong


def failing(client: Client, request: Request = HELLO) -> RequestFailed:
    with pytest.raises(RequestFailed) as caught:
        client.complete(request)
    return caught.value


def test_a_wrong_key_names_the_variable_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeOpenAI(Script(key="right")) as server:
        monkeypatch.delenv(KEY_VARIABLE, raising=False)
        assert "refuses requests without a key (HTTP 401): set SELECTOR_API_KEY" in str(
            failing(Client(server.url, "t"))
        )
        assert "refuses the key in SELECTOR_API_KEY" in str(failing(Client(server.url, "t", key="wrong")))
        monkeypatch.setenv(KEY_VARIABLE, "right")
        assert Client(server.url).complete(HELLO).finish == "length"


def test_an_unknown_model_lists_what_is_served() -> None:
    with FakeOpenAI() as server:
        error = failing(Client(server.url, "other"))
    assert error.kind == "model"
    assert str(error).endswith("The model `other` does not exist.; served are: t")


def test_several_models_must_be_told_apart() -> None:
    listing = {"data": [{"id": "a"}, {"id": "b"}]}
    client = Client("http://server", transport=httpx.MockTransport(lambda _: httpx.Response(200, json=listing)))
    assert "name the model; served are: a, b" in str(failing(client))


def test_a_refused_request_repeats_the_servers_message() -> None:
    said = {"error": {"message": "max_tokens=5000 cannot be greater than\nmax_model_len=1024.", "code": 400}}
    error = failing(mocked(lambda _: httpx.Response(400, json=said)))
    assert (error.kind, error.status) == ("refused", 400)
    assert str(error).endswith("refused the request: max_tokens=5000 cannot be greater than max_model_len=1024.")


def test_a_failing_server_repeats_its_message() -> None:
    with FakeOpenAI(Script(fails_after=1)) as server:
        error = failing(Client(server.url))
    assert (error.kind, error.status) == ("server", 500)
    assert "the server failed (HTTP 500): EngineCore encountered an issue." in str(error)


@pytest.mark.parametrize("status", [200, 404])
def test_a_web_page_is_no_openai_server(status: int) -> None:
    page = httpx.Response(status, html="<!doctype html><title>Router login</title>")
    error = failing(mocked(lambda _: page))
    assert error.kind == "not-openai"
    assert "is not an OpenAI-compatible server (an answer starting '<!doctype html><title>" in str(error)


def test_nothing_listening_is_said_plainly() -> None:
    with socket.socket() as taken:  # bound but not listening
        taken.bind(("127.0.0.1", 0))
        error = failing(Client(f"http://127.0.0.1:{taken.getsockname()[1]}", "t"))
    assert error.kind == "unreachable"
    assert "is the server running, and is this its address?" in str(error)


@pytest.mark.parametrize("address", ["localhost:8000", "http://", "http://host:port", "ftp://host"])
def test_no_address_is_refused_at_once(address: str) -> None:
    with pytest.raises(RequestFailed, match="write it as http://HOST:PORT"):
        Client(address)


def test_a_silent_stream_stalls_and_keeps_what_had_arrived() -> None:
    with FakeOpenAI(Script(stalls_after=4)) as server:
        client = Client(server.url, "t", stall_seconds=0.2)
        error = failing(client)
    assert error.kind == "stalled"
    assert "no byte for 0.2 s" in str(error)
    assert error.partial is not None
    assert (error.partial.finish, error.partial.output_tokens, len(error.partial.output_ids)) == (None, 3, 3)


def test_a_server_that_dies_in_mid_stream_is_noticed() -> None:
    with FakeOpenAI(Script(dies_after=3)) as server:
        error = failing(Client(server.url, "t"))
    assert error.kind == "dropped"
    assert "may have died" in str(error)
    assert error.partial is not None
    assert error.partial.output_tokens == 2


def test_too_slow_an_answer_is_given_up() -> None:
    with FakeOpenAI(Script(step_seconds=0.02)) as server:
        error = failing(Client(server.url, "t", timeout=0.1))
    assert error.kind == "timeout"
    assert "raise the timeout" in str(error)


def test_an_error_in_the_stream_is_the_servers() -> None:
    stream = b'data: {"id":"x","choices":[{"text":"a","finish_reason":null}]}\n\ndata: {"error":{"message":"boom"}}\n\n'
    error = failing(mocked(lambda _: httpx.Response(200, content=stream)))
    assert error.kind == "server"
    assert "the server failed in mid-stream: boom" in str(error)
    assert error.partial is not None
    assert error.partial.text == "a"


@pytest.mark.parametrize("event", [b"3", b"{", b'{"choices": 3}', b'{"usage": {}}', b'{"usage": {"a": 1}}'])
def test_chunks_of_a_foreign_shape_are_no_crash(event: bytes) -> None:
    with pytest.raises(RequestFailed):
        mocked(lambda _: httpx.Response(200, content=b"data: " + event + b"\n\ndata: [DONE]\n\n")).complete(HELLO)


@pytest.fixture
def rude() -> Iterator[str]:
    """A server that hangs up without a word."""
    listener = socket.create_server(("127.0.0.1", 0))

    def hang_up() -> None:
        while True:
            try:
                listener.accept()[0].close()
            except OSError:
                return

    thread = threading.Thread(target=hang_up)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def test_a_server_that_hangs_up_without_an_answer(rude: str) -> None:
    error = failing(Client(rude, "t"))
    assert (error.kind, error.partial) == ("dropped", None)


def test_a_probe_of_exact_length_has_its_own_digest() -> None:
    assert Job((1, 2), 4).digest == Job((1, 2), 8).digest != Job((12,), 4).digest
    assert len(Job((1, 2), 4).digest) == 16
