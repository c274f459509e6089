"""The losslessness check on the real model: a right adapter passes, a broken cache and a stale drafter do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from selector.workload import Request, load_workload

from .conftest import EAGLE3

if TYPE_CHECKING:
    from selector.engines.reference import ReferenceEngine

pytestmark = pytest.mark.embedded


def requests(count: int) -> list[Request]:
    """Two tasks, short outputs."""
    from selector.verify import choose

    wanted = [r for r in load_workload().requests if r.task in ("code", "edit")]
    return choose(wanted, count, 40, 0)


def test_a_right_adapter_is_lossless_by_the_check(engine: ReferenceEngine) -> None:
    from selector.verify import Setting, verify_lossless

    settings = [Setting(temperature=0.7, top_p=0.9)]
    (found,) = verify_lossless(engine, [EAGLE3.drawing], requests(3), settings=settings, samples=2).strategies
    assert found.verdict in ("lossless", "near-tie differences only"), found.evidence
    assert found.drafting.verdict == "as replayed"
    assert found.tests


@pytest.mark.parametrize("fault", ["KV crop, one too few", "stale drafter state"])
def test_a_broken_decoder_is_caught(engine: ReferenceEngine, fault: str) -> None:
    from selector.verify import verify_lossless
    from tests.sabotage import SABOTAGES

    (found,) = verify_lossless(SABOTAGES[fault](engine), [EAGLE3], requests(2), settings=[]).strategies
    assert found.failed
    assert (found.verdict == "not lossless") == fault.startswith("KV")
