"""What is measured on an open server: plain outputs, live acceptance, steps, prefill, real requests under load."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from selector.engines.served.answer import Answer
from selector.engines.served.base import OpenServer
from selector.engines.served.failures import RequestFailed
from selector.engines.served.job import Job
from selector.engines.served.load import run_load
from selector.engines.served.load_result import Finished, LoadResult
from selector.engines.served.steps import lockstep_seconds
from selector.errors import MeasurementFailed
from selector.measure.served.launches import StepProbe
from selector.measure.served.plan import PROBE_TOKENS
from selector.profile import Sampling
from selector.walks import MAX_RECORDED_K, encode
from selector.workload import Request

#: Temperature and top-p of step probes by kind of sampling: what a sampler costs hardly depends on its settings.
SAMPLED: Mapping[Sampling, tuple[float, float]] = {"greedy": (0.0, 1.0), "temperature": (0.8, 1.0), "top_p": (0.8, 0.9)}
_REPETITIVE_PIECE = 24
_TRIES = 3

Wanted = tuple[str, Request]
#: Class, request, and how it ended.
OnDone = Callable[[str, Request, Finished], None]


def decode_all(
    server: OpenServer, wanted: Iterable[Wanted], concurrency: int, seed: int, on_done: OnDone, *,
    keep_full: bool = False, enough: Callable[[int], bool] | None = None,
) -> LoadResult | None:  # fmt: skip
    """Run requests and hand each finished one over, the failed ones too; None: there was nothing to run.

    `keep_full`: further requests (not handed over) follow, so that the batch is full until the last wanted one ends.
    `enough(i)`: whether to end before the i-th.
    """
    items = list(wanted)
    if not items:
        return None
    jobs = [Job.of(r, seed=_seed(r, seed)) for _, r in items]
    fillers = [jobs[i % len(jobs)] for i in range(concurrency - 1)] if keep_full else []

    def done(finished: Finished) -> None:
        if finished.index < len(items):
            on_done(*items[finished.index], finished)

    gauges = server.client.gauges if concurrency > 1 else None  # one request alone never waits
    return run_load(
        server.client, [*jobs, *fillers], concurrency=concurrency, on_done=done, gauges=gauges, enough=enough
    )


def taking_turns(by_class: Mapping[str, Sequence[Request]]) -> Iterator[Wanted]:
    """One prompt of every class, then the next of every class: any stretch of the run is the same mix."""
    for i in range(max(map(len, by_class.values()))):
        yield from ((name, rs[i]) for name, rs in by_class.items() if i < len(rs))


def recording_entry(name: str, request: Request, answer: Answer) -> dict[str, Any]:
    """An output as the journal keeps it: its token ids, or its lengths where the server returns none."""
    lengths = {"prompt_tokens": answer.prompt_tokens, "output_tokens": answer.output_tokens}
    ids = {"prompt": answer.prompt_ids, "output": answer.output_ids}
    return {
        "class": name, "id": request.digest, "finish": "length" if answer.finish == "length" else "stop",
        **(ids if answer.output_ids and answer.prompt_ids else lengths),
    }  # fmt: skip


def live_entry(name: str, request: Request, family: str, k: int, answer: Answer) -> dict[str, Any]:
    """Accepted and drafted counts per step. Raises `MeasurementFailed` when the server does not tell them."""
    accepted, drafted = answer.accepted_per_step, answer.drafted_per_step
    if accepted is None or drafted is None:
        raise MeasurementFailed(
            "the server tells no accepted counts per step (--per-request-spec-decode-metrics detailed, vLLM 0.32)"
        )
    return {
        "id": request.digest, "request_class": name, "family": family, "k": k, "output_tokens": answer.output_tokens,
        "accepted": encode([min(a, MAX_RECORDED_K) for a in accepted]),
        "drafted": encode([min(d, MAX_RECORDED_K) for d in drafted[: len(accepted)]]),
    }  # fmt: skip


def run_entry(request: Request, repeat: int, answer: Answer) -> dict[str, Any]:
    """One end-to-end request as `selector.profile.Run` holds it.

    A buffered stream has no time to first token: the whole time stands as decoding then.
    """
    steps = answer.output_tokens - 1 if answer.decode_steps is None else answer.decode_steps
    ttft = answer.ttft if answer.ttft is not None else 1e-9
    return {
        "id": request.digest, "repeat": repeat, "output_tokens": answer.output_tokens, "decode_steps": max(0, steps),
        "drafted": sum(answer.drafted_per_step or ()), "accepted": sum(answer.accepted_per_step or ()),
        "prefill_seconds": ttft, "decode_seconds": max(0.0, answer.request_seconds - ttft),
    }  # fmt: skip


@dataclass(frozen=True)
class ProbeTime:
    """Mean seconds of a step, over how many steps, and the mean of tokens drafted per request in them."""

    seconds: float
    steps: int
    drafted: float


class StepTimer:
    """Times steps of equal requests whose text is what the model itself wrote before."""

    def __init__(self, texts: Sequence[Sequence[int]], seed: int) -> None:
        order = [list(t) for t in texts if t]
        random.Random(seed).shuffle(order)
        self._tokens = [i for t in order for i in t]
        self._seed = seed

    def time(self, server: OpenServer, probe: StepProbe, repeat: int) -> ProbeTime:
        """One timing, tried three times. Raises `MeasurementFailed` when no lock step could be seen."""
        for attempt in range(_TRIES):
            timed = self._try(server, probe, repeat + 101 * attempt)
            if timed is not None:
                return timed
        raise MeasurementFailed(
            f"no step to time at batch {probe.batch}: its requests did not decode side by side "
            "(is --max-num-seqs too small, is the stream buffered by a proxy, or is the machine busy?)"
        )

    def _try(self, server: OpenServer, probe: StepProbe, repeat: int) -> ProbeTime | None:
        temperature, top_p = SAMPLED[probe.sampling]
        jobs = [
            Job(
                self.context(probe.context - PROBE_TOKENS // 2, repeat * probe.batch + row, probe.repetitive),
                PROBE_TOKENS, temperature, top_p, ignore_eos=True, seed=self._seed + row,
            )
            for row in range(probe.batch)
        ]  # fmt: skip
        result = run_load(server.client, jobs, concurrency=probe.batch)
        _raise_first(result.failures)
        answers = result.answers
        timing = lockstep_seconds(answers, plain=all(a.accepted_per_step is None for a in answers))
        if timing is None:
            return None
        drafted = sum(sum(a.drafted_per_step or ()) for a in answers)
        return ProbeTime(timing.mean_seconds, timing.steps, drafted / max(1, sum(a.decode_steps or 0 for a in answers)))

    def prefill_seconds(self, server: OpenServer, tokens: int, repeat: int) -> float:
        """Seconds until one prompt of so many tokens has its first output token, through the server."""
        job = Job(self.context(tokens, 31 + repeat), 2, ignore_eos=True)
        result = run_load(server.client, [job], concurrency=1)
        _raise_first(result.failures)
        answer = result.answers[0]
        return answer.ttft if answer.ttft is not None else answer.request_seconds

    def context(self, length: int, turn: int, repetitive: bool = False) -> tuple[int, ...]:
        """`length` token ids: recorded text from a place that differs by turn; or a short piece over and over, which
        the model goes on with and n-gram lookup therefore finds.
        """
        text, length = self._tokens, max(8, length)
        start = (turn * 97) % len(text)
        turned = text[start:] + text[:start]
        piece = turned[:_REPETITIVE_PIECE] if repetitive else turned
        return tuple((piece * (length // len(piece) + 1))[:length])


def _raise_first(failures: Sequence[RequestFailed]) -> None:
    if failures:
        raise failures[0]


def _seed(request: Request, seed: int) -> int:
    """Every prompt draws from a stream of its own, the same one in every run with this seed."""
    return (seed + int(request.digest[:7], 16)) % (2**31)
