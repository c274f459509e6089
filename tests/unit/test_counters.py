"""Counters of a serving engine: rates from totals, nothing invented (public cases by their id)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selector.counters import NOT_AVAILABLE, SpeculationCounters, did_not_run, pooled, summary
from selector.errors import CountersError, NotMeasured
from selector.reported import ReportedArm, plain_tokens_per_second, reported_acceptance_length

CASES = Path(__file__).parent / "cases"
MAX_K = 5
#: Decode steps as (drafted, accepted) pairs; drafts may be shorter than k, or missing.
STEP = st.integers(0, MAX_K).flatmap(lambda drafted: st.tuples(st.just(drafted), st.integers(0, drafted)))
REQUESTS = st.lists(st.lists(STEP, min_size=1, max_size=20), min_size=1, max_size=4)


def counted(requests: list[list[tuple[int, int]]], *, undrafted: bool = True) -> SpeculationCounters:
    """What an engine would count over these requests, each with a prefill that emits one token."""
    steps = [step for request in requests for step in request]
    return SpeculationCounters(
        drafts=sum(d > 0 for d, _ in steps),
        drafted=sum(d for d, _ in steps),
        accepted=sum(a for _, a in steps),
        accepted_per_position=tuple(sum(a > i for _, a in steps) for i in range(MAX_K)),
        output_tokens=len(requests) + sum(a + 1 for _, a in steps),
        requests=len(requests),
        undrafted=sum(d == 0 for d, _ in steps) if undrafted else None,
    )


def test_acceptance_length_counts_the_bonus_token() -> None:  # C4-01
    counters = SpeculationCounters(drafts=129, drafted=387, accepted=150)
    assert counters.acceptance_length == pytest.approx(2.16, abs=0.005)
    assert summary(counters).startswith("acceptance length (incl. bonus) 2.16, 38.8% of 387 drafted tokens accepted")


def test_a_bare_acceptance_length_is_refused() -> None:  # C4-01
    with pytest.raises(CountersError, match=r"1\.16: with the bonus token or without\? Give the counters"):
        reported_acceptance_length(1.16)
    with pytest.raises(CountersError, match=r"only from 0\.9 on"):
        reported_acceptance_length(1.16, vllm_version="0.8.5.post1")
    with pytest.raises(CountersError, match="below 1"):
        reported_acceptance_length(0.8, vllm_version="0.9.1")
    with pytest.raises(CountersError, match="number of drafts above 0"):
        reported_acceptance_length(counters=SpeculationCounters(0, 0, 0))
    assert reported_acceptance_length(2.16, vllm_version="0.32.0") == 2.16
    counters = SpeculationCounters(drafts=129, drafted=387, accepted=150)
    assert reported_acceptance_length(1.16, counters=counters) == pytest.approx(2.163, abs=0.001)


def test_tokens_per_pass_count_the_tokens_that_came_without_a_draft() -> None:  # C4-03
    eagle = SpeculationCounters(drafts=2189, drafted=3 * 2189, accepted=3187, output_tokens=5376)
    ngram = SpeculationCounters(drafts=993, drafted=5 * 993, accepted=3562, output_tokens=5376)
    assert (eagle.acceptance_length, ngram.acceptance_length) == pytest.approx((2.46, 4.59), abs=0.005)
    assert (eagle.tokens_per_pass, ngram.tokens_per_pass) == pytest.approx((2.46, 5376 / (993 + 821)), abs=0.005)
    assert (ngram.tokens_per_pass or 0) / (eagle.tokens_per_pass or 1) == pytest.approx(1.2, abs=0.01)
    assert ngram.tokens_per_step is None  # the report does not say how many requests


def test_windows_are_pooled_by_totals() -> None:  # C4-05
    windows = [SpeculationCounters(n // 3, n, a) for a, n in ((150, 387), (725, 1488), (5306, 8703))]
    total = pooled(windows)
    assert total is not None
    assert (total.accepted, total.drafted) == (6181, 10578)
    assert total.acceptance_rate == pytest.approx(0.584, abs=0.0005)
    assert total.acceptance_length == pytest.approx(2.75, abs=0.005)
    mean_of_rates = sum(w.acceptance_rate or 0 for w in windows) / 3
    assert mean_of_rates == pytest.approx(0.495, abs=0.0005)


def test_drafts_of_varying_length_do_not_change_the_acceptance_length() -> None:  # C4-07
    counters = SpeculationCounters(drafts=87, drafted=259, accepted=167, accepted_per_position=(70, 55, 42))
    assert counters.acceptance_length == pytest.approx(2.92, abs=0.005)
    assert counters.per_position == pytest.approx((0.805, 0.632, 0.483), abs=0.0005)
    assert counters.draft_lengths_vary
    assert counters.mean_draft_length == pytest.approx(259 / 87)
    assert summary(counters).endswith("by position 0.805/0.632/0.483 (biased: drafts vary in length)")
    even = SpeculationCounters(drafts=87, drafted=261, accepted=167, accepted_per_position=(70, 55, 42))
    assert even.draft_lengths_vary is False


def test_without_counters_nothing_is_read_as_zero() -> None:  # C4-11
    assert summary(None) == NOT_AVAILABLE == "Counters not available (stats disabled)"
    assert pooled([]) is None
    assert did_not_run(None, "eagle3") is None
    empty = SpeculationCounters(drafts=0, drafted=0, accepted=0)
    assert {empty.acceptance_length, empty.acceptance_rate, empty.mean_draft_length, empty.per_position} == {None}
    assert {empty.tokens_per_step, empty.tokens_per_pass, empty.decode_steps, empty.draft_lengths_vary} == {None}
    assert summary(empty) == "no draft was made"


def test_an_expected_method_without_drafts_did_not_run() -> None:  # C2-16
    case = json.loads((CASES / "C2-16.json").read_text("utf-8"))
    seen = case["observed_after_start"]
    counters = SpeculationCounters(
        seen["num_drafts"],
        seen["num_draft_tokens"],
        seen["num_accepted_tokens"],
        output_tokens=seen["generated_tokens"],
        requests=seen["requests_finished"],
    )
    said = did_not_run(counters, case["draft"]["kind"]) or ""
    assert said.startswith(
        "speculation did not run: eagle3 was expected, and the engine counted no draft in 200 requests"
    )
    assert "speculative_config" in said
    assert counters.acceptance_rate is None
    assert counters.tokens_per_step == 1
    assert did_not_run(counters, "none") is None
    assert "no prompt held anything to copy" in (did_not_run(counters, "ngram") or "")
    assert did_not_run(SpeculationCounters(1, 3, 0), "eagle3") is None


def test_a_baseline_in_percent_is_refused_with_what_it_implies() -> None:  # C1-23
    arms = [ReportedArm("eagle k=1", 108.45, 32), ReportedArm("eagle k=32", 48.32, -34)]
    with pytest.raises(NotMeasured) as caught:
        plain_tokens_per_second(arms)
    assert "eagle k=1 implies 82.2 tok/s, eagle k=32 implies 73.2 tok/s" in str(caught.value)
    assert "Give plain decoding's own tok/s" in str(caught.value)
    assert plain_tokens_per_second([*arms, ReportedArm("none", 80.0)]) == 80.0
    with pytest.raises(NotMeasured, match=r"no arm 'none' among ngram\. Give"):
        plain_tokens_per_second([ReportedArm("ngram", 50.0)])


@pytest.mark.parametrize(
    ("counters", "said"),
    [
        ((3, 9, 10), "10 tokens accepted of 9 drafted"),
        ((3, 9, -1), r"negative counter \(accepted -1\)"),
        ((3, 9, 4, (2, 1)), "adds up to 3, accepted is 4"),
        ((3, 9, 4, (5, -1)), r"negative counter \(accepted_per_position\)"),
    ],
)
def test_counters_that_contradict_each_other_are_refused(counters: tuple[int, int, int], said: str) -> None:
    with pytest.raises(CountersError, match=said):
        SpeculationCounters(*counters)


def test_a_restart_between_two_readings_is_noticed() -> None:
    before, after = SpeculationCounters(10, 30, 20), SpeculationCounters(2, 6, 3)
    with pytest.raises(CountersError, match="restarted between them"):
        after.minus(before)


def test_readings_of_different_k_are_not_pooled() -> None:
    with pytest.raises(CountersError, match="pool each k on its own"):
        SpeculationCounters(1, 2, 1, (1, 0)).plus(SpeculationCounters(1, 3, 1, (1, 0, 0)))
    assert SpeculationCounters(1, 2, 1, (1, 0)).plus(SpeculationCounters(1, 3, 1)).accepted_per_position == ()


def test_tokens_accepted_behind_a_stop_do_not_make_fewer_steps_than_drafts() -> None:
    counters = SpeculationCounters(drafts=10, drafted=30, accepted=30, output_tokens=39, requests=1)
    assert counters.decode_steps == 10  # 39 - 1 - 30 = 8 would be too few: two accepted tokens were never sent
    assert counters.tokens_per_step == 3.8


@given(st.lists(REQUESTS, min_size=1, max_size=4))
def test_a_pooled_rate_is_the_ratio_of_totals(windows: list[list[list[tuple[int, int]]]]) -> None:
    total = pooled(counted(w) for w in windows)
    assert total == counted([request for window in windows for request in window])
    if total.drafted:
        rates = [(c.acceptance_rate or 0, c.drafted) for c in map(counted, windows)]
        weighted = sum(rate * drafted for rate, drafted in rates) / total.drafted
        assert total.acceptance_rate == pytest.approx(weighted)


@given(REQUESTS, REQUESTS)
def test_a_difference_undoes_a_sum(one: list[list[tuple[int, int]]], two: list[list[tuple[int, int]]]) -> None:
    a, b = counted(one), counted(two)
    assert a.plus(b) == b.plus(a)
    assert a.plus(b).minus(b) == a


@given(REQUESTS)
def test_tau_lies_between_one_and_k_plus_one(requests: list[list[tuple[int, int]]]) -> None:
    given_steps, from_tokens = counted(requests), counted(requests, undrafted=False)
    steps = sum(len(r) for r in requests)
    assert given_steps.decode_steps == from_tokens.decode_steps == steps
    tau, per_pass = from_tokens.tokens_per_step, from_tokens.tokens_per_pass
    assert tau is not None
    assert per_pass is not None
    assert given_steps.tokens_per_step == tau
    assert 1 <= per_pass <= tau <= 1 + MAX_K
    if from_tokens.acceptance_length is not None:
        assert tau <= from_tokens.acceptance_length + 1e-9  # steps without a draft only lower it
