"""Engines that decode wrongly in one way each: what a check of losslessness must catch.

Each fault is a `Stepper` that a `SabotagedEngine` decodes by; plain decoding in it stays right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial

import torch
from torch import Tensor

from selector.adapters.base import Drafter, Drafts, DraftSampling, Recording
from selector.engines.base import Generation
from selector.engines.reference import ReferenceEngine
from selector.engines.reference.model import DecoderModel
from selector.engines.reference.sampling import Verdict, draw, probabilities
from selector.engines.reference.stepper import Sampler, Step, Stepper
from selector.strategy import PLAIN, Strategy
from selector.workload import Request


class _Roomy(Stepper):
    """Room for the tokens that a fault adds."""

    def __init__(
        self, target: DecoderModel, drafter: Drafter | None, sampler: Sampler, batch: int, capacity: int
    ) -> None:
        super().__init__(target, drafter, sampler, batch, 2 * capacity)


class CropsOneTooMany(_Roomy):
    """Off-by-one crop: whenever a draft is rejected, the last good entry goes with it."""

    kept = -1

    def _commit(self, start: int, accepted: int, emitted: list[list[int]], aux: Tensor | None) -> None:
        rejected = self.cache.length > start + accepted + 1
        super()._commit(start, accepted, emitted, aux)
        if rejected:
            self.cache.crop_to(start + accepted + 1 + self.kept)


class CropsOneTooFew(CropsOneTooMany):
    """Off-by-one crop the other way: the entry of the first rejected draft stays."""

    kept = 1


class _Forgetful:
    """Passes everything on to a drafter, but every fifth commit is the one before it once more."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter, self.aux_layers = drafter, drafter.aux_layers

    def start(self, batch: int, capacity: int) -> None:
        self.commits = 0
        self.drafter.start(batch, capacity)

    def prefill(self, prompt: Tensor, aux: Tensor | None) -> None:
        self.drafter.prefill(prompt, aux)

    def commit(self, tokens: Tensor, aux: Tensor | None) -> None:
        self.commits += 1
        if self.commits % 5:
            self.last = (tokens, aux)
        self.drafter.commit(*self.last)

    def draft(self, k: int, sampling: DraftSampling | None = None) -> Drafts:
        return self.drafter.draft(k, sampling)

    def pretend(self, length: int) -> None:
        self.drafter.pretend(length)

    def replay(self, recording: Recording, k: int) -> tuple[list[int], list[int] | None]:
        return self.drafter.replay(recording, k)


class StaleDrafter(_Roomy):
    """Now and then the drafter takes in what it took in before, and drafts on behind another text than the output."""

    def __init__(
        self, target: DecoderModel, drafter: Drafter | None, sampler: Sampler, batch: int, capacity: int
    ) -> None:
        super().__init__(target, drafter and _Forgetful(drafter), sampler, batch, capacity)


class LosesBonus(_Roomy):
    """The bonus token after a full acceptance is computed and kept in the caches, but not handed out."""

    def step(self, k: int, forced: int | None = None) -> Step:
        step = super().step(k, forced)
        full = 0 < step.drafted == step.accepted[0]
        return Step(step.drafted, step.accepted, [row[:-1] for row in step.emitted]) if full else step


class _Resampling(Stepper):
    """Verifies by another rule."""

    rule: type[Sampler] = Sampler

    def __init__(
        self, target: DecoderModel, drafter: Drafter | None, sampler: Sampler, batch: int, capacity: int
    ) -> None:
        settings = {f.name: getattr(sampler, f.name) for f in fields(sampler)}
        super().__init__(target, drafter, self.rule(**settings) if drafter else sampler, batch, capacity)


class _NoBonus(Sampler):
    def verify(self, logits: Tensor, drafts: list[int], q: Tensor | None = None) -> Verdict:
        verdict = super().verify(logits, drafts, q)
        return verdict if verdict.accepted < len(drafts) or not drafts else Verdict(len(drafts) - 1, drafts[-1])


class NeverBonus(_Resampling):
    """A full acceptance ends with its last draft: outputs are right, steps are more than there need to be."""

    rule = _NoBonus


class _Rule(Sampler):
    """Rejection sampling with its three parts open to error; greedy requests are judged rightly."""

    def accepts(self, p: Tensor, logits: Tensor, q: Tensor | None, x: int, u: float) -> bool:
        return u * (1.0 if q is None else float(q[x])) < float(p[x])

    def residual(self, p: Tensor, q: Tensor | None, x: int) -> Tensor:
        point = torch.zeros_like(p).index_fill_(0, torch.tensor([x], device=p.device), 1.0)
        return p * (1 - point) if q is None else (p - q).clamp_(min=0)

    def verify(self, logits: Tensor, drafts: list[int], q: Tensor | None = None) -> Verdict:
        if self.generator is None:
            return super().verify(logits, drafts, q)
        p = probabilities(logits, self.temperature, self.top_p)
        for i, x in enumerate(drafts):
            own = None if q is None else q[i]
            u = float(torch.rand((), generator=self.generator, device=p.device))
            if not self.accepts(p[i], logits[i], own, x, u):
                return Verdict(i, draw(self.residual(p[i], own, x), self.generator))
        return Verdict(len(drafts), draw(p[len(drafts)], self.generator))


class _ResidualIsTarget(_Rule):
    def residual(self, p: Tensor, q: Tensor | None, x: int) -> Tensor:
        return p


class WrongResidual(_Resampling):
    """A rejected draft is replaced by a draw from p itself, not from what p has left."""

    rule = _ResidualIsTarget


class _IgnoresQ(_Rule):
    def accepts(self, p: Tensor, logits: Tensor, q: Tensor | None, x: int, u: float) -> bool:
        return u < float(p[x])


