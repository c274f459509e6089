"""Step costs between measured points, and refusals outside them."""

import numpy as np
import pytest

from selector.engines.fake import FakeCost, FakeEngine
from selector.errors import NotMeasured
from selector.profile import Profile, StepCost
from selector.stepcost import StepCosts, hat_weights
from selector.strategy import PLAIN, Method
from tests.unit.fake_profiles import EAGLE, NGRAM, fake_profile, fake_requests

EXACT = FakeCost(noise=0.0)


@pytest.fixture(scope="module")
def profile() -> Profile:
    return fake_profile(FakeEngine(cost=EXACT), fake_requests(["code"], 2), loads=(1, 2, 8))


def test_measured_points_come_back(profile: Profile) -> None:
    costs = StepCosts(profile)
    for method, drafter, d, b in [("none", None, 0, 1), ("eagle3", "fake-head", 3, 8), ("ngram", None, 6, 2)]:
        cost = costs.step_seconds(method, drafter, d, b, 128, "greedy")
        assert cost.seconds == pytest.approx([EXACT.step(method, d, b, 128, "greedy")])
        assert not cost.extrapolated


def test_context_adds_what_plain_rows_show(profile: Profile) -> None:
    cost = StepCosts(profile).step_seconds("eagle3", "fake-head", 2, 8, 300, "greedy")
    assert cost.seconds[0] == pytest.approx(EXACT.step("eagle3", 2, 8, 300, "greedy"))


def test_far_context_is_marked(profile: Profile) -> None:
    assert StepCosts(profile).step_seconds("none", None, 0, 1, 5000, "greedy").extrapolated


def test_between_batches_and_fractional_drafts_are_linear(profile: Profile) -> None:
    costs = StepCosts(profile)
    low, high, between = (costs.step_seconds("eagle3", "fake-head", 4, b, 128, "greedy").seconds[0] for b in (2, 8, 4))
    assert between == pytest.approx(low + (high - low) / 3)
    a, b, c = (costs.step_seconds("ngram", None, d, 8, 128, "greedy").seconds[0] for d in (1, 2, 1.25))
    assert c == pytest.approx(0.75 * a + 0.25 * b)


def test_ngram_without_a_proposal_is_a_plain_step(profile: Profile) -> None:
    costs = StepCosts(profile)
    assert costs.step_seconds("ngram", None, 0, 2, 128, "greedy").seconds == pytest.approx(
        costs.step_seconds("none", None, 0, 2, 128, "greedy").seconds
    )


def test_a_measured_step_without_proposal_is_preferred(profile: Profile) -> None:
    row = StepCost(method="ngram", drafted=0, batch=2, context=128, sampling="greedy", step_seconds=(0.5,))
    more = profile.model_copy(update={"step_costs": (*profile.step_costs, row)})
    assert StepCosts(more).step_seconds("ngram", None, 0, 2, 128, "greedy").seconds == pytest.approx([0.5])


@pytest.mark.parametrize(
    ("drafter", "drafted", "batch", "message"),
    [
        ("fake-head", 7, 1, "7 drafted tokens"),
        ("fake-head", 0, 1, "0 drafted tokens"),
        ("fake-head", 2, 9, "batch 9"),
        ("other", 2, 1, "eagle3 other"),
    ],
)
def test_outside_is_refused_by_name(profile: Profile, drafter: str, drafted: int, batch: int, message: str) -> None:
    with pytest.raises(NotMeasured, match=message):
        StepCosts(profile).step_seconds("eagle3", drafter, drafted, batch, 128, "greedy")


def test_missing_sampling_borrows_the_difference_of_plain_decoding(profile: Profile) -> None:
    engine = FakeEngine(cost=EXACT)
    rows = [
        StepCost(
            method="none",
            drafted=0,
            batch=b,
            context=128,
            sampling="temperature",
            step_seconds=tuple(engine.step_seconds(PLAIN, batch=b, context=128, sampling="temperature", repeats=1)),
        )
        for b in (1, 2, 8)
    ]
    costs = StepCosts(profile.model_copy(update={"step_costs": (*profile.step_costs, *rows)}))
    cost = costs.step_seconds("eagle3", "fake-head", 3, 2, 128, "temperature")
    assert cost.extrapolated
    assert cost.seconds[0] == pytest.approx(EXACT.step("eagle3", 3, 2, 128, "greedy") + 2 * EXACT.sampler)
    with pytest.raises(NotMeasured, match="top_p"):
        costs.step_seconds("eagle3", "fake-head", 3, 2, 128, "top_p")


