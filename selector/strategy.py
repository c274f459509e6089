"""A decoding strategy: method, drafter and knobs."""

from __future__ import annotations

from typing import Annotated, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

Method = Literal["none", "ngram", "draft_model", "eagle", "eagle3", "suffix", "mtp", "medusa", "dflash"]
METHODS: tuple[Method, ...] = get_args(Method)
#: Methods whose proposals come from a model with weights of its own, beside the target.
MODEL_METHODS: frozenset[str] = frozenset({"draft_model", "eagle", "eagle3", "medusa", "dflash"})
#: Methods that a serving engine can run and the reference engine of this package cannot.
SERVED_METHODS: frozenset[str] = frozenset({"suffix", "mtp", "medusa", "dflash"})
#: Methods that look drafts up in text: no weights, no prefill, and the text decides how many tokens a step drafts.
LOOKUP_METHODS: frozenset[str] = frozenset({"ngram", "suffix"})
#: Methods whose k must not follow the batch size: with a smaller k the engine stops (vLLM 0.32).
FIXED_K_METHODS: frozenset[str] = frozenset({"suffix", "medusa"})
#: Methods whose drafts may be drawn from the drafter's distribution.
DRAWING_METHODS: frozenset[str] = frozenset({"draft_model", "eagle", "eagle3"})
#: How a model drafter's tokens are chosen for sampled requests; greedy requests are always drafted for greedily.
DraftSampleMethod = Literal["greedy", "probabilistic"]
_PROBABILISTIC = " probabilistic"


class Frozen(BaseModel):
    """Base of everything that is read from or written to a file: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Strategy(Frozen):
    """One way to decode: how tokens are proposed and how many per step (k).

    `drafter` names an entry of the profile's or policy's `drafters`; `lookup_min`/`lookup_max` are the n-gram
    window (tokens, inclusive). `none` is plain decoding, k = 0. `draft_sample_method`: a sampled request's drafts are
    the drafter's likeliest tokens (`greedy`), or drawn from its distribution at the request's temperature.
    """

    method: Method
    drafter: str | None = None
    num_speculative_tokens: Annotated[int, Field(ge=0, le=128)] = 0
    lookup_min: Annotated[int, Field(ge=1)] | None = None
    lookup_max: Annotated[int, Field(ge=1)] | None = None
    draft_sample_method: DraftSampleMethod = "greedy"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        k = self.num_speculative_tokens
        if (self.method == "none") != (k == 0):
            raise ValueError(f"method {self.method!r} with num_speculative_tokens = {k}: k is 0 for 'none' only")
        if (self.method in MODEL_METHODS) != (self.drafter is not None):
            raise ValueError(
                f"method {self.method!r} with drafter = {self.drafter!r}: model drafters need a name, others take none"
            )
        if self.draft_sample_method != "greedy" and self.method not in DRAWING_METHODS:
            raise ValueError(f"method {self.method!r} draws no drafts: draft_sample_method must be 'greedy'")
        window = (self.lookup_min, self.lookup_max)
        if (self.method == "ngram") != (None not in window):
            raise ValueError(
                f"method {self.method!r} with lookup window {window}: set both for 'ngram', neither otherwise"
            )
        if self.lookup_min is not None and self.lookup_max is not None and self.lookup_min > self.lookup_max:
            raise ValueError(f"lookup_min {self.lookup_min} is above lookup_max {self.lookup_max}")
        return self

    @property
    def k(self) -> int:
        """Drafted tokens per step (the field's short name for `num_speculative_tokens`)."""
        return self.num_speculative_tokens

    @property
    def proposer(self) -> str:
        """What proposes, whatever k and however drafts are chosen, e.g. `ngram 2..4` or `eagle3 my-head`."""
        if self.method == "ngram":
            return f"ngram {self.lookup_min}..{self.lookup_max}"
        return self.method if self.drafter is None else f"{self.method} {self.drafter}"

    @property
    def family(self) -> str:
        """The strategy without k: what acceptance is recorded by, e.g. `eagle3 my-head probabilistic`."""
        return self.proposer + (_PROBABILISTIC if self.draft_sample_method == "probabilistic" else "")

    @property
    def label(self) -> str:
        """Short name for tables, e.g. `eagle3 k=3`; the drafter's name is left out."""
        if self.method == "none":
            return "none"
        head = self.family if self.method == "ngram" else self.method
        head += _PROBABILISTIC if self.draft_sample_method == "probabilistic" else ""
        return f"{head} k={self.k}"

    @property
    def guessing(self) -> Strategy:
        """The same strategy with the likeliest drafts: what it is anyway on greedy requests."""
        return (
            self if self.draft_sample_method == "greedy" else self.model_copy(update={"draft_sample_method": "greedy"})
        )

    @property
    def drawing(self) -> Strategy:
        """The same strategy with drawn drafts."""
        return self.model_copy(update={"draft_sample_method": "probabilistic"})

    def with_k(self, k: int) -> Strategy:
        """The same family at another k; k = 0 gives plain decoding."""
        return PLAIN if k == 0 else Strategy.model_validate(self.model_dump() | {"num_speculative_tokens": k})


PLAIN = Strategy(method="none")


def greedy_family(family: str) -> str:
    """The family with greedy drafts: the same on greedy requests, where nothing is drawn."""
    return family.removesuffix(_PROBABILISTIC)
