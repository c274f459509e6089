"""One loaded embedded engine for the whole session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from selector.strategy import Strategy

if TYPE_CHECKING:
    from selector.engines.reference import ReferenceEngine

EAGLE3 = Strategy(method="eagle3", drafter="eagle3-smollm2-135m", num_speculative_tokens=4)
EAGLE = Strategy(method="eagle", drafter="eagle-smollm2-135m", num_speculative_tokens=4)
DRAFT = Strategy(method="draft_model", drafter="draft2-smollm2-135m", num_speculative_tokens=4)
NGRAM = Strategy(method="ngram", lookup_min=2, lookup_max=4, num_speculative_tokens=4)
DRAFTING = (NGRAM, DRAFT, EAGLE3, EAGLE)


@pytest.fixture(scope="session")
def engine() -> ReferenceEngine:
    """The embedded target with its shipped drafters, fp32 on the CPU."""
    from selector.embedded import TARGET_NAME, embedded_drafters, embedded_target
    from selector.engines.reference import ReferenceEngine

    return ReferenceEngine(embedded_target(), TARGET_NAME, embedded_drafters())
