"""The real model: outputs equal plain decoding's, and walks foretell live steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from selector.engines.base import Generation
from selector.equality import compare
from selector.measure.plan import pick_prompts
from selector.strategy import PLAIN, Strategy
from selector.walks import walk
from selector.workload import Request, load_workload

from .conftest import DRAFTING

if TYPE_CHECKING:
    from selector.engines.reference import ReferenceEngine

pytestmark = pytest.mark.embedded


@pytest.fixture(scope="module")
def prompts() -> list[Request]:
    """One prompt of each greedy class, 64 tokens; the long form is `tests/benchmarks/lossless.py`."""
    classes = load_workload().by_class()
    picked = [pick_prompts(rs, 1, seed=3)[0] for rs in classes.values() if rs[0].temperature == 0]
    return [r.model_copy(update={"max_tokens": 64}) for r in picked]


@pytest.fixture(scope="module")
def plain(engine: ReferenceEngine, prompts: list[Request]) -> list[Generation]:
    """Their plain outputs."""
    return [engine.generate(r, PLAIN, seed=0) for r in prompts]


@pytest.mark.parametrize("strategy", DRAFTING, ids=lambda s: s.method)
def test_greedy_output_equals_plain_decoding(
    engine: ReferenceEngine, prompts: list[Request], plain: list[Generation], strategy: Strategy
) -> None:
    found = [compare(engine, r, g, strategy)[0] for r, g in zip(prompts, plain, strict=True)]
    assert [c for c in found if c.verdict == "different"] == []
    assert sum(c.verdict == "near-tie" for c in found) <= 1, found
    assert sum(c.output_tokens for c in found) > 300


@pytest.mark.parametrize("k", range(1, 7))
@pytest.mark.parametrize("family", DRAFTING, ids=lambda s: s.method)
def test_the_walk_takes_exactly_the_live_steps(
    engine: ReferenceEngine, prompts: list[Request], plain: list[Generation], family: Strategy, k: int
) -> None:
    at = [i for i in range(len(plain)) if len(plain[i].output_ids) > 20][k % 3 :: 3][:1]
    assert at
    for i in at:
        replayed = engine.replay(plain[i], family.with_k(6))
        live = engine.generate(prompts[i], family.with_k(k), seed=0)
        assert live.output_ids == plain[i].output_ids
        walked = walk(replayed.accepted, k, replayed.proposed)
        assert walked.accepted_per_step == live.accepted_per_step
        assert (walked.steps, walked.drafted, walked.accepted) == (live.decode_steps, live.drafted, live.accepted)


def test_drafters_do_draft(engine: ReferenceEngine, plain: list[Generation]) -> None:
    """A drafter whose state went stale would still be lossless, only useless."""
    for family, least in zip(DRAFTING, (0.02, 0.1, 0.2, 0.1), strict=True):
        replays = [engine.replay(g, family) for g in plain]
        walks = [walk(a.accepted, 4, a.proposed) for a in replays]
        assert sum(w.accepted for w in walks) / sum(w.steps for w in walks) > least, family.label


def test_a_batched_recording_is_a_plain_output(
    engine: ReferenceEngine, prompts: list[Request], plain: list[Generation]
) -> None:
    recorded = engine.record(prompts, seed=0)
    equal = [r.output_ids == g.output_ids for r, g in zip(recorded, plain, strict=True)]
    assert sum(equal) >= len(equal) - 1, equal


def test_sampled_decoding_repeats_with_its_seed(engine: ReferenceEngine, prompts: list[Request]) -> None:
    request = prompts[0].model_copy(update={"temperature": 0.8, "top_p": 0.9, "max_tokens": 24})
    first, again, other = (engine.generate(request, DRAFTING[2], seed=s).output_ids for s in (1, 1, 2))
    assert first == again
    assert first != other
