"""The closed load and the step times read off it, on a scripted server and by hand."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import numpy as np
import pytest

from selector.engines.served.answer import Answer
from selector.engines.served.client import Client
from selector.engines.served.failures import RequestFailed
from selector.engines.served.job import Job
from selector.engines.served.load import run_load
from selector.engines.served.load_result import Finished, LoadResult
from selector.engines.served.prometheus import Gauges
from selector.engines.served.steps import lockstep_seconds
from tests.fake_openai import FakeOpenAI, Script


def jobs(count: int, tokens: int = 12) -> list[Job]:
    return [Job((5, 6, 7, i), tokens, ignore_eos=True) for i in range(count)]


def test_the_load_is_kept_full_and_its_ends_are_marked() -> None:
    done: list[int] = []
    polled: list[Gauges] = []
    with FakeOpenAI(Script(k=3, step_seconds=0.002)) as server:
        client = Client(server.url)

        def poll() -> Gauges:
            polled.append(client.gauges())
            return polled[-1]

        result = run_load(
            client,
            jobs(14),
            concurrency=4,
            warm_up=4,
            on_done=lambda f: done.append(f.index),
            gauges=poll,
            poll_seconds=0.005,
        )
        counters = client.counters()
    assert [f.index for f in result.finished] == done
    assert sorted(done) == list(range(14))
    assert [f.warm_up for f in result.finished] == [True] * 4 + [False] * 10
    # in the end, every request but the one that found no successor saw the load drain
    assert [f.full for f in result.finished] == [True] * 11 + [False] * 3
    assert (len(result.answers), len(result.full_answers), result.failures) == (10, 7, ())
    assert (result.held, result.start) == (True, result.finished[3].done)
    assert result.end == pytest.approx(result.finished[10].done)
    assert result.max_running == max(g.running or 0 for g in polled) > 0
    assert result.max_waiting == max(g.waiting or 0 for g in polled)
    assert all(a.output_tokens == 12 for a in result.answers)
    assert counters is not None
    assert counters.generated_tokens == 14 * 12 + 8  # the probe's
    assert len(result.ttft) == len(result.tpot) == 7
    assert np.isfinite(result.tpot).all()


def finished(index: int, start: float, end: float, chunks: dict[float, int], *, warm_up: bool, full: bool) -> Finished:
    job = Job((1,), 4)
    counts = tuple(chunks.items())
    answer = Answer("r", "d", (), (), "", "length", 1, sum(chunks.values()), None, start, end, counts)
    return Finished(index, job, start, end, answer, None, full=full, warm_up=warm_up)


def test_tokens_of_the_window_are_counted_where_they_arrived() -> None:
    result = LoadResult(
        (
            finished(0, 0.0, 2.0, {1.0: 1, 2.0: 3}, warm_up=True, full=True),
            finished(1, 0.0, 4.0, {1.0: 1, 3.0: 2, 4.0: 2}, warm_up=False, full=True),
            finished(2, 2.0, 6.0, {3.0: 1, 5.0: 2, 6.0: 2}, warm_up=False, full=False),
        ),
        start=2.0,
        end=4.0,
        held=True,
    )
    assert result.output_tokens == 2 + 2 + 1
    assert (result.tokens_per_second, result.requests_per_second) == (2.5, 0.5)
    assert result.ttft.tolist() == [1.0]
    assert result.tpot.tolist() == [3.0 / 4]


@pytest.mark.parametrize("concurrency", [2, 3])
def test_a_burst_without_successors_is_no_held_load(concurrency: int) -> None:
    with FakeOpenAI() as server:
        result = run_load(Client(server.url), jobs(2), concurrency=concurrency)
    assert (result.held, len(result.answers), result.full_answers) == (False, 2, ())
    assert result.output_tokens == pytest.approx(24)
    assert len(result.ttft) == 2


def test_a_failed_request_is_recorded_and_the_rest_goes_on() -> None:
    odd = Job((9, 9), 12)
    with FakeOpenAI() as server:
        client = Client(server.url)
        accepts = server.http.RequestHandlerClass._accepts  # type: ignore[attr-defined]  # a handler of our own

        def picky(self: Any, body: dict[str, Any]) -> bool:
            return bool(accepts(self, body)) if body["prompt"] != [9, 9] else bool(self._refuse(400, "not this one"))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(server.http.RequestHandlerClass, "_accepts", picky)
            result = run_load(client, [*jobs(3), odd, *jobs(3)], concurrency=2)
    assert len(result.answers) == 6
    assert [f.index for f in result.finished if f.failure is not None] == [3]
    assert "not this one" in str(result.failures[0])


def test_five_failures_in_a_row_end_the_load_with_the_first() -> None:
    with FakeOpenAI(Script(fails_after=4)) as server, pytest.raises(RequestFailed, match="HTTP 500"):
        run_load(Client(server.url), jobs(40), concurrency=2)
    assert len(server.requests) < 20  # a success among them starts the count anew


def test_nothing_but_failures_is_an_error_however_few() -> None:
    with FakeOpenAI(Script(fails_after=1)) as server, pytest.raises(RequestFailed, match="HTTP 500"):
        run_load(Client(server.url), jobs(2), concurrency=2)


def test_a_dying_server_ends_the_load() -> None:
    with FakeOpenAI(Script(dies_after=10)) as server, pytest.raises(RequestFailed) as caught:
        run_load(Client(server.url), jobs(40, tokens=30), concurrency=4)
    assert caught.value.kind in ("dropped", "unreachable")


def test_an_interrupt_closes_the_streams() -> None:
    with FakeOpenAI(Script(step_seconds=0.005)) as server:
        client = Client(server.url)

        def interrupt() -> None:  # once all streams run, however slow the machine
            while len(server.running) < 4:
                threading.Event().wait(0.01)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt, daemon=True)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            run_load(client, jobs(4, tokens=10_000), concurrency=4)
        thread.join()
        for _ in range(100):  # the server finds out when it next writes
            if not server.running:
                break
            threading.Event().wait(0.005)
        assert server.running == []


def test_no_load_is_refused() -> None:
    client = Client("http://127.0.0.1:9")
    with pytest.raises(ValueError, match="needs jobs"):
        run_load(client, [], concurrency=1)
    with pytest.raises(ValueError, match="concurrency of at least 1"):
        run_load(client, jobs(1), concurrency=0)


# steps


def stream(
    first: float, *gaps: float, tokens: int = 1, output: int | None = None, accepted: int | None = None
) -> Answer:
    times = [first, *(first + sum(gaps[: i + 1]) for i in range(len(gaps)))]
    chunks = tuple((at, tokens if i else 1) for i, at in enumerate(times))
    total = 1 + tokens * len(gaps) if output is None else output
    steps = None if accepted is None else (accepted,) * ((total - 1) // (1 + accepted))
    return Answer("r", "d", (), (), "", "length", 8, total, None, 0.0, times[-1], chunks, steps)


def test_steps_are_timed_while_all_streams_run() -> None:
    timing = lockstep_seconds([stream(1.0, *[0.5] * 10), stream(1.5, *[0.5] * 10), stream(1.0, 0.5, *[0.5] * 6)])
    assert timing is not None
    assert (timing.median_seconds, timing.mean_seconds) == pytest.approx((0.5, 0.5))
    assert (timing.steps, timing.coalesced) == (6, False)  # from 1.5 to 4.5


def test_one_slow_step_moves_the_mean_and_not_the_median() -> None:
    timing = lockstep_seconds([stream(0.0, 0.5, 0.5, 3.0, 0.5, 0.5, tokens=3, accepted=2)])
    assert timing is not None
    assert (timing.median_seconds, timing.mean_seconds, timing.coalesced) == (0.5, 1.0, False)


def test_merged_chunks_are_noticed_by_the_accepted_drafts() -> None:
    # 20 chunks of 4 tokens, each two steps of 1 + 1
    timing = lockstep_seconds([stream(0.0, *[0.5] * 20, tokens=4, accepted=1)])
    assert timing is not None
    assert (timing.steps, timing.coalesced) == (40, True)
    assert (timing.median_seconds, timing.mean_seconds) == (0.25, 0.25)


def test_merged_chunks_are_noticed_where_each_token_is_a_step() -> None:
    timing = lockstep_seconds([stream(0.0, *[0.5] * 20, tokens=2)], plain=True)
    assert timing is not None
    assert (timing.steps, timing.coalesced, timing.mean_seconds) == (40, True, 0.25)


def test_the_engines_own_count_decides_where_nothing_else_does() -> None:
    answers = [stream(0.0, *[0.5] * 100, tokens=2)]
    near, far = (lockstep_seconds(answers, engine_steps=n) for n in (102, 201))
    assert near is not None
    assert far is not None
    assert (near.steps, near.coalesced, near.mean_seconds) == (100, False, 0.5)
    assert (far.steps, far.coalesced, far.mean_seconds) == (200, True, 0.25)


def test_nothing_in_common_is_no_measurement() -> None:
    assert lockstep_seconds([]) is None
    assert lockstep_seconds([stream(0.0, 0.5), stream(1.0, 0.5)]) is None
    assert lockstep_seconds([stream(0.0, 0.5, output=200)]) is None  # buffered


def test_prompts_of_different_lengths_are_refused() -> None:
    other = Answer("r", "d", (), (), "", "length", 9, 2, None, 0.0, 1.0, ((0.5, 1), (1.0, 1)))
    with pytest.raises(ValueError, match="one prompt length"):
        lockstep_seconds([stream(0.0, 0.5), other])


@pytest.mark.parametrize(("k", "chunk_steps", "coalesced"), [(0, 1, False), (4, 1, False), (4, 3, True)])
def test_lockstep_on_a_server(k: int, chunk_steps: int, coalesced: bool) -> None:
    with FakeOpenAI(Script(k=k, step_seconds=0.004, chunk_steps=chunk_steps)) as server:
        result = run_load(Client(server.url), jobs(4, tokens=40), concurrency=4)
    timing = lockstep_seconds(result.answers, plain=k == 0)
    assert timing is not None
    assert timing.coalesced == coalesced
    assert timing.mean_seconds > 0.004
