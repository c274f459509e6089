"""One adapter per decoding method; `adapter(method)` finds it."""

from __future__ import annotations

from selector.adapters.base import Adapter
from selector.adapters.dflash import DflashAdapter
from selector.adapters.draft_model import DraftModelAdapter
from selector.adapters.eagle import EagleAdapter
from selector.adapters.eagle3 import Eagle3Adapter
from selector.adapters.medusa import MedusaAdapter
from selector.adapters.mtp import MtpAdapter
from selector.adapters.ngram import NgramAdapter
from selector.adapters.none import NoneAdapter
from selector.adapters.suffix import SuffixAdapter
from selector.errors import RecipeError

ADAPTERS: dict[str, Adapter] = {
    a.method: a
    for a in (
        NoneAdapter(), NgramAdapter(), DraftModelAdapter(), EagleAdapter(), Eagle3Adapter(), SuffixAdapter(),
        MtpAdapter(), MedusaAdapter(), DflashAdapter(),
    )
}  # fmt: skip


def adapter(method: str) -> Adapter:
    """The adapter of a method; raises `RecipeError` with the known ones."""
    try:
        return ADAPTERS[method]
    except KeyError:
        raise RecipeError(f"unknown method {method!r}; known: {', '.join(ADAPTERS)}") from None
