"""Real profiles that ship with the package: they load, decide, and name no path of the machine they came from."""

from __future__ import annotations

from pathlib import Path

import pytest

from selector.profile import Profile, load_profile
from selector.recommend import recommend
from selector.resources import data_dir
from selector.strategy import PLAIN

RECORDED = sorted((data_dir("profiles") / "recorded").glob("*.profile.json"))


@pytest.fixture(params=RECORDED, ids=lambda p: p.name)
def recorded(request: pytest.FixtureRequest) -> Profile:
    file: Path = request.param
    text = file.read_text()
    assert not any(f'"/{folder}/' in text for folder in ("root", "home", "tmp"))
    return load_profile(file)


def test_speculation_wins_where_it_was_measured_to_win(recorded: Profile) -> None:
    policy = recommend(recorded, load=1, draws=100)
    classes = {c.request_class: c for c in policy.classes}
    assert any(c.own_best_speedup.low > 1.2 for c in classes.values())
    assert all(c.own_best == PLAIN or c.own_best_speedup.low >= 0.98 for c in classes.values())
    assert policy.regret.composition_error is not None
    assert policy.regret.composition_error < 0.10
    assert policy.classifier is not None


def test_a_full_batch_on_this_machine_is_a_harder_bargain(recorded: Profile) -> None:
    """Verification is nearly free for one request and not for eight: the gain must shrink with the load."""
    gains = [recommend(recorded, load=n, draws=50).speedup.value for n in (1, 8)]
    assert gains[0] > gains[1]
