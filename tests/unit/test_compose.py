"""Composition agrees with a step-by-step simulation and with real runs of the fake engine."""

import numpy as np
import pytest

from selector.acceptance import Acceptances
from selector.compose import Composer, bootstrap_weights, uniform_weights
from selector.engines.fake import FakeCost, FakeEngine
from selector.errors import NotMeasured, ProfileError
from selector.profile import Profile
from selector.simulate import simulate
from selector.stepcost import StepCosts
from selector.strategy import PLAIN, Strategy
from tests.unit.fake_profiles import DRAFT, EAGLE, NGRAM, fake_profile, fake_requests

MIX = {"chat": 0.5, "edit": 0.3, "translate": 0.2}


@pytest.fixture(scope="module")
def profile() -> Profile:
    return fake_profile(FakeEngine(cost=FakeCost(noise=0.0)), fake_requests(list(MIX), 15))


def composer(profile: Profile) -> Composer:
    acceptances = Acceptances(profile)
    return Composer(acceptances, StepCosts(profile), uniform_weights(acceptances))


@pytest.mark.parametrize("load", [1, 3, 8])
@pytest.mark.parametrize("strategy", [PLAIN, NGRAM, EAGLE.with_k(3)], ids=lambda s: s.label)
def test_mean_field_and_simulation_agree(profile: Profile, strategy: Strategy, load: int) -> None:
    times = composer(profile).times(strategy, MIX, load)
    seconds = sum(w * float(times.engine[c][0]) for c, w in MIX.items())
    simulated = simulate(profile, strategy, MIX, load, requests=6000, seed=1)
    assert simulated.requests_per_second == pytest.approx(1 / seconds, rel=0.02)
    for c in MIX:
        assert simulated.request_seconds[c] == pytest.approx(float(times.request[c][0]), rel=0.05)


@pytest.mark.parametrize("strategy", [PLAIN, NGRAM.with_k(4), EAGLE.with_k(2), DRAFT], ids=lambda s: s.label)
def test_load_one_predicts_real_runs(profile: Profile, strategy: Strategy) -> None:
    engine = FakeEngine(cost=FakeCost(noise=0.0))
    runs = [engine.generate(r, strategy, seed=0) for r in fake_requests(["edit"], 15)]
    measured = float(np.mean([g.prefill_seconds + g.decode_seconds for g in runs]))
    assert composer(profile).times(strategy, {"edit": 1.0}, 1).request["edit"][0] == pytest.approx(measured, rel=0.01)


def test_little_law_holds(profile: Profile) -> None:
    times = composer(profile).times(EAGLE, MIX, 8)
    request = sum(w * times.request[c][0] for c, w in MIX.items())
    engine = sum(w * times.engine[c][0] for c, w in MIX.items())
    assert request == pytest.approx(8 * engine, rel=1e-9)


def test_draws_hold_the_same_figures_as_single_compositions(profile: Profile) -> None:
    acceptances = Acceptances(profile)
    weights = bootstrap_weights(acceptances, 5, seed=2)
    together = Composer(acceptances, StepCosts(profile, 5, 3), weights).times(NGRAM, MIX, 4)
    alone = Composer(acceptances, StepCosts(profile), {c: w[3:4] for c, w in weights.items()}).times(NGRAM, MIX, 4)
    for c in MIX:  # without noise the step costs are the same in every draw
        assert together.request[c][3] == pytest.approx(alone.request[c][0])


def test_a_large_batch_is_composed_from_mean_widths() -> None:
    profile = fake_profile(
        FakeEngine(cost=FakeCost(noise=0.0)), fake_requests(["edit"], 5), loads=(1, 64), families=(NGRAM,)
    )
    times = composer(profile).times(NGRAM, {"edit": 1.0}, 64)
    simulated = simulate(profile, NGRAM, {"edit": 1.0}, 64, requests=3000)
    assert simulated.requests_per_second == pytest.approx(1 / float(times.engine["edit"][0]), rel=0.02)


def test_unreplayed_strategies_are_refused_by_name(profile: Profile) -> None:
    with pytest.raises(NotMeasured, match="eagle3 other k=2"):
        composer(profile).times(Strategy(method="eagle3", drafter="other", num_speculative_tokens=2), MIX, 1)
    with pytest.raises(NotMeasured, match="up to k=6"):
        composer(profile).times(EAGLE.with_k(7), MIX, 1)


def test_only_prompts_that_every_family_replayed_are_compared(profile: Profile) -> None:
    first = profile.replays[0]
    fewer = Acceptances(profile.model_copy(update={"replays": profile.replays[1:]}))
    assert first.id not in fewer.ids(first.request_class)
    assert fewer.prompts[first.request_class] == 14


def test_a_family_missing_for_a_class_is_named(profile: Profile) -> None:
    kept = tuple(r for r in profile.replays if (r.request_class, r.family) != ("edit", EAGLE.family))
    acceptances = Acceptances(profile.model_copy(update={"replays": kept}))
    assert acceptances.incomplete == [f"{EAGLE.family}: not replayed for edit"]
    other = next(c for c in acceptances.prompts if c != "edit")
    assert acceptances.counts(EAGLE, other).steps.all()  # the other classes keep it
    with pytest.raises(NotMeasured, match="not replayed for edit"):
        acceptances.counts(EAGLE, "edit")


def test_a_replay_of_another_length_is_refused(profile: Profile) -> None:
    broken = profile.replays[0].model_copy(update={"accepted": "0"})
    acceptances = Acceptances(profile.model_copy(update={"replays": (broken, *profile.replays[1:])}))
    with pytest.raises(ProfileError, match="1 positions"):
        acceptances.counts(NGRAM, broken.request_class)


def test_counts_of_all_prompts_at_once_are_single_walks(profile: Profile) -> None:
    acceptances = Acceptances(profile)
    for strategy in (PLAIN, NGRAM.with_k(3), EAGLE, DRAFT.with_k(1)):
        counts = acceptances.counts(strategy, "chat")
        for i, r in enumerate(acceptances.recordings("chat")):
            drafted = acceptances.drafted_per_step(strategy, "chat", r)
            assert counts.steps[i] == len(drafted)
            assert counts.widths[i].tolist() == [drafted.count(d) for d in range(strategy.k + 1)]
