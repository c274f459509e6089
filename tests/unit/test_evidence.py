"""Cells that must not decide, and why (public cases by their id)."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selector.counters import SpeculationCounters
from selector.doubt import Doubt, Metric
from selector.errors import NotMeasured
from selector.evidence import Cell, PromptRun, canary, capacity, doubts, first_repeats
from selector.outputs import Output, stuck_share
from selector.ranking import rank
from selector.stream import Stream, stream_times

CASES = Path(__file__).parent / "cases"
STUCK = Output(tokens=90, finish="length", token_ids=(5, 6) * 45)
FINE = Output(tokens=90, finish="stop", token_ids=tuple(range(90)))


def case(name: str) -> Any:
    return json.loads((CASES / name).read_text("utf-8"))


def rows(name: str) -> list[Any]:
    return [json.loads(line) for line in (CASES / name).read_text("utf-8").splitlines()]


def kinds(found: list[Doubt]) -> list[str]:
    return [d.kind for d in found]


def sweep_cell(row: dict[str, Any]) -> Cell:
    """A cell of a load sweep; its tokens per second follow from TPOT, as all its requests decode at once."""
    return Cell(
        "none",
        row["concurrency"],
        prefix_cache_queries=row.get("prefix_cache_queries"),
        prefix_cache_hits=row.get("prefix_cache_hits"),
        tpot_ms=row["tpot_ms"],
        tokens_per_second=row["concurrency"] / row["tpot_ms"] * 1e3,
    )


def test_cells_from_a_warm_prefix_cache_are_not_ranked() -> None:  # C5-01
    c = case("C5-01.json")
    cells = [sweep_cell(row) for row in c["cells"]]
    ranked = rank(cells, "tokens_per_second")
    assert [cell.load for cell in ranked.order] == [1]
    assert [(cell.load, *kinds(list(ds))) for cell, ds in ranked.left_out] == [
        (4, "contaminated"), (8, "contaminated"), (16, "contaminated")
    ]  # fmt: skip
    assert ranked.why[0] == (
        "none at load 4: left out: contaminated: 61% of the prompt tokens came from the prefix cache: reset the cache "
        "or use a new seed, and measure again"
    )
    cold = [sweep_cell(row) for row in c["cold_repeat"]]
    # Warm, load 8 seemed to give the most tokens per second; cold, more load gives more.
    assert max(cells, key=lambda cell: cell.tokens_per_second or 0).load == 8
    assert [cell.load for cell in rank(cold, "tokens_per_second").order] == [16, 8, 4, 1]
    gain = [a["tpot_ms"] / b["tpot_ms"] - 1 for a, b in zip(c["cold_repeat"], c["cells"], strict=True)]
    assert gain[1:] == pytest.approx([0.59, 0.76, 0.25], abs=0.005)


@pytest.mark.parametrize(("hits", "found"), [(9, []), (10, ["contaminated"]), (None, [])])
def test_one_percent_is_the_limit_of_cache_hits(hits: int | None, found: list[str]) -> None:
    assert kinds(doubts(Cell("none", prefix_cache_queries=1000, prefix_cache_hits=hits))) == found


def test_time_per_token_is_not_the_gap_between_chunks() -> None:  # C5-03
    events = rows("C5-03.jsonl")
    chunks = [e for e in events if e["event"] == "chunk"]
    stream = Stream(
        events[0]["t_ms"] / 1e3, tuple(e["t_ms"] / 1e3 for e in chunks), events[-1]["completion_tokens"]
    )  # fmt: skip
    times = stream_times([stream])
    assert times.output_tokens == sum(e["tokens"] for e in chunks) == 449
    assert times.tpot_ms == pytest.approx(3.43, abs=0.005)
    assert times.decode_tokens_per_second == pytest.approx(291.9, abs=0.05)
    assert times.chunk_gap_ms == pytest.approx(8.72, abs=0.005)
    assert stream.decode_tokens_per_second == pytest.approx(times.decode_tokens_per_second)
    assert stream.ttft_ms == pytest.approx(61.0)
    assert str(times) == "449 tokens, TPOT 3.43 ms, chunk gap 8.72 ms"


def test_a_buffered_stream_has_tokens_and_tpot_but_no_chunk_latency() -> None:  # C5-09
    streams = [
        Stream(
            r["sent_s"], tuple(c["t_s"] for c in r["chunks"]), r["usage_completion_tokens"], r["ttft_s"], r["done_s"]
        )
        for r in rows("C5-09.jsonl")
    ]
    times = stream_times(streams)
    assert (times.requests, times.output_tokens, times.buffered) == (32, 6400, 32)
    assert times.tpot_ms == pytest.approx(26.1, abs=0.05)
    assert times.chunk_gap_ms is None
    assert str(times) == (
        "6400 tokens, TPOT 26.06 ms, chunk gap not available; buffered in 32 of 32 responses: TPOT is from end to end"
    )
    mixed = stream_times([*streams, Stream(0.0, (0.1, 0.2), 4)])
    assert (mixed.buffered, mixed.chunk_gap_ms) == (32, None)  # one stream's gaps would not be those of the cell
    unknown = Stream(0.0, (6.4,), 200)  # its only chunk is no first token
    assert (unknown.ttft_ms, unknown.tpot_ms, unknown.decode_tokens_per_second) == (None, None, None)


def test_a_stream_without_a_token_count_is_not_guessed() -> None:
    with pytest.raises(NotMeasured, match="include_usage"):
        stream_times([Stream(0.0, (0.1, 0.2), None)])
    assert Stream(0.0, (0.1, 0.2), None).ttft_ms == pytest.approx(100)
    with pytest.raises(NotMeasured, match="run backwards"):
        Stream(0.0, (0.2, 0.1), 2)


@given(st.lists(st.tuples(st.floats(0.001, 1), st.integers(1, 8)), min_size=1, max_size=30))
def test_chunk_gaps_are_never_below_tpot(chunks: list[tuple[float, int]]) -> None:
    at, times = 0.0, []
    for gap, _ in chunks:
        at += gap
        times.append(at)
    stream = Stream(0.0, tuple(times), 1 + sum(n for _, n in chunks[1:]))
    if stream.chunk_gap_ms is not None:
        assert stream.tpot_ms is not None
        assert stream.tpot_ms <= stream.chunk_gap_ms + 1e-9


def test_an_arm_stuck_in_a_loop_is_disqualified_and_a_healthy_one_stands() -> None:  # C5-05
    cells = [
        Cell(
            r["arm"],
            output_tokens=r["completion_tokens"],
            tokens_per_second=r["tok_s"],
            outputs=(Output(r["completion_tokens"], r["finish_reason"], r["text"]),),
        )
        for r in rows("C5-05.jsonl")
    ]
    ranked = rank(cells, "tokens_per_second")
    assert [cell.arm for cell in ranked.order] == ["A"]
    ((left_out, (doubt,)),) = ranked.left_out
    assert (left_out.arm, left_out.output_tokens, doubt.kind) == ("B", 900, "looping")
    assert "1 of 1 outputs repeat themselves to the end, 100% of the tokens: disqualified" in doubt.sentence


@pytest.mark.parametrize(
    ("output", "stuck"),
    [
        (STUCK, True),
        (FINE, False),
        (Output(200, "length", "!" * 200), True),
        (Output(200, "length", "\u597d\u7684" * 100), True),
        (Output(200, "length", "one two thr " * 40 + "on"), True),  # the limit cut the last word
        (Output(200, "stop", "Once there were many words in here and then a rule of dashes " + "-" * 9), False),
        (Output(180, "stop", token_ids=tuple(range(60)) * 3), False),  # a refrain, and it ended by itself
        (Output(180, "length", token_ids=tuple(range(60)) * 3), True),
        (Output(90, "stop", token_ids=(5, 6) * 45), True),
        (Output(0, "stop"), False),
    ],
)
def test_what_counts_as_stuck(output: Output, stuck: bool) -> None:
    assert output.stuck is stuck


def test_loops_that_plain_decoding_shows_too_are_not_the_arms_fault() -> None:
    plain = Cell("none", 1, outputs=(STUCK, FINE))
    assert doubts(Cell("ngram k=3", 1, outputs=(STUCK, FINE)), plain) == []
    assert kinds(doubts(Cell("ngram k=3", 1, outputs=(STUCK, STUCK)), plain)) == ["looping"]
    assert "(plain decoding: 50%)" in doubts(Cell("ngram k=3", 1, outputs=(STUCK, STUCK)), plain)[0].sentence
    assert doubts(plain) == []
    assert stuck_share([]) == 0


def test_repeats_of_one_prompt_are_no_samples() -> None:  # C5-11
    runs = [PromptRun(r["prompt_sha"], r["repeat"], r["decode_tok_s"]) for r in rows("C5-11.jsonl")]
    kept, found = first_repeats(runs[::-1])
    assert [(r.repeat, r.tokens_per_second) for r in kept] == [(1, 46.65)]
    assert kinds(found) == ["repeated prompt"]
    assert "3 of 4 runs repeat a prompt" in found[0].sentence
    assert first_repeats(runs[:1]) == (runs[:1], [])


def test_a_saturated_server_does_not_decide_latency_nor_a_bound_rate_throughput() -> None:  # C5-13
    cells = [
        Cell(
            x["arm"],
            rate=float(x["request_rate"]),
            waiting_max=x["waiting_max"],
            running_max=x["running_max"],
            tokens_per_second=x["output_tok_s"],
            tpot_ms=x.get("tpot_ms"),
        )
        for x in case("C5-13.json")["cells"]
    ]
    assert [kinds(doubts(c)) for c in cells] == [["saturated"], ["saturated"], ["rate-bound"], ["rate-bound"]]
    latency = rank(cells, "tpot_ms")
    assert [(c.arm, c.rate, c.tpot_ms) for c in latency.order] == [("suffix", 5, 12.5), ("none", 5, 29.0)]
    assert {c.rate for c, _ in latency.left_out} == {math.inf}
    assert any(line.startswith("none at unlimited rate: left out: saturated: up to 633") for line in latency.why)
    throughput = rank(cells, "tokens_per_second")
    assert [c.arm for c in throughput.order] == ["none", "suffix"]
    assert {(c.rate, ds[0].kind) for c, ds in throughput.left_out} == {(5.0, "rate-bound")}


def test_arms_of_different_length_are_compared_by_tokens_per_second() -> None:  # C5-15
    c = case("C5-15.json")
    batches = []
    for i in range(2):
        cells = []
        for arm in c["arms"]:
            b = arm["batches"][i]
            cells.append(
                Cell(
                    arm["method"],
                    temperature=c["temperature"],
                    output_tokens=round(b["wall_s"] * b["output_tok_s"]),
                    wall_seconds=b["wall_s"],
                    tokens_per_second=b["output_tok_s"],
                )
            )
        batches.append(cells)
    assert [[cell.output_tokens for cell in cells] for cells in batches] == [[10236, 2118], [9154, 946]]
    for cells in batches:
        by_time = rank(cells, "wall_seconds")
        assert [cell.arm for cell in by_time.order] == ["none"]
        ((arm, (doubt,)),) = by_time.left_out
        assert (arm.arm, doubt.kind) == ("ngram", "outputs differ")
        assert doubt.sentence.startswith(
            f"{cells[1].output_tokens} output tokens, plain decoding {cells[0].output_tokens}"
        )
        assert "run selector verify first" in doubt.sentence
        by_rate = rank(cells, "tokens_per_second")
        assert [cell.arm for cell in by_rate.order] == ["none", "ngram"]
        assert by_rate.notes == ((cells[1], doubt),)


def test_unequal_lengths_under_equal_settings_are_flagged() -> None:  # C1-17
    plain = Cell("none", output_tokens=1000, tokens_per_second=69.79, wall_seconds=14.33)
    ngram = Cell("ngram k=5", output_tokens=947, tokens_per_second=61.79, wall_seconds=15.33)
    (doubt,) = doubts(ngram, plain)
    assert doubt.kind == "unequal lengths"
    assert doubt.sentence.startswith("947 output tokens, plain decoding 1000: compare by tokens per second")
    assert [c.arm for c in rank([ngram, plain], "tokens_per_second").order] == ["none", "ngram k=5"]
    assert doubts(Cell("ngram k=5", output_tokens=995), plain) == []


def test_concurrency_that_a_method_loses_is_charged_to_it() -> None:  # C1-25
    mtp = Cell("mtp k=1", 8, running_max=3, waiting_max=5, tokens_per_second=100.0)
    plain = Cell("none", 8, running_max=8, waiting_max=1, tokens_per_second=90.0)
    (doubt,) = doubts(mtp)
    assert doubt.kind == "capacity lost"
    assert doubt.sentence.startswith("3 of 8 requests ran at once, 5 waiting")
    assert [load for load in (1, 2, 3, 4, 8) if load <= (capacity([plain, mtp]) or 0)] == [1, 2, 3]
    assert capacity([plain]) is None
    assert capacity([mtp, Cell("mtp k=1", 16, running_max=4, waiting_max=12)]) == 3
    full = Cell("none", 8, running_max=6, waiting_max=2)
    assert "6 of 8 requests ran at once, 2 waiting: the server holds no more" in doubts(full)[0].sentence
    ranked = rank([mtp, plain], "tokens_per_second")
    assert [c.arm for c in ranked.order] == ["none"]
    assert ranked.why == [f"mtp k=1 at load 8: left out: capacity lost: {doubt.sentence}"]
    few = Cell("mtp k=1", 8, running_max=3, waiting_max=0)
    assert kinds(doubts(few)) == ["load not reached"]


def test_a_method_that_fails_on_the_canary_is_broken() -> None:  # C1-13
    broken = SpeculationCounters(500, 2500, 12, (10, 1, 1, 0, 0))
    (doubt,) = canary("mtp", broken)
    assert doubt.kind == "broken"
    assert "mtp is broken on this build: 2.0% acceptance at the first position" in doubt.sentence
    assert "a smaller k does not mend it" in doubt.sentence
    assert canary("mtp", SpeculationCounters(100, 400, 400, (100, 100, 100, 100))) == []
    assert canary("mtp", None) == []
    assert kinds(canary("mtp", SpeculationCounters(100, 400, 29))) == ["broken"]
    assert kinds(canary("mtp", SpeculationCounters(0, 0, 0))) == ["did not run"]


def test_an_arm_that_never_drafted_is_left_out() -> None:  # C2-16
    cell = Cell("eagle3 k=3", 1, tpot_ms=9.0, counters=SpeculationCounters(0, 0, 0, requests=200))
    assert [(d.kind, d.sentence.partition(":")[0]) for d in doubts(cell)] == [
        ("did not run", "speculation did not run")
    ]  # fmt: skip
    assert rank([cell], "tpot_ms").order == ()


def test_timing_without_counters_still_decides() -> None:  # C4-11
    cells = [Cell("none", 1, tpot_ms=10.0), Cell("ngram k=3", 1, tpot_ms=8.0, counters=None)]
    assert [c.arm for c in rank(cells, "tpot_ms").order] == ["ngram k=3", "none"]
    assert rank(cells, "tpot_ms").why == []


def test_more_accepted_tokens_do_not_win_over_time() -> None:  # C4-09
    long_drafts = SpeculationCounters(100, 500, 290)
    short_drafts = SpeculationCounters(100, 200, 140)
    cells = [
        Cell("none", 1, tokens_per_second=10.0),
        Cell("draft_model k=5", 1, tokens_per_second=8.0, counters=long_drafts),
        Cell("eagle3 k=2", 1, tokens_per_second=13.0, counters=short_drafts),
    ]
    assert (long_drafts.acceptance_length, short_drafts.acceptance_length) == pytest.approx((3.9, 2.4))
    assert [c.arm for c in rank(cells, "tokens_per_second").order] == ["eagle3 k=2", "none", "draft_model k=5"]


@pytest.mark.parametrize("by", ["tpot_ms", "wall_seconds", "requests_per_second", "tokens_per_second"])
def test_a_cell_without_the_metric_is_left_out_by_name(by: Metric) -> None:
    ranked = rank([Cell("ngram k=3", 2)], by)
    assert ranked.order == ()
    assert ranked.why == [f"ngram k=3 at load 2: left out: not measured: {by} was not measured"]
