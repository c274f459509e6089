"""A closed load: a fixed number of requests kept in flight, and what came of each.

The maintained generators (`vllm bench serve`, guidellm) were considered. They report totals and latencies, but neither
the token ids nor the accepted drafts per step of each request, cannot interleave the arms of a comparison, and need an
installation of their own (vLLM's brings torch), so this small loop is used instead.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from selector.engines.served.answer import Answer
from selector.engines.served.client import Client
from selector.engines.served.failures import RequestFailed
from selector.engines.served.job import Job
from selector.engines.served.load_result import Finished, LoadResult
from selector.engines.served.prometheus import Gauges, MetricsError
from selector.engines.served.session import Session

#: So many failures with no success between them mean that the server is gone, not that a request was odd.
_TOO_MANY = 5


def run_load(
    client: Client,
    jobs: Sequence[Job],
    *,
    concurrency: int,
    warm_up: int = 0,
    on_done: Callable[[Finished], None] | None = None,
    gauges: Callable[[], Gauges] | None = None,
    poll_seconds: float = 1.0,
    enough: Callable[[int], bool] | None = None,
) -> LoadResult:
    """Send the jobs in order with `concurrency` in flight, a finished one replaced at once.

    warm_up: how many of the first finished requests count for nothing. gauges: asked every `poll_seconds`, in a thread
    (`client.gauges`). enough: asked before job i is sent; True ends the load there. A failed request is recorded and
    the rest goes on; the first failure is raised when five come in a row or nothing succeeds at all. Ctrl-C closes all
    streams. Whoever reads counters around a load calls `client.prepare()` before, lest its probes be counted.
    """
    if concurrency < 1 or not jobs:
        raise ValueError("run_load needs jobs and a concurrency of at least 1")
    return asyncio.run(_Load(client, jobs, concurrency, warm_up, on_done, enough).run(gauges, poll_seconds))


@dataclass
class _Load:
    client: Client
    jobs: Sequence[Job]
    concurrency: int
    warm_up: int
    on_done: Callable[[Finished], None] | None
    enough: Callable[[int], bool] | None = None
    finished: list[Finished] = field(default_factory=list)
    begun: float = 0.0
    in_flight: int = 0
    #: When the load became full, and when it ceased to be (a request ended and none was left to replace it).
    full_from: float | None = None
    full_until: float | None = None
    streak: list[RequestFailed] = field(default_factory=list)
    busiest: list[Gauges] = field(default_factory=list)

    async def run(self, gauges: Callable[[], Gauges] | None, poll_seconds: float) -> LoadResult:
        async with self.client.session(self.concurrency) as session:
            # what the server can do is found out before anything is timed
            await session.model()
            await session.path(self.jobs[0])
            self.begun = time.monotonic()
            waiting = iter(enumerate(self.jobs))
            workers = [asyncio.create_task(self._work(session, waiting)) for _ in range(self.concurrency)]
            poller = None if gauges is None else asyncio.create_task(self._poll(gauges, poll_seconds))
            try:
                await asyncio.gather(*workers)
            finally:
                tasks = workers if poller is None else [*workers, poller]
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        if all(f.answer is None for f in self.finished):
            raise self.streak[0]
        return self._result()

    async def _work(self, session: Session, waiting: Iterator[tuple[int, Job]]) -> None:
        for index, job in waiting:  # shared by all workers: one at a time takes the next
            if self.enough is not None and self.enough(index):
                break
            self.in_flight += 1
            sent = time.monotonic()
            if self.in_flight == self.concurrency < len(self.jobs) and self.full_from is None:
                self.full_from = self.begun  # the first requests all start within a moment
            answer, failure = None, None
            try:
                answer = await session.ask(job)
            except RequestFailed as error:
                failure = error
            self.in_flight -= 1
            self._record(index, job, sent, answer, failure)
        if self.full_until is None:
            self.full_until = time.monotonic()

    def _record(self, index: int, job: Job, sent: float, answer: Answer | None, failure: RequestFailed | None) -> None:
        full = self.full_from is not None and sent >= self.full_from and self.full_until is None
        done = Finished(
            index, job, sent, time.monotonic(), answer, failure, full, warm_up=len(self.finished) < self.warm_up
        )
        self.finished.append(done)
        if self.on_done is not None:
            self.on_done(done)
        if failure is None:
            self.streak.clear()
        else:
            self.streak.append(failure)
            if len(self.streak) >= _TOO_MANY:
                raise self.streak[0]

    async def _poll(self, gauges: Callable[[], Gauges], seconds: float) -> None:
        while True:
            try:
                self.busiest.append(await asyncio.to_thread(gauges))
            except (RequestFailed, MetricsError):
                return  # a server without readable metrics is measured all the same
            await asyncio.sleep(seconds)

    def _result(self) -> LoadResult:
        warm = [f.done for f in self.finished if f.warm_up]
        start = max(warm, default=self.begun)
        last = max(f.done for f in self.finished)
        # the tail drains below the asked-for load: left out, unless all there is is tail
        held = self.full_from is not None and self.full_until is not None and self.full_until > start
        end = self.full_until if held and self.full_until is not None else last
        running = [g.running for g in self.busiest if g.running is not None]
        queued = [g.waiting for g in self.busiest if g.waiting is not None]
        return LoadResult(tuple(self.finished), start, end, held, max(running, default=None), max(queued, default=None))
