"""Step cost between the points that one launch visits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selector.errors import NotMeasured
from selector.measure.served.launches import batches, measuring_launches
from selector.measure.stepfit import StepFit, StepPoint, plain_at
from selector.strategy import Strategy

NGRAM = Strategy(method="ngram", lookup_min=2, lookup_max=4, num_speculative_tokens=8)
PLAIN = {1: (0.030,), 2: (0.032,), 3: (0.034,), 4: (0.036,), 5: (0.038,)}


def truth(drafted: float, batch: int, a: float, b: float, c: float, e: float) -> float:
    return plain_at({n: t[0] for n, t in PLAIN.items()}, batch) + a + b * drafted + (c + e * drafted) * batch


@given(st.tuples(*[st.floats(0, 0.01)] * 4))
def test_a_linear_cost_is_found_from_the_batches_of_one_launch(terms: tuple[float, float, float, float]) -> None:
    visits = measuring_launches(NGRAM, (1, 4))[0].visits
    points = [StepPoint(k, batch, (truth(k, batch, *terms),)) for batch, k in visits.items()]
    fit = StepFit(points, PLAIN)
    for k in (1, 2, 4, 8):
        for batch in (1, 2, 4):
            assert fit.point(k, batch) == pytest.approx(truth(k, batch, *terms), rel=0.03)


def test_no_term_is_negative_and_a_step_never_cheaper_than_a_plain_one() -> None:
    fit = StepFit([StepPoint(8, 1, (0.029,)), StepPoint(1, 2, (0.0315,)), StepPoint(4, 3, (0.033,))], PLAIN)
    assert all(fit.point(k, b) >= PLAIN[b][0] for k in (1, 4, 8) for b in PLAIN)
    assert fit.residual < 0.05


def test_resamples_spread_with_the_noise_of_the_timings() -> None:
    rng = np.random.default_rng(0)
    points = [
        StepPoint(k, b, tuple(truth(k, b, 0.001, 0.001, 0, 0.0005) * rng.normal(1, 0.05, 3)))
        for b, k in measuring_launches(NGRAM, (1, 4))[0].visits.items()
    ]
    seconds = StepFit(points, PLAIN).seconds(4, 1)
    assert len(set(seconds)) > 1
    assert np.median(seconds) == pytest.approx(truth(4, 1, 0.001, 0.001, 0, 0.0005), rel=0.1)


def test_without_a_timing_nothing_is_invented() -> None:
    with pytest.raises(NotMeasured):
        StepFit([], PLAIN)


@pytest.mark.parametrize("loads", [(1, 4), (1, 2, 4, 8), (1, 16), (1,)])
def test_a_launch_visits_every_load_and_both_ends_of_k_in_one_schedule(loads: tuple[int, ...]) -> None:
    launch = measuring_launches(NGRAM, loads)[0]
    assert set(loads) <= set(launch.visits) == set(batches(loads))
    assert {1, 8} <= set(launch.visits.values())
    assert launch.visits[1] == 8
    assert launch.schedule is not None
    expected = 1
    for first, last, _ in launch.schedule:  # vLLM: from 1 on, without gaps
        assert first == expected
        expected = last + 1
    assert expected - 1 == launch.max_batch
    for batch, k in launch.visits.items():
        assert next(n for first, last, n in launch.schedule if first <= batch <= last) == k
