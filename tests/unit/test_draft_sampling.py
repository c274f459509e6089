"""Drawn drafts from profile to export: measured for sampled classes, shared with greedy drafts for greedy ones."""

from __future__ import annotations

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
from selector.profile import Profile
from selector.recommend import recommend
from selector.stepcost import StepCosts
from selector.strategy import Strategy
from selector.workload import Request, Workload

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