def test_draws_resample_repeats() -> None:
    noisy = fake_profile(FakeEngine(cost=FakeCost(noise=0.05)), fake_requests(["code"], 2), repeats=5)
    costs = StepCosts(noisy, draws=200, seed=1)
    seconds = costs.step_seconds(EAGLE.method, EAGLE.drafter, 3, 4, 128, "greedy").seconds
    assert seconds.shape == (201,)
    assert np.std(seconds[1:]) > 0
    assert seconds[0] == StepCosts(noisy).step_seconds("eagle3", "fake-head", 3, 4, 128, "greedy").seconds[0]
    assert np.array_equal(
        seconds, StepCosts(noisy, 200, 1).step_seconds("eagle3", "fake-head", 3, 4, 128, "greedy").seconds
    )


def test_prefill_is_linear_and_flagged_above_the_longest(profile: Profile) -> None:
    costs = StepCosts(profile)
    for tokens, flag in ((300, False), (512, False), (1000, True)):
        cost = costs.prefill_seconds("eagle3", "fake-head", tokens)
        assert cost.seconds[0] == pytest.approx(EXACT.prefill("eagle3", tokens))
        assert cost.extrapolated is flag
    assert costs.prefill_seconds("none", None, 3).seconds == pytest.approx([EXACT.prefill("none", 16)])


def test_one_prefill_point_scales_with_the_prompt() -> None:
    assert hat_weights(np.array([100.0]), np.array([50.0, 100.0, 300.0]))[:, 0].tolist() == [1.0, 1.0, 3.0]


def test_ngram_shares_one_step_cost_over_windows(profile: Profile) -> None:
    assert NGRAM.drafter is None
    assert StepCosts(profile).has_plain


_SAMPLED: tuple[tuple[Method, str | None, tuple[int, ...]], ...] = (
    ("none", None, (0,)),
    ("eagle3", "fake-head", (4, 6)),
)


@pytest.mark.parametrize(("drafted", "batch", "flagged"), [(4, 1, False), (6, 8, False), (2, 1, True), (3, 8, True)])
def test_sampled_widths_that_were_not_measured_add_the_nearest_width_s_extra(
    profile: Profile, drafted: int, batch: int, flagged: bool
) -> None:
    extra = 0.003
    rows = [
        StepCost(
            method=m, drafter=d, drafted=k, batch=b, context=128, sampling="temperature",
            step_seconds=(EXACT.step(m, k, b, 128, "greedy") + b * extra,),
        )
        for m, d, ks in _SAMPLED
        for k in ks
        for b in (1, 8)
    ]  # fmt: skip
    costs = StepCosts(profile.model_copy(update={"step_costs": (*profile.step_costs, *rows)}))
    cost = costs.step_seconds("eagle3", "fake-head", drafted, batch, 128, "temperature")
    assert cost.seconds[0] == pytest.approx(EXACT.step("eagle3", drafted, batch, 128, "greedy") + batch * extra)
    assert cost.extrapolated is flagged


@pytest.mark.parametrize(("batch", "flagged"), [(1, True), (2, False), (8, True)])
def test_a_sampled_batch_that_was_not_measured_scales_the_nearest_one_s_extra(
    profile: Profile, batch: int, flagged: bool
) -> None:
    row = StepCost(
        method="eagle3", drafter="fake-head", drafted=4, batch=2, context=128, sampling="temperature",
        step_seconds=(EXACT.step("eagle3", 4, 2, 128, "greedy") + 0.002,),
    )  # fmt: skip
    costs = StepCosts(profile.model_copy(update={"step_costs": (*profile.step_costs, row)}))
    cost = costs.step_seconds("eagle3", "fake-head", 4, batch, 128, "temperature")
    assert cost.seconds[0] == pytest.approx(EXACT.step("eagle3", 4, batch, 128, "greedy") + 0.001 * batch)
    assert cost.extrapolated is flagged


def test_noise_never_makes_a_long_context_cheaper(profile: Profile) -> None:
    rows = [
        StepCost(method="none", drafted=0, batch=1, context=c, sampling="greedy", step_seconds=(t,))
        for c, t in ((100, 0.030), (300, 0.020))
    ]
    costs = StepCosts(profile.model_copy(update={"step_costs": tuple(rows)}))
    assert costs.step_seconds("none", None, 0, 1, 1000, "greedy").seconds[0] > 0.019
