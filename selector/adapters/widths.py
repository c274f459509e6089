"""Which k a checkpoint can draft: heads that predict one position each, or layers that run again and again."""

from __future__ import annotations

from dataclasses import dataclass

from selector.errors import DrafterMismatch


@dataclass(frozen=True)
class Widths:
    """`most`: the largest k there is; `block`: tokens drafted at a time, above which k is a multiple of it.

    None: no such limit. `what` names the part that sets it, for messages.
    """

    most: int | None = None
    block: int | None = None
    what: str = "the drafter"

    def allows(self, k: int) -> bool:
        """Whether an engine would draft k tokens with it."""
        return (self.most is None or k <= self.most) and (self.block is None or k <= self.block or k % self.block == 0)

    def upto(self, k_max: int) -> tuple[int, ...]:
        """Every k from 1 to `k_max` that is allowed."""
        return tuple(k for k in range(1, k_max + 1) if self.allows(k))

    def check(self, k: int) -> None:
        """Raises `DrafterMismatch` with the valid k."""
        if self.allows(k):
            return
        if self.most is not None:
            raise DrafterMismatch(
                f"k = {k}: {self.what} supports at most {self.most}; the largest valid k is {self.most}"
            )
        block = self.block or 1
        valid = ", ".join(map(str, self.upto((k // block + 1) * block)))
        raise DrafterMismatch(
            f"k = {k}: {self.what} drafts {block} tokens at a time, so above {block} k is a multiple of it; "
            f"valid: {valid}"
        )


ANY = Widths()
