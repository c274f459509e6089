"""Reading /metrics: vLLM's own text, and what must not be mistaken."""

from __future__ import annotations

from pathlib import Path

import pytest

from selector.engines.served.metric_names import COUNTERS
from selector.engines.served.prometheus import Counters, Gauges, MetricsError

DATA = Path(__file__).parent / "data" / "vllm-0.32"
BEFORE = (DATA / "metrics-before.txt").read_text("utf-8")
AFTER = (DATA / "metrics-after.txt").read_text("utf-8")


def test_a_recorded_run_is_the_difference_of_two_readings() -> None:
    run = Counters.parse(AFTER).minus(Counters.parse(BEFORE))
    assert {name: run.get(name) for name in COUNTERS} == {
        "engine_steps": 288.0,
        "generated_tokens": 784.0,
        "prompt_tokens": 370.0,
        "prefix_queries": 0.0,
        "prefix_hits": 0.0,
        "drafts": 508.0,
        "drafted_tokens": 2023.0,
        "accepted_tokens": 249.0,
        "accepted_per_position": 249.0,
        "preemptions": 0.0,
        "finished_requests": 14.0,
    }
    assert run.accepted_per_position == (185.0, 46.0, 9.0, 9.0)
    assert run.gauges == Gauges(running=0, waiting=0, kv_usage=0)
    assert run.by_label("vllm:request_success", "finished_reason") == {
        "stop": 0,
        "length": 14,
        "abort": 0,
        "error": 0,
        "repetition": 0,
    }


def test_polling_reads_the_same_gauges() -> None:
    busy = AFTER.replace(
        'vllm:num_requests_running{engine="0",model_name="t"} 0.0', 'vllm:num_requests_running{engine="0"} 3'
    )
    assert Gauges.parse(busy) == Gauges(running=3, waiting=0, kv_usage=0)


@pytest.mark.parametrize("name", ["vllm:generation_tokens", "vllm:generation_tokens_total"])
@pytest.mark.parametrize("shown", ["vllm:generation_tokens", "vllm:generation_tokens_total"])
def test_a_counter_is_found_in_both_spellings_and_summed_over_engines(name: str, shown: str) -> None:
    counters = Counters.parse(f'{shown}{{engine="0"}} 4\n{shown}{{engine="1"}} 5.5\n')
    assert counters.total(name) == 9.5
    assert counters.by_label(name, "engine") == {"0": 4, "1": 5.5}


def test_a_missing_metric_is_none_and_not_zero() -> None:
    nothing = Counters.parse("")
    assert nothing.engine_steps is None
    assert nothing.accepted_per_position is None
    assert nothing.by_label("vllm:generation_tokens", "engine") is None
    assert nothing.gauges == Gauges(None, None, None)


def test_sglang_is_read_by_the_same_names() -> None:
    text = 'sglang:generation_tokens_total 8\nsglang:num_running_reqs{tp_rank="0"} 3\nsglang:token_usage 0.85\n'
    counters = Counters.parse(text)
    assert counters.generated_tokens == 8
    assert counters.gauges == Gauges(running=3, waiting=None, kv_usage=0.85)


def test_labels_may_hold_braces_commas_and_escapes() -> None:
    counters = Counters.parse('a_total{x="1,}\\"\\\\",y="\\n{"} +Inf 1700000000\n')
    assert counters.by_label("a", "x") == {'1,}"\\': float("inf")}
    assert counters.by_label("a", "y") == {"\n{": float("inf")}


@pytest.mark.parametrize("line", ["<html>", 'a{x="1} 3', "a{x=1} 3", "a three", "a 1 2 3"])
def test_what_is_not_prometheus_text_is_refused(line: str) -> None:
    with pytest.raises(MetricsError, match="not a Prometheus sample"):
        Counters.parse(f"fine 1\n{line}\n")


@pytest.mark.parametrize(
    ("later", "sign"),
    [("a_total 3\n", "a_total fell by 2"), ("b_total 9\n", "a_total is gone")],
)
def test_a_restarted_server_is_noticed(later: str, sign: str) -> None:
    with pytest.raises(MetricsError, match=f"restarted between two readings.*{sign}"):
        Counters.parse(later).minus(Counters.parse("a_total 5\n"))


def test_a_restart_is_noticed_even_when_the_counters_have_overtaken() -> None:
    before, after = (Counters.parse(f"process_start_time_seconds {t}\na_total {t}\n") for t in (1, 2))
    with pytest.raises(MetricsError, match="start time"):
        after.minus(before)


def test_a_gauge_may_fall_and_a_new_label_counts_from_zero() -> None:
    types = "# TYPE g gauge\n# TYPE a counter\n"
    run = Counters.parse(types + 'g 1\na_total{p="0"} 4\na_total{p="1"} 2\n').minus(
        Counters.parse(types + 'g 7\na_total{p="0"} 1\n')
    )
    assert run.total("g") == 1
    assert run.by_label("a", "p") == {"0": 3, "1": 2}
