"""Which optional parts of the OpenAI interface a server has, found out once."""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING, Any

from selector.engines.served.failures import RequestFailed
from selector.engines.served.job import CHAT, EXTRAS, Job
from selector.engines.served.transcript import Transcript
from selector.workload import Request

if TYPE_CHECKING:
    from selector.engines.served.session import Session

#: Tokens of a probe: enough for one speculated step after the prefill.
_PROBE_TOKENS = 8


class Features:
    """What one server was found to lack; shared by all sessions of a client."""

    def __init__(self, model: str | None) -> None:
        self.model = model
        self.has_template = True
        #: Optional fields to leave out, by path; a path that is not in it was not tried yet.
        self.lacking: dict[str, frozenset[str]] = {}
        self._unseen: set[str] = set()

    @property
    def lacks(self) -> tuple[str, ...]:
        """All that was refused or asked for in vain, sorted."""
        refused = frozenset[str]().union(*self.lacking.values()) | self._unseen
        return tuple(sorted(refused | (set() if self.has_template else {"chat template"})))

    async def find_out(self, session: Session, path: str, prompt: Request | tuple[int, ...]) -> None:
        """Ask for a few tokens with every optional field, and if that is refused, find the fields to blame.

        Raises `RequestFailed` if the server also refuses the bare request.
        """
        # a prompt of its own, so that none of the measured ones is in the prefix cache already
        prompt = Request(prompt="Hello") if isinstance(prompt, Request) else prompt[:4]
        job = Job(prompt, _PROBE_TOKENS, ignore_eos=True, min_tokens=_PROBE_TOKENS, seed=0)
        refused: frozenset[str] = frozenset()
        try:
            seen = await self._probe(session, path, job, refused)
        except RequestFailed as error:
            if error.kind != "refused":
                raise
            try:
                seen = await self._probe(session, path, job, frozenset(EXTRAS))
            except RequestFailed as bare:
                if path == CHAT and "template" in str(bare):
                    self.has_template = False  # the caller goes on with plain completions
                    return
                raise
            refused = frozenset([f for f in EXTRAS if not await self._takes(session, path, job, f)])
            if refused != frozenset(EXTRAS):
                seen = await self._probe(session, path, job, refused)
        self._unseen |= seen
        self.lacking[path] = refused

    async def _takes(self, session: Session, path: str, job: Job, field: str) -> bool:
        """Whether one optional field alone is accepted."""
        try:
            await self._probe(session, path, job, frozenset(EXTRAS) - {field})
        except RequestFailed as error:
            if error.kind != "refused":
                raise
            return False
        return True

    async def _probe(self, session: Session, path: str, job: Job, without: Set[str]) -> set[str]:
        """What the answer to a probe does not show though it was asked for."""
        transcript = await session.exchange(path, job.body(path, await session.model(), without), job.digest)
        return _unseen(transcript, without)


def _unseen(transcript: Transcript, without: Set[str]) -> set[str]:
    shown: dict[str, Any] = {
        "return_token_ids": transcript.has_token_ids,
        "continuous_usage_stats": transcript.usage_chunks,
        # also absent where nothing is speculated, rightly
        "per-request metrics": transcript.tells_acceptance,
    }
    return {name for name, seen in shown.items() if not seen and name not in without}
