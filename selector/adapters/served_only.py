"""Methods that serving engines run and the reference engine of this package does not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from selector.errors import DrafterMismatch
from selector.strategy import Strategy

if TYPE_CHECKING:
    from selector.adapters.base import Drafter
    from selector.engines.reference.model import DecoderModel


def only_served(method: str) -> str:
    """Why it cannot be drafted with here, and what can."""
    return f"{method} is not decoded in process: measure it on a server (selector profile --engine vllm)"


class ServedOnly:
    """The part of an adapter that is alike for all of them."""

    def drafter(self, target: DecoderModel, path: Path | None, strategy: Strategy) -> Drafter | None:
        """Raises `DrafterMismatch`: nothing drafts so in process."""
        raise DrafterMismatch(only_served(strategy.method))
