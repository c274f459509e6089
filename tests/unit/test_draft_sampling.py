"""Drawn drafts from profile to export: measured for sampled classes, shared with greedy drafts for greedy ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from selector.acceptance import Acceptances, family_strategy
from selector.engines.fake import FakeEngine
from selector.engines.fake_truth import FakeClass
from selector.exporters.vllm_config import speculative_config
from selector.measure import Settings, measure
from selector.policy import Policy
from selector.profile import ConfirmedCell, Profile, Run
from selector.recommend import recommend
from selector.recommend.arena import Arena
from selector.recommend.current import read_current
from selector.recommend.text import train_classifier
from selector.stepcost import StepCosts
from selector.strategy import PLAIN, Strategy
from selector.workload import Request, Workload, load_workload

EAGLE = Strategy(method="eagle3", drafter="fake-head", num_speculative_tokens=4)
SETTINGS = Settings(budget_seconds=60, k_max=4, loads=(1, 2), prompts_per_class=12, confirm=False)


def profile_of(drawn: float, folder: Path, temperatures: tuple[float, ...] = (0.0, 0.7)) -> Profile:
    rows = [
        Request.model_validate({"prompt": f"chat {i}", "class": "chat", "temperature": t})
        for t in temperatures
        for i in range(12)
    ]
    tasks = {"chat": FakeClass(drawn=drawn, overlap=0.0)}
    return measure(FakeEngine(tasks=tasks, seed=1), Workload(rows, "test"), folder / "j", SETTINGS)


def test_a_familys_name_leads_back_to_the_strategy() -> None:
    for strategy in (
        EAGLE,
        EAGLE.drawing,
        Strategy(method="ngram", num_speculative_tokens=2, lookup_min=1, lookup_max=3),
    ):
        assert family_strategy(strategy.family, strategy.k) == strategy


def test_only_model_drafters_draw() -> None:
    with pytest.raises(ValidationError, match="draws no drafts"):
        Strategy(
            method="ngram", num_speculative_tokens=2, lookup_min=1, lookup_max=3, draft_sample_method="probabilistic"
        )


def test_sampled_classes_are_replayed_both_ways_and_greedy_ones_once(tmp_path: Path) -> None:
    profile = profile_of(1.2, tmp_path)
    drawn = {r.request_class for r in profile.replays if r.family.endswith(" probabilistic")}
    assert drawn == {"chat, t=0.7"}
    acceptances = Acceptances(profile)
    greedy, drawing = (acceptances.counts(s, "chat") for s in (EAGLE, EAGLE.drawing))
    assert (greedy.steps == drawing.steps).all()
    greedy, drawing = (acceptances.counts(s, "chat, t=0.7") for s in (EAGLE, EAGLE.drawing))
    assert drawing.steps.sum() < greedy.steps.sum()


def test_a_greedy_step_costs_the_same_either_way(tmp_path: Path) -> None:
    costs = StepCosts(profile_of(1.0, tmp_path))
    lines = [
        costs.line("eagle3", "fake-head", np.array([2.0]), 1, kind, drafts)
        for kind in ("greedy", "temperature")
        for drafts in ("greedy", "probabilistic")
    ]
    assert (lines[0].seconds == lines[1].seconds).all()
    assert (lines[2].seconds != lines[3].seconds).any()


@pytest.mark.parametrize(("drawn", "chosen"), [(1.35, "probabilistic"), (0.7, "greedy")])
def test_recommend_takes_the_better_way_to_draft_and_the_export_says_so(
    drawn: float, chosen: str, tmp_path: Path
) -> None:
    policy: Policy = recommend(profile_of(drawn, tmp_path, (0.7,)))
    pool = policy.pools[0]
    assert pool.strategy.method in ("eagle3", "draft_model")
    assert pool.strategy.draft_sample_method == chosen
    told = speculative_config(policy, pool)
    assert told is not None
    assert told.get("draft_sample_method", "greedy") == chosen


def test_on_greedy_classes_both_ways_to_draft_are_one_cell(tmp_path: Path) -> None:
    """A confirmed cell speaks for its drawing sibling, which is no candidate of its own there."""
    profile = profile_of(1.2, tmp_path)
    arena = Arena(profile, "throughput", 1, draws=20, seed=0)
    assert not [s for s in arena.candidates_for({"chat"}) if s.draft_sample_method != "greedy"]
    assert [s for s in arena.candidates_for({"chat", "chat, t=0.7"}) if s.draft_sample_method != "greedy"]
    runs = [
        Run(id=r.id, repeat=0, output_tokens=r.output_tokens, decode_steps=r.output_tokens - 1, drafted=0, accepted=0,
            prefill_seconds=0.1, decode_seconds=seconds * r.output_tokens)
        for r in profile.recordings if r.request_class == "chat" for seconds in (0.02,)
    ]  # fmt: skip
    cells = tuple(
        ConfirmedCell(request_class="chat", strategy=s, load=1, arm="main", runs=tuple(runs)) for s in (PLAIN, EAGLE)
    )
    arena = Arena(profile.model_copy(update={"confirmed": cells}), "throughput", 1, draws=20, seed=0)
    times = [arena.times(s, {"chat": 1.0}).engine["chat"] for s in (EAGLE, EAGLE.drawing)]
    assert (times[0] == times[1]).all()
    assert float(arena.value(EAGLE, {"chat": 1.0})[0]) == pytest.approx(1.0)


def test_a_deployed_config_with_drawn_drafts_is_compared_as_such(tmp_path: Path) -> None:
    profile = profile_of(1.35, tmp_path, (0.7,))
    config = {"method": "eagle3", "model": profile.drafters["fake-head"].path, "num_speculative_tokens": 2}
    file = tmp_path / "engine.yaml"
    file.write_text(json.dumps({"speculative-config": config | {"draft_sample_method": "probabilistic"}}), "utf-8")
    assert read_current(file, profile, 1) == {"": EAGLE.with_k(2).drawing}


def test_banded_workloads_keep_their_text_classifier(tmp_path: Path) -> None:
    rows = [
        {"prompt": f"{word} {i}", "class": task, "temperature": 0.1 * (1 + i % 3)}
        for task, word in (("chat", "hello how are you"), ("code", "def f(x): return"))
        for i in range(8)
    ]
    file = tmp_path / "w.jsonl"
    file.write_text("".join(json.dumps(r) + "\n" for r in rows), "utf-8")
    workload = load_workload(file).banded((0.5,))
    profile = measure(FakeEngine(seed=1), workload, tmp_path / "j", SETTINGS)
    assert [c.name for c in profile.classes] == ["chat, t=0.5", "code, t=0.5"]
    classifier, reason = train_classifier(profile, file, 0)
    assert classifier is not None, reason
