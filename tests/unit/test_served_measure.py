"""The whole served measurement against scripted servers that run as real processes."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from selector.acceptance import Acceptances
from selector.measure.served import measure_served
from selector.profile import Profile, load_profile, write_json
from selector.recommend import recommend
from selector.strategy import PLAIN, Strategy
from tests.unit.served import SCRIPT, SETTINGS, servers, workload

pytestmark = pytest.mark.vllm  # scripted servers: slow, not real ones


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    folder = tmp_path_factory.mktemp("served")
    return measure_served(servers(folder), workload(), folder / "j.jsonl", SETTINGS)


def step(drafted: int, batch: int) -> float:
    """What the script makes a step cost."""
    return SCRIPT["step_seconds"] + SCRIPT["token_seconds"] * batch * (drafted + 1) + SCRIPT["draft_seconds"] * drafted


def test_the_profile_says_what_the_script_does(profile: Profile) -> None:
    assert profile.skipped == ()
    eagle = [c for c in profile.step_costs if c.method == "eagle3" and c.sampling == "greedy"]
    assert {c.inferred for c in eagle} == {True, False}
    for c in [*eagle, *(c for c in profile.step_costs if c.method == "none")]:
        assert median(c.step_seconds) == pytest.approx(step(c.drafted, c.batch), rel=0.35), c


def test_every_launch_that_measures_has_its_own_prefill(profile: Profile) -> None:
    assert {c.method for c in profile.prefill_costs} == {"none", "eagle3", "ngram"}


def test_acceptance_at_every_k_is_near_the_scripted_chain(profile: Profile) -> None:
    acceptances = Acceptances(profile)
    for k in range(1, 5):
        strategy = Strategy(method="eagle3", drafter="head", num_speculative_tokens=k)
        counts = [acceptances.counts(strategy, c.name) for c in profile.classes]
        emitted = sum(float((c.output_tokens - 1).sum()) for c in counts)
        tau = emitted / sum(float(c.steps.sum()) for c in counts)
        assert tau == pytest.approx(1 + sum(0.6**i for i in range(1, k + 1)), abs=0.35)
        assert counts[0].inferred == (k not in (1, 4))


def test_a_policy_comes_out_of_it(profile: Profile, tmp_path: Path) -> None:
    write_json(tmp_path / "p.profile.json", profile)
    policy = recommend(load_profile(tmp_path / "p.profile.json"), load=2)
    assert policy.pools[0].strategy.method in ("none", "eagle3", "ngram")
    assert any(c.strategy == PLAIN and c.arm == "aa" for c in profile.confirmed)
    assert {c.load for c in profile.confirmed} == {1, 2}
