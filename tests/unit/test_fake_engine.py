"""The fake engine agrees with itself and with its stated truth."""

import numpy as np
import pytest

from selector.engines.base import Engine
from selector.engines.fake import FakeCost, FakeEngine
from selector.strategy import PLAIN, Strategy
from selector.walks import walk
from tests.unit.fake_profiles import DRAFT, EAGLE, NGRAM, fake_requests

FAMILIES = [NGRAM, EAGLE, DRAFT]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda s: s.family)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("k", [1, 3, 6])
def test_replay_predicts_the_live_run(family: Strategy, temperature: float, k: int) -> None:
    engine: Engine = FakeEngine()
    for request in fake_requests(["code", "edit", "other"], 4, temperature):
        plain = engine.generate(request, PLAIN, seed=5)
        live = engine.generate(request, family.with_k(k), seed=5)
        seen = engine.replay(plain, family)
        w = walk(seen.accepted, k, seen.proposed)
        assert live.output_ids == plain.output_ids
        assert (live.decode_steps, live.drafted, live.accepted) == (w.steps, w.drafted, w.accepted)
        assert live.accepted_per_step == w.accepted_per_step


def test_plain_decoding_takes_a_step_per_token() -> None:
    g = FakeEngine().generate(fake_requests(["chat"], 1)[0], PLAIN, seed=0)
    assert (g.decode_steps, g.drafted, g.accepted) == (len(g.output_ids) - 1, 0, 0)


def test_sampled_outputs_depend_on_the_seed_and_greedy_ones_do_not() -> None:
    engine = FakeEngine()
    greedy, sampled = fake_requests(["chat"], 1)[0], fake_requests(["chat"], 1, 0.8)[0]
    a, b = (engine.generate(greedy, PLAIN, seed=s).output_ids for s in (1, 2))
    c, d = (engine.generate(sampled, PLAIN, seed=s).output_ids for s in (1, 2))
    assert a == b
    assert c != d


def test_two_engines_of_one_seed_tell_the_same_times() -> None:
    first, second = (
        FakeEngine(seed=3).step_seconds(EAGLE, batch=2, context=64, sampling="greedy", repeats=4) for _ in "ab"
    )
    assert first == second


def test_timings_scatter_around_the_truth() -> None:
    cost = FakeCost(noise=0.02)
    seconds = FakeEngine(cost=cost).step_seconds(EAGLE, batch=2, context=64, sampling="greedy", repeats=400)
    truth = cost.step("eagle3", 6, 2, 64, "greedy")
    assert np.mean(seconds) == pytest.approx(truth, rel=0.005)
    assert np.std(np.log(seconds)) == pytest.approx(0.02, rel=0.15)


def test_output_respects_the_limit() -> None:
    request = fake_requests(["code"], 1)[0].model_copy(update={"max_tokens": 10})
    g = FakeEngine().generate(request, PLAIN, seed=0)
    assert len(g.output_ids) == 10
    assert g.finish == "length"


def test_edits_suit_ngram_and_translation_does_not() -> None:
    engine = FakeEngine()
    edit, translate = (
        np.mean(
            [
                len(g.output_ids) / g.decode_steps
                for r in fake_requests([task], 10)
                for g in [engine.generate(r, NGRAM, seed=0)]
            ]
        )
        for task in ("edit", "translate")
    )
    assert edit > 2
    assert translate < 1.2
