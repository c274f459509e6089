"""Routes one request: its class, the strategy and pool that the policy chose for it, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from selector.classify import TextClassifier
from selector.decision import Decision, explained
from selector.errors import PolicyError
from selector.exporters.vllm_config import speculation_fields
from selector.feedback import Feedback, Totals
from selector.policy import ClassDecision, Policy, Pool
from selector.policy_source import PolicySource, read_policy
from selector.route_arguments import check_settings, request_text

__all__ = ["UNKNOWN", "Decision", "Router"]

#: `Decision.request_class` of every request that goes to the fallback pool.
UNKNOWN = "unknown"
_SHOWN_LABEL = 80


class Router:
    """Answers from a policy: decisions are made when it loads, routing looks them up. Thread-safe."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._fingerprint = policy.fingerprint
        self._tasks: dict[str, list[tuple[ClassDecision, Decision]]] = {}
        #: (class or task, temperature, top_p) -> decision; None where the caller left it out
        self._known: dict[tuple[str, float | None, float | None], Decision] = {}
        self._named: dict[str, Decision] = {}
        for c in policy.classes:
            if c.request_class in self._named:
                raise PolicyError(f"classes: {c.request_class!r} is there twice")
            self._add(c)
        fallback = policy.pool(policy.fallback_pool)
        self._fallback = self._decision(fallback, UNKNOWN, fallback.k_at(policy.load), 0.0, "")
        self._classifier = TextClassifier(policy.classifier) if policy.classifier is not None else None
        self._feedback = Feedback(self._named.keys() | {UNKNOWN}, {p.name for p in policy.pools})

    @classmethod
    def load(cls, source: PolicySource) -> Self:
        """Read a policy from a path, an open file or plain data. Nothing in it is executed.

        Raises `PolicyError` naming the key: unreadable, too large, of a newer schema, inconsistent.
        """
        return cls(read_policy(source))

    @property
    def policy(self) -> Policy:
        """The policy this router answers from."""
        return self._policy

    def route(
        self,
        prompt: str | None = None,
        *,
        messages: Iterable[Any] | None = None,
        request_class: str | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        max_tokens: int | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Decision:
        """Decide for one request, given by class or task, prompt, or chat messages (the first that is there).

        A task name ("chat") or a text leaves the choice among that task's classes to the sampling; a
        temperature of None is greedy. A class the policy does not know, or a text it is not sure about, goes
        to the fallback pool. `max_tokens` and `metadata` change nothing with today's policies. Odd messages
        never raise; `ValueError` only when there is nothing to route by, or for an argument of the wrong type
        or range.
        """
        if temperature is not None or top_p is not None or max_tokens is not None or metadata is not None:
            check_settings(temperature, top_p, max_tokens, metadata)
        if request_class is not None:
            if not isinstance(request_class, str):
                raise ValueError(f"request_class must be a string, not {type(request_class).__name__}")
            decision = self._known.get((request_class, temperature, top_p))
            return decision if decision is not None else self._for_label(request_class, temperature, top_p)
        return self._for_text(request_text(prompt, messages), temperature, top_p)

    def record(self, decision: Decision, *, drafted: int, accepted: int, tokens: int, seconds: float) -> None:
        """Add what one routed request really did to the totals of its class and pool; safe from any thread.

        Raises `ValueError` for impossible numbers and for a decision of another policy.
        """
        if decision.policy_fingerprint != self._fingerprint:
            raise ValueError(
                f"this decision is from policy {decision.policy_fingerprint}, this router holds {self._fingerprint}"
            )
        self._feedback.add(decision.request_class, decision.pool, drafted, accepted, tokens, seconds)

    def stats(self) -> dict[tuple[str, str], Totals]:
        """Totals by (request class, pool) of everything recorded so far, a copy."""
        return self._feedback.totals()

    def _add(self, c: ClassDecision) -> None:
        """Precompute one class, and what its task's name alone leads to."""
        decision = self._decision(self._policy.pool(c.pool), c.request_class, c.num_speculative_tokens, 1.0, c.reason)
        self._named[c.request_class] = decision
        self._known.setdefault((c.request_class, None, None), decision)
        members = self._tasks.setdefault(c.task, [])
        members.append((c, decision))
        members.sort(key=lambda m: (m[0].temperature, m[0].top_p))
        self._known[c.task, None, None] = self._by_sampling(c.task, None, None)
        self._known[c.task, c.temperature, c.top_p] = decision
        if c.top_p == 1 or c.temperature == 0:
            self._known[c.task, c.temperature, None] = decision

    def _decision(self, pool: Pool, name: str, k: int, confidence: float, reason: str) -> Decision:
        others = [p for p in self._policy.pools if p.name != pool.name]
        others.sort(key=lambda p: (p.strategy.method != "none", -p.server_share, p.name))
        return Decision(
            request_class=name,
            strategy=pool.strategy,
            num_speculative_tokens=k,
            pool=pool.name,
            base_url=pool.base_url,
            fallbacks=tuple(p.name for p in others),
            confidence=confidence,
            reason=reason,
            policy_fingerprint=self._fingerprint,
            speculative_config=speculation_fields(self._policy, pool, {}),
        )

    def _for_label(self, label: str, temperature: float | None, top_p: float | None) -> Decision:
        if label in self._tasks:
            return self._by_sampling(label, temperature, top_p)
        known = self._named.get(label)
        if known is not None:  # a full name says its sampling itself
            return known
        shown = label if len(label) <= _SHOWN_LABEL else label[:_SHOWN_LABEL] + "…"
        return self._fall_back(f"class {shown!r} is not in this policy", 1.0)

    def _for_text(self, text: str, temperature: float | None, top_p: float | None) -> Decision:
        if not text or text.isspace():
            return self._fall_back("no user text to classify", 0.0)
        if self._classifier is None:
            return self._fall_back("this policy holds no text classifier; pass request_class", 0.0)
        task, confidence = self._classifier.predict(text)
        if confidence < self._classifier.min_confidence:
            least = self._classifier.min_confidence
            return self._fall_back(f"classifier not sure: {task!r} at {confidence:.2f}, needs {least:.2f}", confidence)
        if task not in self._tasks:
            return self._fall_back(f"classified as {task!r}, which is not in this policy", confidence)
        known = self._known.get((task, temperature, top_p)) or self._by_sampling(task, temperature, top_p)
        return explained(known, confidence, f"classified as {task!r}; {known.reason}")

    def _fall_back(self, why: str, confidence: float) -> Decision:
        pool = self._fallback.pool
        return explained(self._fallback, confidence, f"{why}: fallback pool {pool!r}")

    def _by_sampling(self, task: str, temperature: float | None, top_p: float | None) -> Decision:
        """The class of a task whose sampling is the nearest one that is not easier to draft for."""
        asked, members = float(temperature or 0), self._tasks[task]
        profiled = sorted({c.temperature for c, _ in members})
        used, note = _nearest_above(asked, profiled, "temperature")
        members = [m for m in members if m[0].temperature == used]
        if used > 0:  # top_p changes nothing for greedy decoding
            nucleus, more = _nearest_above(
                1.0 if top_p is None else float(top_p), [c.top_p for c, _ in members], "top_p"
            )
            members, note = [m for m in members if m[0].top_p == nucleus], note + more
        decision = members[0][1]
        return explained(decision, 1.0, f"{decision.reason}{note}") if note else decision


def _nearest_above(asked: float, profiled: list[float], what: str) -> tuple[float, str]:
    """The nearest profiled value not below the asked one, else the highest; and a note unless it is equal."""
    for value in profiled:
        if value == asked:
            return value, ""
        if value > asked:
            return value, f"; {what} {asked:g} was not profiled, the nearest higher one, {value:g}, is used"
    return profiled[-1], f"; {what} {asked:g} is above every profiled one, the highest, {profiled[-1]:g}, is used"
