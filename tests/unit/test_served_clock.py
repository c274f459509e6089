"""The budget of a served run: what still fits it, by a clock that the test sets."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from selector.measure.journal import Journal
from selector.measure.served import ServedSettings, measure_served
from selector.measure.served.clock import Clock
from selector.measure.served.launches import fixed_launch
from selector.measure.served.plan import ServedPlan, rounds
from selector.strategy import Strategy
from tests.unit.served import servers, workload

PLAN = ServedPlan(
    prompts_per_class=6, step_repeats=3, confirm_prompts=2, confirm_launches=3, launches=5, launch_seconds=10,
    record_seconds=20, live_seconds=40, step_seconds=30, confirm_seconds=100,
)  # fmt: skip
DRAFT, LOOKUP = (
    fixed_launch(s, (1, 4))
    for s in (
        Strategy(method="draft_model", drafter="d", num_speculative_tokens=8),
        Strategy(method="ngram", lookup_min=2, lookup_max=4, num_speculative_tokens=8),
    )
)


class At:
    """A clock that stands where it is put."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "j.jsonl", {}, resume=False) as opened:
        yield opened


def cell(seconds: float, load: int, method: str = "none", arm: str = "main") -> dict[str, object]:
    run = {"prefill_seconds": 0.0, "decode_seconds": seconds}
    return {"strategy": {"method": method}, "arm": arm, "load": load, "runs": [run, run]}


def test_what_seen_launches_and_cells_took_counts_more_than_the_plan(journal: Journal) -> None:
    clock = Clock(1000, journal, At())
    assert (clock.launch_seconds(PLAN), clock.cell_seconds(PLAN)) == (10, 20)
    journal.add("launch/0", {"seconds": 30})
    journal.add("launch/1", {"seconds": 50})
    journal.add("confirm/a", cell(8, 1))
    journal.add("confirm/b", cell(8, 4))
    journal.add("confirm/c", cell(99, 1, method="eagle3"))
    journal.add("confirm/d", cell(99, 1, arm="aa"))
    assert clock.launch_seconds(PLAN) == 40
    assert clock.cell_seconds(PLAN) == 1.25 * (2 * 8 + 2 * 8 / 4)  # requests at load 4 ran side by side


def test_time_of_earlier_sessions_is_spent(journal: Journal) -> None:
    journal.add("stage/none/0", {"name": "none", "seconds": 300})
    now = At()
    clock = Clock(1000, journal, now)
    now.seconds = 200
    assert clock.left() == 500


@pytest.mark.parametrize(("left", "arms"), [(1000, 3), (120, 3), (119, 2), (89, 1), (0, 1), (-50, 1), (math.inf, 3)])
def test_as_many_confirming_launches_as_fit_and_never_none(left: float, arms: int, journal: Journal) -> None:
    assert Clock(left, journal, At()).arms(PLAN) == arms


def test_acceptance_shares_what_the_rest_leaves(journal: Journal) -> None:
    clock = Clock(300, journal, At())
    rest = 2 * 10 + 3 * 1.3 * 6  # two launches more, step costs of three
    confirm = 2 * (10 + 20)
    assert clock.for_acceptance(PLAN, DRAFT, [DRAFT, LOOKUP], 6) == pytest.approx((300 - rest - confirm) / 2)
    assert Clock(math.inf, journal, At()).for_acceptance(PLAN, DRAFT, [], 6) == math.inf


def test_every_confirming_launch_has_a_share_and_at_least_some_cells(journal: Journal) -> None:
    assert Clock(120, journal, At()).share(PLAN, 3) == 40
    assert Clock(-5, journal, At()).share(PLAN, 3) == 10 + 20 / 4


def test_a_deadline_passes(journal: Journal) -> None:
    now = At()
    over = Clock(100, journal, now).deadline(10)
    assert not over()
    now.seconds = 10.5
    assert over()


@pytest.mark.parametrize(("load", "prompts", "times"), [(1, 3, 1), (4, 3, 2), (4, 2, 3), (4, 12, 1), (64, 2, 48)])
def test_prompts_are_sent_often_enough_to_refill_the_load(load: int, prompts: int, times: int) -> None:
    assert rounds(load, prompts) == times


@pytest.mark.vllm
def test_a_used_up_budget_leaves_cells_out_and_says_which(tmp_path: Path) -> None:
    settings = ServedSettings(budget_seconds=1, k_max=2, loads=(1, 2), methods=("eagle3",))
    profile = measure_served(servers(tmp_path), workload(prompts=6), tmp_path / "j.jsonl", settings)
    assert {len({w.id for w in profile.live if w.k == 2 and w.request_class == c.name}) for c in profile.classes} == {3}
    left = [s for s in profile.skipped if s.reason.startswith("the budget was used up")]
    assert left
    assert all("at load" in s.what for s in left)