class DraftsTakenForGreedy(_Resampling):
    """Drawn drafts are accepted with probability p, as if they had been the drafter's only choice."""

    rule = _IgnoresQ


class _AtTemperatureOne(_Rule):
    def accepts(self, p: Tensor, logits: Tensor, q: Tensor | None, x: int, u: float) -> bool:
        return u * (1.0 if q is None else float(q[x])) < float(torch.softmax(logits.float(), -1)[x])


class TemperatureIgnored(_Resampling):
    """Drafts are judged by the target's probabilities at temperature 1, and without its nucleus."""

    rule = _AtTemperatureOne


class ReseedsEveryStep(Stepper):
    """The generator is set back to the request's seed at every step: the same random numbers again and again."""

    def step(self, k: int, forced: int | None = None) -> Step:
        if self.drafter and (generator := self.sampler.generator):
            generator.manual_seed(generator.initial_seed())
        return super().step(k, forced)


class ReseedsForAll(Stepper):
    """As `ReseedsEveryStep`, to one seed for all requests."""

    def step(self, k: int, forced: int | None = None) -> Step:
        if self.drafter and (generator := self.sampler.generator):
            generator.manual_seed(1234)
        return super().step(k, forced)


class SabotagedEngine(ReferenceEngine):
    """Shares the loaded models of another engine; every strategy but plain decoding goes through `stepping`."""

    def __init__(self, engine: ReferenceEngine, stepping: type[Stepper]) -> None:
        self.__dict__.update(engine.__dict__)
        self.stepping = stepping

    def generate(self, request: Request, strategy: Strategy, *, seed: int) -> Generation:
        self.stepper = Stepper if strategy == PLAIN else self.stepping
        return super().generate(request, strategy, seed=seed)


class OverrunningEngine(SabotagedEngine):
    """Looks for the stop token at the end of a step only, and so hands out the accepted drafts behind it."""

    deaf = False

    def __init__(self, engine: ReferenceEngine) -> None:
        super().__init__(engine, Stepper)

    def generate(self, request: Request, strategy: Strategy, *, seed: int) -> Generation:
        if strategy == PLAIN:
            return super().generate(request, strategy, seed=seed)
        right, self.stop_ids = self.stop_ids, frozenset()
        try:
            whole = super().generate(request, strategy, seed=seed)
        finally:
            self.stop_ids = right
        return whole if self.deaf else _cut(whole, right)

    deaf = False


def _cut(whole: Generation, stop_ids: frozenset[int]) -> Generation:
    """The output up to the end of the step that holds its first stop token."""
    end, steps = 1, 0
    while end < len(whole.output_ids) and not stop_ids & set(whole.output_ids[:end]):
        end += whole.accepted_per_step[steps] + 1
        steps += 1
    output, accepted = whole.output_ids[:end], whole.accepted_per_step[:steps]
    return replace(
        whole, output_ids=output, accepted_per_step=accepted, accepted=sum(accepted), decode_steps=steps,
        finish="stop" if stop_ids & set(output) else "length",
    )  # fmt: skip


class GarblingEngine(SabotagedEngine):
    """Puts the least likely token of all into the middle of every sampled output, once."""

    def __init__(self, engine: ReferenceEngine) -> None:
        super().__init__(engine, Stepper)

    def generate(self, request: Request, strategy: Strategy, *, seed: int) -> Generation:
        whole = super().generate(request, strategy, seed=seed)
        if strategy == PLAIN or request.temperature == 0:
            return whole
        output, at = list(whole.output_ids), len(whole.output_ids) // 2
        ids = range(max(self.stop_ids) + 1, self.target.vocab_size)  # a stop token would be found by the output's end
        output[at] = max(ids, key=lambda i: self.behind_best([*whole.prompt_ids, *output[:at]], i))
        return replace(whole, output_ids=tuple(output))


class SeedlessEngine(SabotagedEngine):
    """Ignores the seed it is given: every sample of a prompt is the same."""

    def __init__(self, engine: ReferenceEngine) -> None:
        super().__init__(engine, Stepper)

    def generate(self, request: Request, strategy: Strategy, *, seed: int) -> Generation:
        return super().generate(request, strategy, seed=seed if strategy == PLAIN else 7)


class DeafEngine(OverrunningEngine):
    """Does not stop at a stop token at all."""

    deaf = True


#: Each fault of the issue, by name; several where it has more than one form.
SABOTAGES: dict[str, Callable[[ReferenceEngine], SabotagedEngine]] = {
    "KV crop, one too many": partial(SabotagedEngine, stepping=CropsOneTooMany),
    "KV crop, one too few": partial(SabotagedEngine, stepping=CropsOneTooFew),
    "stale drafter state": partial(SabotagedEngine, stepping=StaleDrafter),
    "bonus token lost": partial(SabotagedEngine, stepping=LosesBonus),
    "bonus token never emitted": partial(SabotagedEngine, stepping=NeverBonus),
    "wrong residual": partial(SabotagedEngine, stepping=WrongResidual),
    "drawn drafts taken for greedy ones": partial(SabotagedEngine, stepping=DraftsTakenForGreedy),
    "temperature ignored in verification": partial(SabotagedEngine, stepping=TemperatureIgnored),
    "same random numbers at every step": partial(SabotagedEngine, stepping=ReseedsEveryStep),
    "same random numbers at every step of all": partial(SabotagedEngine, stepping=ReseedsForAll),
    "seed ignored": SeedlessEngine,
    "garbage now and then": GarblingEngine,
    "stop token overrun, to the step's end": OverrunningEngine,
    "stop token overrun, no stop at all": DeafEngine,
}
