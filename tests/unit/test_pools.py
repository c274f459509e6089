"""Pools: who shares servers, and whether it pays."""

import numpy as np
import pytest

from selector.engines.fake import FakeClass, FakeCost, FakeEngine
from selector.profile import Profile
from selector.recommend import recommend, render
from selector.recommend.pools import best_set, names
from selector.strategy import PLAIN
from tests.unit.fake_profiles import EAGLE, NGRAM, fake_profile, fake_requests, table_profile, table_strategy

TWO = {
    "code": {"none": {1: 10.0}, "eagle3 k=1": {1: 20.0}, "draft_model k=1": {1: 8.0}},
    "talk": {"none": {1: 10.0}, "eagle3 k=1": {1: 8.0}, "draft_model k=1": {1: 15.0}},
}


@pytest.fixture(scope="module")
def split() -> Profile:
    return fake_profile(
        FakeEngine(cost=FakeCost(noise=0.005)),
        fake_requests(["chat", "code", "edit"], 15),
        families=(EAGLE, NGRAM),
    )


def test_a_second_pool_gains_the_ratio_of_engine_seconds() -> None:
    p = recommend(table_profile(TWO), draws=50)
    assert len(p.pools) == 1
    plan = p.alternatives[0]
    assert plan.assignment == {"code": "eagle3", "talk": "draft_model"}
    one = min(1 / 20 + 1 / 8, 1 / 8 + 1 / 15)
    assert plan.gain.value == pytest.approx(one / (1 / 20 + 1 / 15), rel=1e-3)
    assert not plan.tie
    assert "--max-pools 2" in render(p)


def test_allowed_pools_are_adopted_with_the_same_number_of_servers() -> None:
    p = recommend(table_profile(TWO), max_pools=2, draws=50)
    pools = {q.name: q for q in p.pools}
    assert pools["eagle3"].strategy == table_strategy("eagle3 k=1")
    assert sum(q.server_share for q in p.pools) == pytest.approx(1)
    # server share follows traffic x engine seconds: 1/20 against 1/15
    assert pools["eagle3"].server_share == pytest.approx((1 / 20) / (1 / 20 + 1 / 15), rel=1e-3)
    assert {c.request_class: c.pool for c in p.classes} == {"code": "eagle3", "talk": "draft_model"}
    assert p.speedup.value == pytest.approx((2 / 10) / (1 / 20 + 1 / 15), rel=1e-3)
    assert render(p).startswith("One server at load 1 would run eagle3 k=1: +14.3%")


@pytest.mark.parametrize("objective", ["throughput", "latency"])
def test_a_pool_for_edits_pays_at_load(split: Profile, objective: str) -> None:
    p = recommend(split, objective=objective, load=4, max_pools=2, draws=50)  # type: ignore[arg-type]  # a literal by parametrization
    pool = {c.request_class: c.pool for c in p.classes}
    assert pool["edit"] == "ngram"
    assert pool["chat"] == pool["code"] == "eagle3"
    assert p.alternatives[0].gain.value > 1.03


def test_pools_that_tie_are_marked_and_not_adopted() -> None:
    same = FakeClass()
    profile = fake_profile(FakeEngine({"a": same, "b": same}), fake_requests(["a", "b"], 15), families=(EAGLE,))
    p = recommend(profile, max_pools=2, draws=50)
    assert len(p.pools) == 1
    assert p.alternatives[0].tie
    assert "a tie with fewer pools" in render(p)


def test_a_class_that_loses_gets_a_plain_pool() -> None:
    arms = {
        "code": {"none": {1: 10.0}, "eagle3 k=1": {1: 20.0}},
        "talk": {"none": {1: 10.0}, "eagle3 k=1": {1: 7.0}},
    }
    p = recommend(table_profile(arms), max_pools=2, draws=50)
    assert {q.name: q.strategy.method for q in p.pools} == {"eagle3": "eagle3", "plain": "none"}


def test_one_class_has_no_alternatives() -> None:
    assert recommend(table_profile({"c": {"none": {1: 1.0}}}), max_pools=3, draws=20).alternatives == ()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("size", [2, 3])
def test_listing_and_search_agree(seed: int, size: int) -> None:
    costs = np.random.default_rng(seed).uniform(0.5, 1.5, (10, 5))

    def total(chosen: tuple[int, ...]) -> float:
        return float(costs[list(chosen)].min(axis=0).sum())

    assert total(best_set(costs, size, seed, enumerate_up_to=0)) == pytest.approx(total(best_set(costs, size, seed)))


def test_pool_names_are_unique() -> None:
    assert names([PLAIN, EAGLE, NGRAM, EAGLE.with_k(1)]) == ["plain", "eagle3", "ngram", "eagle3-2"]
