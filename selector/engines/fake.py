"""A scripted engine with a known truth: no model, no sleeping, for tests and for trying the commands."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from selector.acceptance import sampling_kind
from selector.engines.base import Acceptance, Generation
from selector.engines.fake_truth import TASKS, FakeClass, FakeCost
from selector.profile import DrafterInfo, EngineInfo, ModelInfo, Sampling
from selector.strategy import PLAIN, Strategy
from selector.walks import MAX_RECORDED_K, looping, walk
from selector.workload import Request

__all__ = ["EOS", "TASKS", "FakeClass", "FakeCost", "FakeEngine"]

EOS = 0
_VOCAB = 1000


class FakeEngine:
    """Implements `selector.engines.base.Engine`. Tokens and acceptance depend on the request alone (and the seed,
    when sampled); only timings carry noise, from `seed`, in the order of the calls.
    """

    def __init__(
        self,
        tasks: Mapping[str, FakeClass] = TASKS,
        cost: FakeCost | None = None,
        *,
        methods: Sequence[str] = ("eagle3", "draft_model"),
        seed: int = 0,
    ) -> None:
        self.tasks = dict(tasks)
        self.cost = cost or FakeCost()
        self._names = [*sorted(self.tasks), ""]  # the last one stands for every other task
        self._rng = np.random.default_rng(seed)
        self.info = EngineInfo(name="fake", version="1", dtype="float32", device="none", threads=1)
        self.target = ModelInfo(**_model("fake-target", 1_000_000, 4_000_000, 1000))
        known = {
            "eagle3": ("fake-head", 100_000), "eagle": ("fake-eagle", 60_000), "draft_model": ("fake-draft", 300_000)
        }  # fmt: skip
        self.drafters = {
            known[m][0]: DrafterInfo.model_validate(_model(*known[m], 4 * known[m][1], 100) | {"method": m})
            for m in methods
        }

    def prompt_tokens(self, request: Request) -> int:
        """Length of the request's prompt."""
        return len(self._prompt(request))

    def generate(self, request: Request, strategy: Strategy, *, seed: int) -> Generation:
        """Decode one request; the clock is simulated."""
        prompt = self._prompt(request)
        output, finish = self._output(prompt, request, seed)
        recorded = Generation(prompt, output, finish, 0, 0, 0, 0.0, 0.0)
        seen = self.replay(recorded, strategy)
        w = walk(seen.accepted, strategy.k, seen.proposed)
        kind = sampling_kind(request.temperature, request.top_p)
        seconds, context = 0.0, float(len(prompt) + 1)
        for drafted, accepted in zip(w.drafted_per_step, w.accepted_per_step, strict=True):
            seconds += self.cost.step(strategy.method, drafted, 1, context, kind)
            context += accepted + 1
        noise = self._noise(2)
        prefill = self.cost.prefill(strategy.method, len(prompt)) * float(noise[0])
        return Generation(
            prompt,
            output,
            finish,
            w.steps,
            w.drafted,
            w.accepted,
            prefill,
            seconds * float(noise[1]),
            w.accepted_per_step,
        )

    def record(self, requests: Sequence[Request], *, seed: int) -> list[Generation]:
        """Plain outputs, one by one."""
        return [self.generate(r, PLAIN, seed=seed) for r in requests]

    def replay(
        self, recorded: Generation, strategy: Strategy, *, temperature: float = 0.0, top_p: float = 1.0, seed: int = 0
    ) -> Acceptance:
        """Acceptance at every position, from a hash of the recording: the same whoever asks, and at any k."""
        n = len(recorded.output_ids)
        if strategy == PLAIN or n == 1:
            return Acceptance((0,) * (n - 1), None)
        task = self.tasks.get(self._names[recorded.prompt_ids[0]], FakeClass())
        rng = _rng(strategy.proposer, *recorded.prompt_ids, *recorded.output_ids)
        first, later = task.accept.get(strategy.method, (0.5, 0.5))
        chance = np.full((n - 1, MAX_RECORDED_K), later)
        chance[:, 0] = first
        chance *= 1 - 0.003 * recorded.prompt_ids[1]  # prompt_ids[1] is 100 x temperature
        if strategy.draft_sample_method == "probabilistic" and recorded.prompt_ids[1]:
            chance *= task.drawn
        if looping(recorded.output_ids[:-1]):
            chance[n // 2 :] = 0.99
        failed = rng.random(chance.shape) >= chance
        run = np.where(failed.any(axis=1), failed.argmax(axis=1), MAX_RECORDED_K)
        left = np.arange(n - 1, 0, -1)
        accepted = np.minimum(np.minimum(run, strategy.k), left)
        proposed = self._proposed(strategy, task, n, rng)
        if proposed is not None:
            accepted = np.minimum(accepted, proposed)
        return Acceptance(tuple(accepted.tolist()), None if proposed is None else tuple(proposed.tolist()))

    def _proposed(
        self, strategy: Strategy, task: FakeClass, n: int, rng: np.random.Generator
    ) -> NDArray[np.int64] | None:
        """n-gram proposes at some positions only, fewer with a longer smallest match; others always fill k."""
        if strategy.method != "ngram":
            return None
        found = rng.random(n - 1) < task.overlap * 0.85 ** ((strategy.lookup_min or 1) - 1)
        return np.where(found, strategy.k, 0)

    def step_seconds(
        self, strategy: Strategy, *, batch: int, context: int, sampling: Sampling, repeats: int
    ) -> Sequence[float]:
        """Timings of one step."""
        truth = self.cost.step(strategy.method, strategy.k, batch, context, sampling)
        return [truth * float(x) for x in self._noise(repeats)]

    def prefill_seconds(self, strategy: Strategy, *, prompt_tokens: int, repeats: int) -> Sequence[float]:
        """Timings of one prefill."""
        return [self.cost.prefill(strategy.method, prompt_tokens) * float(x) for x in self._noise(repeats)]

    def _noise(self, n: int) -> NDArray[np.float64]:
        return np.exp(self._rng.normal(0.0, self.cost.noise, n))

    def _prompt(self, request: Request) -> tuple[int, ...]:
        """The first two ids carry task and temperature, so that `replay` needs no memory of the request."""
        task = self.tasks.get(request.task, FakeClass())
        index = self._names.index(request.task) if request.task in self.tasks else len(self._names) - 1
        rng = _rng("prompt", request.digest)
        length = max(4, round(task.prompt_tokens * rng.uniform(0.6, 1.4)))
        return (index, round(100 * request.temperature), *rng.integers(1, _VOCAB, length - 2).tolist())

    def _output(
        self, prompt: tuple[int, ...], request: Request, seed: int
    ) -> tuple[tuple[int, ...], Literal["stop", "length"]]:
        task = self.tasks.get(request.task, FakeClass())
        rng = _rng("output", *prompt, seed if request.temperature > 0 else 0)
        length = max(2, round(task.output_tokens * rng.uniform(0.5, 1.5)))
        ids = rng.integers(1, _VOCAB, length)
        if rng.random() < task.loops:
            ids = np.where(np.arange(length) < length // 2, ids, ids[np.arange(length) % 8])
        tokens = (*ids[:-1].tolist(), EOS)
        if length > request.max_tokens:
            return tokens[: request.max_tokens], "length"
        return tokens, "stop"


def _model(name: str, parameters: int, weight_bytes: int, kv_bytes: int) -> dict[str, Any]:
    return {
        "name": name,
        "path": name,
        "config_sha256": "0" * 64,
        "parameters": parameters,
        "weight_bytes": weight_bytes,
        "kv_bytes_per_token": kv_bytes,
        "vocab_size": _VOCAB,
        "max_model_len": 4096,
        "architecture": "Fake",
    }


def _rng(*parts: object) -> np.random.Generator:
    digest = hashlib.sha256("|".join(map(str, parts)).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))
