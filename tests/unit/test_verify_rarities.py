"""Evidence without a test over many tokens: seldom by chance, at once where something is wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest

from selector.engines.base import TokenScores
from selector.equality import Comparison
from selector.strategy import Strategy
from selector.verify.arms import Arm
from selector.verify.findings import Findings
from selector.verify.notes import Notes
from selector.verify.rarities import RareTokens, Repeats
from selector.verify.report import SampledTest, Setting, Statistic
from selector.workload import Request

SETTING = Setting(temperature=0.7)
HEAD = Strategy(method="eagle3", drafter="head", num_speculative_tokens=4)
NGRAM = Strategy(method="ngram", lookup_min=2, lookup_max=4, num_speculative_tokens=4)


def request(prompt: str, max_tokens: int = 20) -> Request:
    return Request.model_validate({"prompt": prompt, "class": "chat", "max_tokens": max_tokens})


def scores(p: list[float], log_tail: list[float] | None = None) -> TokenScores:
    zero = np.zeros(len(p))
    tail = np.log(p) if log_tail is None else np.array(log_tail)
    return TokenScores(np.array(p), zero, zero, zero, zero, tail, {})


def test_a_rare_token_is_judged_by_all_that_were_drawn() -> None:
    rare = RareTokens()
    for i in range(10):
        rare.add(request(f"prompt {i}"), (5, 6), scores([0.5, 1e-7]), 0.0)
    few, many = Notes(), Notes()
    rare.judge(few, 1e-4)  # 10 outputs of at most 20 tokens: 5e-7 for each
    rare.judge(many, 1e-5)
    assert (few.counts["improbable token"], many.counts["improbable token"]) == (10, 0)
    assert (few.evidence[0].position, few.evidence[0].got) == (1, 6)


def test_rounding_is_allowed_for_and_a_token_outside_the_nucleus_is_not_judged_here() -> None:
    rare, notes = RareTokens(), Notes()
    rare.add(request("a"), (5, 6), scores([1e-9, 0.0], [math.log(1e-9), math.nan]), slack=20.0)
    rare.judge(notes, 1e-3)
    assert not notes.counts


def test_right_draws_are_seldom_called_rare_or_repeated() -> None:
    random, alarms = np.random.default_rng(4), 0
    p = np.array([0.6, 0.3, 0.05, 0.03, 0.015, 0.005])
    for _ in range(1500):
        rare, repeats, notes = RareTokens(), Repeats(), Notes()
        for _ in range(12):  # short outputs of few tokens, so that many are equal by chance
            output = tuple(int(i) for i in random.choice(len(p), 3, p=p))
            found = scores([p[i] for i in output], [math.log(p[i:].sum()) for i in output])
            rare.add(request("a", 3), output, found, 0.0)
            repeats.add(request("a", 3), SETTING, output, found)
        rare.judge(notes, 0.05)
        repeats.judge(notes, 0.05)
        alarms += bool(notes.counts)
    assert alarms / 1500 < 0.1  # a twentieth each


def test_likely_outputs_may_repeat_and_unlikely_ones_may_not() -> None:
    for p, seen in ((0.98, 0), (0.3, 3)):
        repeats, notes = Repeats(), Notes()
        for _ in range(4):
            repeats.add(request("a"), SETTING, (1, 2, 3, 4, 5, 6), scores([p] * 6))
        repeats.judge(notes, 1e-4)
        assert notes.counts["repeated output"] == seen


def test_a_repeat_now_and_then_is_found_among_many_samples() -> None:
    random, repeats, notes = np.random.default_rng(5), Repeats(), Notes()
    for i in range(300):
        output = (0,) * 20 if i in (40, 200) else tuple(int(t) for t in random.integers(9, size=20))
        repeats.add(request("a"), SETTING, output, scores([1 / 9] * 20))
    repeats.judge(notes, 1e-5)
    assert notes.counts["repeated output"] == 1


@pytest.mark.parametrize(
    ("strategy", "places", "verdict"),
    [(HEAD, 199, "inconclusive"), (HEAD, 200, "lossless"), (NGRAM, 30, "lossless")],
)
def test_a_model_drafter_without_a_test_of_its_rejection_rule_has_no_answer(
    strategy: Strategy, places: int, verdict: str
) -> None:
    findings = Findings(strategy, "float32")
    findings.compared.append(Comparison("chat", "0", strategy, "equal", 40))
    findings.arms[SETTING] = Arm(favour={strategy.family: [np.zeros(places)]})
    named: list[Statistic] = ["rank", "drafter's favour"] if places >= 200 else ["rank"]
    tests = [
        SampledTest(
            temperature=0.7, top_p=1.0, statistic=name, plain_tokens=900, strategy_tokens=500, effect=0.02,
            noticeable=0.1, p_value=0.5, corrected_p=1.0,
        )
        for name in named
    ]  # fmt: skip
    report = findings.report(tests, 0.001, rare_level=1e-5, interrupted=False)
    assert (report.verdict, report.first_drafts) == (verdict, places)
    untested = f"the rejection rule was not tested ({places} of 200 places)"
    assert (untested in report.reason) == (places < 200)
