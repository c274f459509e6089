"""Recommendations on published cases and on the fake engine."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from selector.cli.recommend import command
from selector.engines.fake import FakeClass, FakeCost, FakeEngine
from selector.errors import MeasurementFailed, NotMeasured, PolicyError, WorkloadError
from selector.policy import Policy, load_policy
from selector.profile import ConfirmedCell, Profile, load_profile, write_json
from selector.recommend import parse_traffic, recommend, render
from selector.recommend.arena import Arena
from selector.recommend.candidates import simplicity, tied
from selector.recommend.current import read_current
from selector.recommend.schedule import Grid, as_ranges, best_ranges
from selector.recommend.servers import slower_note
from selector.strategy import PLAIN, Strategy
from selector.workload import Workload
from tests.unit.fake_profiles import (
    DRAFT,
    EAGLE,
    NGRAM,
    fake_profile,
    fake_requests,
    table_profile,
    table_strategy,
)

# C1-01: tokens/s of the server at 1, 2, 4 parallel; MTP stands as eagle3, DFlash as draft_model
LOAD_TIED = {
    "code": {
        "none": {1: 11.11, 2: 20.14, 4: 34.14},
        "eagle3 k=1": {1: 22.10, 2: 16.52, 4: 26.35},
        "draft_model k=2": {1: 21.22, 2: 15.87, 4: 25.32},
    }
}
# C1-05: three classes, four arms
THREE_CLASSES = {
    "code": {"none": {1: 22.5}, "eagle3 k=5": {1: 30.3}, "draft_model k=20": {1: 32.1}},
    "technical": {"none": {1: 22.3}, "eagle3 k=5": {1: 24.1}, "draft_model k=20": {1: 22.9}},
    "creative": {"none": {1: 22.3}, "eagle3 k=5": {1: 20.4}, "draft_model k=20": {1: 19.6}},
}


@pytest.fixture(scope="module")
def measured() -> Profile:
    return fake_profile(
        FakeEngine(seed=1),
        fake_requests(["chat", "code", "edit", "translate"], 12),
        confirm=[("code", EAGLE.with_k(3)), ("edit", NGRAM)],
        confirm_prompts=12,
    )


@pytest.fixture(scope="module")
def policy(measured: Profile) -> Policy:
    return recommend(measured, load=4, draws=100)


@pytest.mark.parametrize(("load", "expected", "speedup"), [(1, "eagle3 k=1", 1.99), (2, "none", 1.0), (4, "none", 1.0)])
def test_the_answer_is_tied_to_the_load(load: int, expected: str, speedup: float) -> None:
    p = recommend(table_profile(LOAD_TIED), load=load, draws=100)
    assert p.pools[0].strategy == table_strategy(expected)
    assert p.speedup.value == pytest.approx(speedup, abs=0.005)
    warned = any("plain decoding is faster at batch 2, 4" in n for n in p.notes)
    assert warned == (load == 1)


def test_classes_want_different_strategies_and_one_server_compromises() -> None:
    p = recommend(table_profile(THREE_CLASSES), draws=100)
    by_class = {c.request_class: c for c in p.classes}
    assert p.pools[0].strategy == table_strategy("eagle3 k=5")
    assert by_class["code"].own_best == table_strategy("draft_model k=20")
    assert by_class["code"].own_best_speedup.value == pytest.approx(1.43, abs=0.01)
    assert by_class["technical"].own_best == table_strategy("eagle3 k=5")
    assert by_class["technical"].speedup.value == pytest.approx(1.08, abs=0.01)
    assert by_class["creative"].own_best == PLAIN
    assert by_class["creative"].speedup.value == pytest.approx(20.4 / 22.3, abs=0.005)
    assert "slower" in render(p)


def test_a_tie_is_shown_and_the_smaller_k_wins() -> None:  # C1-07
    sweep = {"none": 24.6} | {f"eagle3 k={k}": v for k, v in enumerate((28.2, 30.9, 29.9, 31.2, 27.5, 26.8), 1)}
    profile = table_profile({"c": {a: {1: v} for a, v in sweep.items()}}, aa_noise=0.02, repeats=(0.98, 1.0, 1.02))
    p = recommend(profile, draws=100)
    assert p.pools[0].strategy.k == 2
    assert p.speedup.value == pytest.approx(1.26, abs=0.005)
    assert p.classes[0].tie_set == ("eagle3 k=2", "eagle3 k=4")
    assert "ties: eagle3 k=4" in render(p)


@pytest.mark.parametrize(("tau", "k", "speedup"), [(2.0, 0, 1.0), (3.5, 0, 1.0), (5.5, 7, 1.11)])
def test_speculation_has_to_break_even(tau: float, k: int, speedup: float) -> None:  # C1-09
    seconds = 8 / 102.94
    arms = {"none": {1: 63.62}, "eagle3 k=7": {1: tau / seconds}}
    p = recommend(table_profile({"c": arms}, tau={"eagle3 k=7": tau}), draws=100)
    assert p.pools[0].strategy.k == k
    assert p.speedup.value == pytest.approx(speedup, abs=0.01)
    assert "needs 4.94 to break even" in p.classes[0].reason
    assert p.classes[0].break_even_tau == pytest.approx(4.94 if k else 1.0, abs=0.01)


def test_without_a_plain_arm_nothing_is_claimed() -> None:  # C1-11
    profile = table_profile(LOAD_TIED)
    rows = tuple(r for r in profile.step_costs if r.method != "none")
    with pytest.raises(MeasurementFailed, match="no plain run"):
        recommend(profile.model_copy(update={"step_costs": rows}))


def test_none_wins_when_every_arm_loses() -> None:  # C7-01
    p = recommend(
        table_profile({"c": {"none": {1: 20.0}, "eagle3 k=3": {1: 19.0}, "draft_model k=4": {1: 15.0}}}),
        draws=100,
    )
    assert p.pools[0].strategy == PLAIN
    assert (p.speedup.value, p.speedup.low, p.regret.p95) == (1.0, 1.0, 0.0)
    assert "none (plain decoding)" in render(p)


def test_none_wins_ties() -> None:
    p = recommend(table_profile({"c": {"none": {1: 20.0}, "eagle3 k=3": {1: 20.15}}}), draws=100)
    assert p.pools[0].strategy == PLAIN
    assert p.classes[0].tie_set == ("none", "eagle3 k=3")


def test_time_ranks_and_accepted_length_does_not() -> None:  # C4-09
    arms = {"none": {1: 10.0}, "draft_model k=3": {1: 8.0}, "eagle3 k=2": {1: 13.0}}
    p = recommend(table_profile({"c": arms}, tau={"draft_model k=3": 3.9, "eagle3 k=2": 2.4}), draws=100)
    assert p.pools[0].strategy == table_strategy("eagle3 k=2")
    assert p.classes[0].tau == pytest.approx(2.4, abs=0.02)
    assert p.classes[0].break_even_tau == pytest.approx(2.4 / 1.3, abs=0.02)


def test_speed_need_not_be_monotone_in_k() -> None:  # C1-03
    block = {"none": {1: 16.51}, "eagle3 k=3": {1: 12.65}, "eagle3 k=5": {1: 12.96}, "eagle3 k=7": {1: 19.70}}
    assert recommend(table_profile({"c": block}), draws=100).pools[0].strategy.k == 7
    both = recommend(table_profile({"c": block | {"draft_model k=3": {1: 21.53}}}), draws=100)
    assert both.pools[0].strategy == table_strategy("draft_model k=3")
    assert both.speedup.value == pytest.approx(1.30, abs=0.005)
    assert any("draft_model d-draft_model k=1" in n for n in both.regret.not_considered)


def test_uncertain_winners_are_not_recommended() -> None:
    profile = table_profile({"c": {"none": {1: 20.0}, "eagle3 k=3": {1: 21.0}}}, repeats=(0.8, 1.0, 1.25))
    p = recommend(profile, draws=200)
    assert p.pools[0].strategy == PLAIN


def test_tie_order() -> None:
    order = [PLAIN, NGRAM.with_k(1), EAGLE.with_k(1), DRAFT.with_k(1), NGRAM.with_k(2)]
    assert sorted(order[::-1], key=simplicity) == order
    assert tied({EAGLE: 2.0, DRAFT.with_k(1): 1.99, PLAIN: 1.0}, 0.01) == [DRAFT.with_k(1), EAGLE]


def test_confirmed_cells_show_their_measured_ratio(measured: Profile) -> None:
    p = recommend(measured, load=1, draws=100)
    edit = next(c for c in p.classes if c.request_class == "edit")
    cells = {c.strategy: c.runs for c in measured.confirmed if c.request_class == "edit"}

    def total(strategy: Strategy) -> float:
        ids = {r.id for r in cells[strategy]}
        return sum(sorted(r.prefill_seconds + r.decode_seconds for r in cells[strategy] if r.id == i)[1] for i in ids)

    assert edit.own_best == NGRAM
    assert edit.own_best_speedup.basis == "measured"
    assert edit.own_best_speedup.value == pytest.approx(total(PLAIN) / total(NGRAM))
    bases = {c.request_class: c.own_best_speedup.basis for c in p.classes}
    assert bases["chat"] == "composed, checked"
    assert p.regret.cells_measured == 4
    assert p.regret.composition_error is not None
    assert p.regret.composition_error < 0.03


def test_a_few_confirmed_prompts_are_carried_to_the_whole_class() -> None:
    """No noise: prompts that did not run must not change what composition and measurement agree on."""
    engine = FakeEngine(cost=FakeCost(noise=0.0))
    requests = fake_requests(["edit"], 12)
    plain, few = (
        recommend(fake_profile(engine, requests, confirm=cells, confirm_prompts=6), draws=50).classes[0]
        for cells in ([], [("edit", NGRAM)])
    )
    assert few.own_best_speedup.basis == "measured"
    assert few.own_best_speedup.value == pytest.approx(plain.own_best_speedup.value, rel=0.01)


def test_choice_is_the_truth_of_the_fake_engine(measured: Profile) -> None:
    exact = fake_profile(FakeEngine(cost=FakeCost(noise=0.0)), fake_requests(["chat", "code", "edit", "translate"], 12))
    best = recommend(exact, load=4, draws=50)
    noisy = recommend(measured, load=4, draws=100)
    assert noisy.pools[0].strategy.family == best.pools[0].strategy.family
    assert noisy.speedup.low <= best.speedup.value <= noisy.speedup.high


def test_policy_is_whole(policy: Policy, measured: Profile) -> None:
    pool = policy.pools[0]
    assert (pool.server_share, pool.max_batch, pool.expected_batch) == (1.0, 8, 4)
    assert pool.traffic_share == pytest.approx(1)
    assert pool.strategy.drafter is not None
    drafter = measured.drafters[pool.strategy.drafter]
    kv = measured.target.kv_bytes_per_token + drafter.kv_bytes_per_token
    assert pool.memory_bytes == measured.target.weight_bytes + drafter.weight_bytes + kv * 8 * pool.max_context_tokens
    assert policy.profile_fingerprint == measured.fingerprint
    assert all(c.speedup.low <= c.speedup.value <= c.speedup.high for c in policy.classes)
    assert all(c.num_speculative_tokens == pool.k_at(4) for c in policy.classes)
    assert 0 <= policy.regret.p95 < 0.1
    assert policy.regret.cells_considered == 4 * 19


def test_same_seed_same_policy(measured: Profile, policy: Policy) -> None:
    again = recommend(measured, load=4, draws=100)
    assert again.model_copy(update={"created": policy.created}) == policy


def test_larger_batches_get_smaller_k(policy: Policy) -> None:
    schedule = policy.pools[0].schedule
    assert schedule is not None
    assert [k for _, _, k in schedule] == sorted((k for _, _, k in schedule), reverse=True)
    assert min(k for _, _, k in schedule) >= 1
    assert schedule[-1][1] == 8


def test_latency_counts_classes_by_share(measured: Profile) -> None:
    p = recommend(measured, objective="latency", draws=50)
    relative = sum(c.traffic_share / c.speedup.value for c in p.classes)
    assert p.speedup.value == pytest.approx(1 / relative)
    assert "request speed" in render(p)


def test_traffic_moves_the_answer(measured: Profile) -> None:
    edits = recommend(measured, traffic={"edit": 1.0}, draws=50)
    assert edits.pools[0].strategy.method == "ngram"
    assert any("no traffic assumed for chat, code, translate" in n for n in edits.notes)
    assert recommend(measured, traffic={"chat": 3.0}, draws=50).pools[0].strategy.method == "eagle3"


def test_loads_that_were_not_measured_are_refused(measured: Profile) -> None:
    with pytest.raises(NotMeasured, match=r"load 9 was not measured \(measured: 1, 2, 4, 8\)"):
        recommend(measured, load=9)
    assert recommend(measured, load=3, draws=20).load == 3


def test_looping_prompts_are_counted_out() -> None:
    task = FakeClass(loops=0.5)
    p = recommend(fake_profile(FakeEngine({"c": task}), fake_requests(["c"], 20)), draws=50)
    c = p.classes[0]
    assert 0.2 < c.looping_share < 0.8
    assert c.speedup_without_loops is not None
    assert c.speedup_without_loops < c.speedup.value
    assert "loop" in render(p)


def test_classifier_is_trained_on_the_measured_workload_only(tmp_path: Path) -> None:
    requests = fake_requests(["chat", "code"], 6)
    measured = fake_profile(FakeEngine(), requests, families=(), loads=(1,))
    file = tmp_path / "w.jsonl"
    file.write_text("".join(r.model_dump_json(by_alias=True, exclude_none=True) + "\n" for r in requests))
    known = measured.model_copy(update={"workload_sha256": Workload(requests, "w").digest, "workload": str(file)})
    found = recommend(known, draws=20).classifier
    assert found is not None
    assert found.classes == ("chat", "code")
    other = recommend(measured, workload=file, draws=20)
    assert other.classifier is None
    assert any("pass --workload" in n for n in other.notes)


@pytest.mark.parametrize("form", ["yaml", "json", "policy"])
def test_gain_over_what_runs_now(measured: Profile, tmp_path: Path, form: str) -> None:
    speculation = {"method": "eagle3", "model": "/models/fake-head", "num_speculative_tokens": 6}
    file = tmp_path / f"now.{form}"
    if form == "policy":
        write_json(file, recommend(measured, load=4, draws=20))
    elif form == "yaml":
        file.write_text(f"model: x\nspeculative-config: '{json.dumps(speculation)}'\n")
    else:
        file.write_text(json.dumps({"speculative_config": speculation}))
    note = next(n for n in recommend(measured, load=4, current=file, draws=50).notes if n.startswith("against"))
    assert ("+0.0%" in note) == (form == "policy")
    if form != "policy":
        assert "eagle3 k=6" in note


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"method": "eagle3", "model": "other", "num_speculative_tokens": 2}, "'other' was not measured"),
        ({"method": "ngram", "num_speculative_tokens": 2}, r"ngram 5\.\.5 k=2"),
        ({"method": "eagle3", "model": "fake-head", "num_speculative_tokens": 9}, "k=9"),
        ({"method": "medusa", "model": "fake-head", "num_speculative_tokens": 2}, "medusa"),
    ],
)
def test_a_current_strategy_that_was_not_measured_is_named(
    measured: Profile, tmp_path: Path, config: dict[str, object], message: str
) -> None:
    file = tmp_path / "now.json"
    file.write_text(json.dumps({"speculative_config": config}))
    with pytest.raises(NotMeasured, match=message):
        recommend(measured, current=file, draws=20)


def test_traffic_is_read_by_class_and_task_name() -> None:
    requests = fake_requests(["chat"], 2) + fake_requests(["chat", "code"], 2, 0.8)
    profile = fake_profile(FakeEngine(), requests, families=(), loads=(1,))
    assert parse_traffic("chat=0.5, chat, t=0.8=30%,code=0.2", profile) == {
        "chat": 0.5,
        "chat, t=0.8": 0.3,
        "code": 0.2,
    }
    p = recommend(profile, traffic={"code": 1.0}, draws=20)
    assert {c.request_class: c.traffic_share for c in p.classes} == {
        "chat": 0,
        "chat, t=0.8": 0,
        "code, t=0.8": 1,
    }
    with pytest.raises(NotMeasured, match="'cod'"):
        parse_traffic("cod=1", profile)
    for text in ("chat=x", "", "chat=1,chat=2"):
        with pytest.raises(WorkloadError):
            parse_traffic(text, profile)


def test_schedule_by_listing_and_by_search_agree() -> None:
    values = ((1.2, 1.5, 1.7), (1.2, 1.45, 1.5), (1.15, 1.2, 1.1), (1.05, 0.9, 0.8))
    grid = Grid((1, 2, 4, 8), values, 0.01)
    listed = best_ranges(grid, 0)
    assert listed == (3, 3, 2, 1)
    assert grid.loss(best_ranges(grid, 0, enumerate_up_to=0)) == pytest.approx(grid.loss(listed))
    assert as_ranges(grid.batches, listed) == ((1, 2, 3), (3, 4, 2), (5, 8, 1))


def test_schedule_has_at_most_three_ranges() -> None:
    values = tuple(tuple(2.0 if k == best else 1.0 for k in range(1, 6)) for best in (5, 4, 3, 2, 1))
    ks = best_ranges(Grid((1, 2, 4, 8, 16), values, 0.01), 0)
    assert len(as_ranges((1, 2, 4, 8, 16), ks)) <= 3


def test_command_prints_the_table_and_writes_the_policy(measured: Profile, tmp_path: Path) -> None:
    file = tmp_path / "my run.profile.json"
    write_json(file, measured)
    done = CliRunner().invoke(command, [str(file), "--load", "4", "--draws", "50"], catch_exceptions=False)
    assert done.exit_code == 0
    assert done.stdout.startswith("One server at load 4: eagle3 fake-head, k = ")
    assert "selector export" in done.stderr
    written = load_policy(tmp_path / "my run.policy.json")
    as_json = CliRunner().invoke(command, [str(file), "--load", "4", "--draws", "50", "--json"], catch_exceptions=False)
    assert Policy.model_validate_json(as_json.stdout).classes == written.classes
    md = CliRunner().invoke(
        command, [str(file), "--format", "md", "--draws", "50", "--traffic", "edit=1"], catch_exceptions=False
    )
    assert "| edit | 100% |" in md.stdout


@pytest.mark.parametrize("load", [1, 8])
def test_every_family_is_considered_at_every_k_for_every_class(load: int) -> None:
    """Sampled kinds are measured at few widths: this must not cost a strategy the other classes, or this one."""
    file = Path(__file__).parents[2] / "profiles" / "recorded" / "smollm2-135m-2cores.profile.json"
    arena = Arena(load_profile(file), "throughput", load, 10, 0)
    families = {
        f: {s.k for s in arena.candidates_for(arena.classes) if s.family == f} for f in arena.acceptances.families
    }
    assert len(families) >= 4
    assert all(ks == set(range(1, 9)) for ks in families.values())


def test_a_strategy_is_dropped_only_for_the_class_that_cannot_compose_it() -> None:
    arms = {"none": {1: 10.0}, "eagle3 k=1": {1: 14.0}, "eagle3 k=2": {1: 20.0}}
    profile = table_profile({"code": arms, "talk": arms})
    rows = tuple(r for r in profile.step_costs if (r.sampling, r.drafted) != ("greedy", 2))
    p = recommend(profile.model_copy(update={"step_costs": rows}), draws=50)
    by_class = {c.request_class: c for c in p.classes}
    assert p.pools[0].strategy.k == 1
    assert by_class["code"].own_best.k == 1
    assert by_class["talk"].own_best.k == 2
    assert any("k=2 for code" in n and "2 drafted tokens" in n for n in p.regret.not_considered)
    assert "of the best of 2 strategies" in render(p)
    assert p.regret.cells_considered == 4


def test_one_confirmed_prompt_of_many_is_no_measurement() -> None:
    requests = fake_requests(["edit"], 20)
    one, many = (
        recommend(
            fake_profile(FakeEngine(seed=3), requests, confirm=[("edit", NGRAM)], confirm_prompts=n), draws=200
        ).classes[0]
        for n in (1, 20)
    )
    assert one.own_best_speedup.basis == "composed, checked"
    assert many.own_best_speedup.basis == "measured"


def test_a_cell_that_ran_little_keeps_the_error_of_composition() -> None:
    profile = fake_profile(
        FakeEngine(seed=3), fake_requests(["edit"], 20), confirm=[("edit", NGRAM)], confirm_prompts=1, aa_noise=0.0
    )
    runs = {c.strategy: c.runs for c in profile.confirmed}
    slow = tuple(r.model_copy(update={"decode_seconds": r.decode_seconds * 1.5}) for r in runs[NGRAM])
    cell = ConfirmedCell(request_class="edit", strategy=NGRAM, load=1, runs=slow)
    plain = next(c for c in profile.confirmed if c.strategy == PLAIN)
    raw, arena = (
        Arena(profile.model_copy(update={"confirmed": c}), "throughput", 1, 400, 0) for c in ((), (plain, cell))
    )
    shift = np.log(arena.value(NGRAM, {"edit": 1.0}) / raw.value(NGRAM, {"edit": 1.0}))
    error = arena.confirmed.checks[0].error
    assert arena.confirmed.rms > 0.2
    assert 0.49 < shift[0] / error < 0.8  # one prompt counts half, its family the rest
    assert np.std(shift[1:]) > 0.8 * arena.confirmed.rms * (1 - 1 / 20) ** 0.5


def test_noise_of_one_class_is_that_of_fewer_runs(measured: Profile) -> None:
    second = tuple(c.model_copy(update={"arm": "aa"}) for c in measured.confirmed if c.strategy == PLAIN)
    noisy = measured.model_copy(update={"aa_noise": 0.1})
    few, pooled = (
        Arena(noisy.model_copy(update={"confirmed": (*noisy.confirmed, *arms)}), "throughput", 1, 400, 0)
        for arms in (second, ())
    )
    ones = np.ones(401)
    assert few.estimate(ones, "composed", classes=1).high > pooled.estimate(ones, "composed", classes=1).high + 0.02
    assert few.estimate(ones, "composed", classes=4) == pooled.estimate(ones, "composed", classes=4)
    assert few.band == pooled.band == 0.1


def test_slower_needs_more_than_one_class_s_noise() -> None:
    profile = table_profile({c: {"none": {1: 20.0}, "eagle3 k=3": {1: v}} for c, v in {"a": 40.0, "b": 18.4}.items()})
    cells = tuple(
        ConfirmedCell(request_class=c, strategy=PLAIN, load=1, arm="aa", runs=fake_profile(
            FakeEngine(), fake_requests(["x"], 1), families=(), loads=(1,), confirm=[("x", PLAIN)]).confirmed[0].runs)
        for c in "ab"
    )  # fmt: skip
    for noise, slower in ((0.05, True), (0.07, False)):  # 7% of two classes are 9.9% of one
        p = recommend(profile.model_copy(update={"aa_noise": noise, "confirmed": cells}), draws=50)
        assert p.pools[0].strategy.k == 3
        assert ("slower" in render(p)) == slower


def test_notes_say_where_it_was_measured_and_what_is_thin(measured: Profile) -> None:
    notes = recommend(measured, draws=20).notes
    assert any("measured on the fake engine; vLLM's own step costs differ" in n for n in notes)
    assert not any("too narrow" in n for n in notes)
    other = recommend(table_profile(LOAD_TIED, prompts=4), draws=20).notes
    assert any("measured on table 1" in n for n in other)
    assert any("class code has 4 prompts: its interval is too narrow" in n for n in other)


SCHEDULE = {
    "method": "eagle3", "model": "fake-head", "num_speculative_tokens": 5,
    "num_speculative_tokens_per_batch_size": [[1, 1, 6], [3, 4, 2], [7, 7, 1]],
}  # fmt: skip


@pytest.mark.parametrize(("load", "k"), [(1, 5), (2, 5), (3, 2), (4, 2), (6, 2), (7, 1), (8, 1)])
def test_a_current_schedule_is_looked_up_at_the_load(measured: Profile, tmp_path: Path, load: int, k: int) -> None:
    file = tmp_path / "now.json"
    file.write_text(json.dumps({"model": "x", "speculative_config": SCHEDULE}))
    assert read_current(file, measured, load)[""] == EAGLE.with_k(k)


@pytest.mark.parametrize(
    "text",
    [
        "model: x\nspec-method: eagle3\nspec-model: fake-head\nspec-tokens: 3\n",
        "spec_method: eagle3\nspec_model: fake-head\nspec_tokens: 3\n",
        "speculative-config.method: eagle3\nspeculative-config.model: fake-head\n"
        "speculative_config.num-speculative-tokens: 3\n",
    ],
)
def test_other_spellings_of_the_current_strategy_are_read(measured: Profile, tmp_path: Path, text: str) -> None:
    file = tmp_path / "now.yaml"
    file.write_text(text)
    assert read_current(file, measured, 1)[""] == EAGLE.with_k(3)


@pytest.mark.parametrize("text", ["model: x", "max-num-seqs: 8", "speculative_config: null"])
def test_a_configuration_without_speculation_is_plain(measured: Profile, tmp_path: Path, text: str) -> None:
    file = tmp_path / "now.yaml"
    file.write_text(text)
    assert read_current(file, measured, 1) == {"": PLAIN}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: CI\njobs: {}", "neither a policy nor"),
        ("when: 2026-13-45", "neither YAML nor JSON"),
        ("[" * 5000, "neither YAML nor JSON"),
        ("model: x\nspeculative_config: '" + "[" * 100000 + "'", "not JSON"),
        ("a: [1\nb: }", "neither YAML nor JSON"),
        ("model: x\nspec-rate: 3", "spec-rate cannot be read"),
        ("spec-method: ngram\nspeculative-config: {method: ngram}", "more than one way"),
        ("speculative-config: [1]", "no table"),
        ("num_speculative_tokens: 3\nnum_speculative_tokens_per_batch_size: [[1, 2]]", "no list of"),
    ],
)
def test_what_cannot_be_current_is_refused_in_one_line(
    measured: Profile, tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "now.yaml"
    file.write_text(text)
    with pytest.raises(PolicyError, match=message) as caught:
        read_current(file, measured, 1)
    assert "\n" not in str(caught.value)


def test_shares_that_add_up_to_infinity_are_refused(measured: Profile) -> None:
    with pytest.raises(WorkloadError, match="add up to inf"):
        recommend(measured, traffic=parse_traffic("chat=1e308,code=1e308", measured), draws=20)


def test_the_loads_to_profile_again_can_be_pasted(measured: Profile) -> None:
    with pytest.raises(NotMeasured, match=r"profile again with --loads 1,2,4,8,9$"):
        recommend(measured, load=9)


def test_default_traffic_counts_repeated_prompts(measured: Profile) -> None:
    infos = tuple(c.model_copy(update={"requests": 36 if c.name == "edit" else None}) for c in measured.classes)
    p = recommend(measured.model_copy(update={"classes": infos}), draws=20)
    assert {c.request_class: c.traffic_share for c in p.classes}["edit"] == pytest.approx(0.5)


def test_break_even_agrees_with_the_corrected_speedup(measured: Profile) -> None:
    """A cell measured faster than composed must not be said to miss its break-even beside a speedup above 1."""
    cells = tuple(
        c if c.strategy == PLAIN else c.model_copy(update={"runs": tuple(
            r.model_copy(update={"decode_seconds": r.decode_seconds * 1.6}) for r in c.runs)})
        for c in measured.confirmed
    )  # fmt: skip
    for confirmed in (measured.confirmed, cells):
        arena = Arena(measured.model_copy(update={"confirmed": confirmed}), "throughput", 1, 10, 0)
        for name, s in (("code", EAGLE.with_k(3)), ("edit", NGRAM)):
            times, floor = (arena.times(x, {name: 1.0}) for x in (s, PLAIN))
            need = times.step[name][0] / floor.step[name][0]
            assert times.tau[name] / need == pytest.approx(arena.value(s, {name: 1.0})[0], rel=0.1)


@pytest.mark.parametrize(
    ("slower", "said"), [([4, 8], "at load 2 or below"), ([1], "at load 2 or above"), ([1, 8], "at load 2, or ask")]
)
def test_where_plain_decoding_is_faster_the_advice_fits(slower: list[int], said: str) -> None:
    assert said in slower_note("p", slower, 2)


def test_a_family_replayed_for_some_classes_stays_a_candidate_for_those(measured: Profile) -> None:
    kept = tuple(r for r in measured.replays if (r.request_class, r.family) != ("chat", NGRAM.family))
    p = recommend(measured.model_copy(update={"replays": kept}), draws=20)
    best = {c.request_class: c.own_best.method for c in p.classes}
    assert best["edit"] == "ngram"
    assert best["chat"] != "ngram"
    assert p.pools[0].strategy.method != "ngram"  # one server has to run what every class can be composed with
    assert any("not replayed for chat" in n for n in p.regret.not_considered)


def test_one_class_with_all_the_traffic_is_judged_as_one_class(measured: Profile) -> None:
    second = tuple(c.model_copy(update={"arm": "aa"}) for c in measured.confirmed if c.strategy == PLAIN)
    noisy = measured.model_copy(update={"aa_noise": 0.05, "confirmed": (*measured.confirmed, *second)})
    p = recommend(noisy, traffic={"edit": 1.0}, draws=100)
    edit = next(c for c in p.classes if c.request_class == "edit")
    assert p.pools[0].strategy == edit.own_best
    assert p.speedup.high - p.speedup.low == pytest.approx(edit.own_best_speedup.high - edit.own_best_speedup.low)
