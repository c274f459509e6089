"""Compares strategies with plain decoding over many prompts: greedy outputs token by token, sampled ones by tests."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from selector.equality import near_tie_gap
from selector.strategy import PLAIN, Strategy
from selector.verify.arms import Arm, compare_arms, corrected
from selector.verify.engine import ScoringEngine
from selector.verify.findings import Findings
from selector.verify.inputs import capped, check_numbers, compared
from selector.verify.judge import Judge
from selector.verify.rarities import SHARE
from selector.verify.report import LosslessReport, Setting
from selector.workload import Request

if TYPE_CHECKING:
    from selector.measure.progress import Progress

DEFAULT_SETTINGS = tuple(Setting(temperature=t, top_p=p) for t, p in product((0.7, 1.0), (1.0, 0.9)))
DEFAULT_ALPHA = 0.001
BATCH_RECORDED = 16
#: Plain outputs for each sampled output of a strategy: decoded in batches they cost little, and both arms decide.
PLAIN_PER_SAMPLE = 2
#: Seconds per token as on the embedded model; the first prompt tells how many times faster or slower this one is.
_DECODED, _RECORDED, _SCORED = 0.02, 0.005, 0.008


class LosslessCheck:
    """One comparison; `report` may be asked for before `run` is through (Ctrl-C)."""

    def __init__(
        self,
        engine: ScoringEngine,
        strategies: Sequence[Strategy],
        requests: Sequence[Request],
        *,
        settings: Sequence[Setting] = DEFAULT_SETTINGS,
        samples: int = 1,
        alpha: float = DEFAULT_ALPHA,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> None:
        check_numbers(samples, alpha)
        self.engine, self.settings, self.samples = engine, tuple(dict.fromkeys(settings)), samples
        self.alpha, self.seed, self.progress = alpha, seed, progress
        self.findings = [Findings(s, engine.info.dtype) for s in compared(engine, strategies)]
        self.requests = capped(engine, requests, max(f.strategy.k for f in self.findings))
        self.plain = {s: Arm() for s in self.settings}
        self.random = np.random.default_rng(seed)
        self.judge = Judge(engine, self.random)
        self.pace = 1.0

    @property
    def strategies(self) -> list[Strategy]:
        """Those that are compared."""
        return [f.strategy for f in self.findings]

    def run(self) -> None:
        """Everything: greedy outputs first."""
        self._greedy()
        for setting in self.settings:
            for sample in range(self.samples):
                self._sampled(setting, sample)

    def _greedy(self) -> None:
        for i, asked in enumerate(self.requests):
            self._stage(f"greedy: prompt {i + 1} of {len(self.requests)}")
            start = time.monotonic()
            request = asked.model_copy(update={"temperature": 0.0, "top_p": 1.0})
            plain = self.engine.generate(request, PLAIN, seed=self.seed)
            self._advance(_DECODED * request.max_tokens)
            for f in self.findings:
                self.judge.greedy(f, request, plain, self.seed)
                self._advance(_DECODED * request.max_tokens)
            if i == 0:
                self._estimate(time.monotonic() - start)

    def _estimate(self, first_prompt_seconds: float) -> None:
        """Of the time left, which is not known before the first prompt was decoded."""
        if not self.progress:
            return
        first, rest, n = self.requests[0], self.requests[1:], len(self.findings)
        self.pace = first_prompt_seconds / (first.max_tokens * _DECODED * (1 + n))
        plain, strategy = PLAIN_PER_SAMPLE * (_RECORDED + (1 + n) * _SCORED), n * (_DECODED + _SCORED)
        greedy = sum(r.max_tokens for r in rest) * _DECODED * (1 + n)
        sampled = sum(r.max_tokens for r in self.requests) * len(self.settings) * self.samples * (plain + strategy)
        self.progress.begin((greedy + sampled) * self.pace)

    def _sampled(self, setting: Setting, sample: int) -> None:
        at, where = setting.model_dump(), f"temperature {setting.temperature:g}, top-p {setting.top_p:g}"
        requests = [r.model_copy(update=at) for r in self.requests]
        self._stage(f"{where}: plain decoding")
        for arm, first in product(range(PLAIN_PER_SAMPLE), range(0, len(requests), BATCH_RECORDED)):
            batch = requests[first : first + BATCH_RECORDED]
            outputs = self.engine.record(batch, seed=self._seed(setting, sample, arm))
            for request, output in zip(batch, outputs, strict=True):
                self.plain[setting].add(self.engine.score(output, self.strategies, **at), self.random)
                self._advance((_RECORDED + (1 + len(self.findings)) * _SCORED) * request.max_tokens)
        for i, request in enumerate(requests):
            self._stage(f"{where}: prompt {i + 1} of {len(requests)}")
            for arm, f in enumerate(self.findings, PLAIN_PER_SAMPLE):
                self.judge.sampled(f, request, setting, self._seed(setting, sample, arm))
                self._advance((_DECODED + _SCORED) * request.max_tokens)

    def _seed(self, setting: Setting, sample: int, arm: int) -> int:
        """Streams of their own: arms that draw alike would hide what differs."""
        entropy = (self.seed, self.settings.index(setting), sample, arm)
        return int(np.random.SeedSequence(entropy).generate_state(1)[0])

    def _stage(self, name: str) -> None:
        if self.progress:
            self.progress.stage(name)

    def _advance(self, seconds: float) -> None:
        if self.progress:
            self.progress.advance(seconds * self.pace)

    def report(self, *, interrupted: bool = False) -> LosslessReport:
        """The answers so far, all tests corrected together."""
        all_tests = corrected([compare_arms(self.plain, f.arms, f.strategy.family) for f in self.findings], self.alpha)
        rare = SHARE * self.alpha / (2 * len(self.findings))  # tokens and repeats of each strategy
        return LosslessReport(
            engine=self.engine.info,
            target=self.engine.target,
            drafters=dict(self.engine.drafters),
            prompts=len(self.requests),
            max_tokens=max(r.max_tokens for r in self.requests),
            settings=self.settings,
            samples=self.samples,
            alpha=self.alpha,
            near_tie_gap=near_tie_gap(self.engine),
            seed=self.seed,
            interrupted=interrupted,
            strategies=tuple(
                f.report(own, self.alpha, rare_level=rare, interrupted=interrupted)
                for f, own in zip(self.findings, all_tests, strict=True)
            ),
        )


def verify_lossless(
    engine: ScoringEngine,
    strategies: Sequence[Strategy],
    requests: Sequence[Request],
    *,
    settings: Sequence[Setting] = DEFAULT_SETTINGS,
    samples: int = 1,
    alpha: float = DEFAULT_ALPHA,
    seed: int = 0,
    progress: Progress | None = None,
) -> LosslessReport:
    """Whether each strategy's output is plain decoding's: token by token when greedy, by two-sample tests when sampled.

    Requests are decoded greedily and at every setting, whatever sampling they ask for, `samples` times each. The
    chance that any test raises a false alarm is at most `alpha`, over all strategies together.
    """
    check = LosslessCheck(
        engine, strategies, requests, settings=settings, samples=samples, alpha=alpha, seed=seed, progress=progress
    )
    check.run()
    return check.report()
