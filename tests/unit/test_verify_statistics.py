"""The tests by themselves: exact on what is known, calibrated on what is drawn, and as sharp as they say."""

from __future__ import annotations

import numpy as np
import pytest

from selector.engines.base import Acceptance, Generation
from selector.verify.arms import Arm, compare_arms, corrected
from selector.verify.report import Setting
from selector.verify.statistics import holm, kolmogorov_smirnov, mean_shift, noticeable
from selector.verify.steps import Misstep, missteps, tolerated


@pytest.mark.parametrize("sizes", [(200, 300), (1000, 1000), (4000, 700)])
def test_p_values_are_those_of_scipy(sizes: tuple[int, int]) -> None:
    stats = pytest.importorskip("scipy.stats")
    for seed in range(20):
        random = np.random.default_rng(seed)
        a, b = random.random(sizes[0]), random.random(sizes[1]) ** (1 + seed / 60)
        distance, p = kolmogorov_smirnov(a, b)
        exact = stats.ks_2samp(a, b, method="exact")
        assert distance == pytest.approx(exact.statistic)
        assert p == pytest.approx(exact.pvalue, rel=0.2, abs=1e-3)
        shift, p = mean_shift(a, b)
        welch = stats.ttest_ind(b, a, equal_var=False)
        assert shift == pytest.approx(b.mean() - a.mean())
        assert p == pytest.approx(welch.pvalue, rel=0.1, abs=1e-4)


def test_equal_arms_are_seldom_called_different() -> None:
    random = np.random.default_rng(1)
    pairs = [(random.random(400), random.random(500)) for _ in range(2000)]
    below = np.mean([kolmogorov_smirnov(a, b)[1] < 0.01 for a, b in pairs])
    assert 0.005 < below < 0.017
    surprisals = [(random.gamma(0.7, size=400), random.gamma(0.7, size=500)) for _ in range(4000)]
    assert np.mean([mean_shift(a, b)[1] < 0.001 for a, b in surprisals]) < 0.003


def test_holm_multiplies_the_smallest_most_and_keeps_the_order() -> None:
    assert holm([0.04, 0.001, 0.03]) == pytest.approx([0.06, 0.003, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize(("n", "m"), [(500, 500), (2000, 700)])
def test_the_smallest_noticeable_distance_is_noticed_nine_times_in_ten(n: int, m: int) -> None:
    random, alpha = np.random.default_rng(2), 1e-4
    least = noticeable(n, m, alpha)
    seen = 0
    for _ in range(300):
        moved = random.random(m)
        moved = np.where(random.random(m) < 2 * least, moved * 0.5, moved)  # distance `least`, at one half
        seen += kolmogorov_smirnov(random.random(n), moved)[1] < alpha
    assert seen / 300 > 0.87


def test_tests_need_tokens_and_are_corrected_over_all_strategies() -> None:
    random, setting = np.random.default_rng(3), Setting(temperature=0.7)

    def arm(n: int, power: float = 1.0) -> dict[Setting, Arm]:
        ranks = [random.random(n) ** power]
        return {setting: Arm(rank=ranks, surprisal=[random.random(n)], favour={"f": [random.random(n // 4)]})}

    plain, right, wrong = arm(1000), arm(600), arm(600, 2.0)
    assert [t.statistic for t in compare_arms(plain, right, "f")] == [
        "rank",
        "surprisal",
    ]  # 150 values are too few for favour
    assert compare_arms(plain, arm(100), "f") == []
    both = corrected([compare_arms(plain, right, "f"), compare_arms(plain, wrong, "f")], 0.001)
    assert both[1][0].corrected_p == pytest.approx(4 / 0.9 * both[1][0].p_value)  # a tenth of alpha is for rarities
    assert both[1][0].corrected_p < 0.001 < min(t.corrected_p for t in both[0])
    assert both[0][0].noticeable == pytest.approx(noticeable(1000, 600, 0.0009 / 4))
    assert both[0][1].noticeable is None


def test_the_steps_that_may_differ_depend_on_precision_and_on_what_drafts() -> None:
    assert [tolerated("eagle3", n, "float32") for n in (20, 400, 1000)] == [1, 2, 5]
    assert tolerated("eagle3", 316, "bfloat16") > 6  # so many differed with a right head
    assert tolerated("ngram", 1000, "bfloat16") == 0


def test_a_step_is_judged_at_its_own_place() -> None:
    output = Generation((1,), tuple(range(9)), "length", 4, 12, 5, 0.0, 0.0, accepted_per_step=(2, 0, 1, 1))
    replayed = Acceptance((2, 0, 0, 1, 3, 0, 3, 0), None)  # positions 1..8; the steps begin at 1, 4, 5 and 7
    assert missteps(output, replayed, 3) == [Misstep(4, 1, 0), Misstep(5, 3, 1), Misstep(7, 2, 1)]
    assert missteps(output, Acceptance((2, 0, 0, 0, 1, 0, 1, 0), None), 3) == []
