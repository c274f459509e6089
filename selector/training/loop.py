"""The training loop: AdamW, a cosine over wall time, and checkpoints that survive a kill."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from selector.errors import SelectorError
from selector.training.features import FeatureCache
from selector.training.tensors import read_tensors
from selector.training.trainee import Trainee

CHECKPOINT = "checkpoint.safetensors"
WARMUP_STEPS = 50
FLOOR = 0.05
MOMENTS = ("step", "exp_avg", "exp_avg_sq")
_ANEW = "delete it and train anew"


@dataclass(frozen=True)
class Plan:
    """How long and how to train; `minutes` is wall time over all resumed runs together."""

    minutes: float
    seed: int = 0
    checkpoint_minutes: float = 3.0
    weight_decay: float = 0.01


@dataclass
class Progress:
    """How far a training has come."""

    step: int = 0
    elapsed_seconds: float = 0.0


class Loop:
    """Trains one drafter on its batches; `out` gets the checkpoint."""

    def __init__(self, trainee: Trainee, batches: FeatureCache, plan: Plan, out: Path) -> None:
        self.trainee, self.batches, self.plan, self.out = trainee, batches, plan, out
        self.named = {n: p for n, p in trainee.named_parameters() if p.requires_grad}
        self.optimizer = torch.optim.AdamW(
            self.named.values(), lr=trainee.learning_rate, betas=(0.9, 0.95), weight_decay=plan.weight_decay
        )
        self.progress = Progress()

    def run(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        """Train until the minutes are used up; an interrupt leaves a checkpoint behind."""
        total = self.plan.minutes * 60
        last = saved = clock()
        try:
            while self.progress.elapsed_seconds < total:
                loss = self._step(self.progress.elapsed_seconds / total)
                now = clock()
                self.progress.elapsed_seconds += now - last
                last = now
                if self.progress.step % 20 == 0:
                    say(f"step {self.progress.step}, {self.progress.elapsed_seconds:.0f} s, loss {loss:.3f}")
                if now - saved >= self.plan.checkpoint_minutes * 60:
                    self.save()
                    saved = now
        finally:
            self.save()

    def _step(self, fraction: float) -> float:
        step, plan = self.progress.step, self.plan
        epoch, index = divmod(step, len(self.batches))
        order = random.Random(f"{plan.seed} {epoch}").sample(range(len(self.batches)), len(self.batches))
        torch.manual_seed(plan.seed * 1_000_003 + step)  # a resumed run draws what an unbroken one would
        cosine = FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * min(1.0, fraction)))
        for group in self.optimizer.param_groups:
            group["lr"] = self.trainee.learning_rate * min(1.0, (step + 1) / WARMUP_STEPS) * cosine
        with torch.autocast("cpu", torch.bfloat16):  # three times as fast where the processor has it
            loss = self.trainee.loss(self.batches[order[index]])
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch's stub
        torch.nn.utils.clip_grad_norm_(self.named.values(), self.trainee.clip)
        self.optimizer.step()
        self.progress.step += 1
        return loss.item()

    def save(self) -> None:
        """Write weights, optimizer moments and progress as one safetensors file, replaced in one move."""
        tensors: dict[str, Tensor] = {f"weight {n}": p.detach() for n, p in self.named.items()}
        for name, parameter in self.named.items():
            for moment, value in self.optimizer.state[parameter].items():
                tensors[f"{moment} {name}"] = value
        note = {
            "drafter": self.trainee.identity,
            "step": self.progress.step,
            "elapsed_seconds": self.progress.elapsed_seconds,
        }
        partial = self.out / (CHECKPOINT + ".partial")
        save_file({n: t.contiguous() for n, t in tensors.items()}, partial, metadata={"progress": json.dumps(note)})
        partial.replace(self.out / CHECKPOINT)

    def resume(self) -> None:
        """Continue from the checkpoint in `out`; raises `SelectorError` when it is missing, damaged or another's."""
        file = self.out / CHECKPOINT
        if not file.is_file():
            raise SelectorError(f"{file}: nothing to resume; leave --resume out")
        tensors, notes = read_tensors(file)
        try:
            note = json.loads(notes["progress"])
            drafter, progress = note["drafter"], Progress(int(note["step"]), float(note["elapsed_seconds"]))
        except (KeyError, TypeError, ValueError) as error:
            raise SelectorError(f"{file}: no checkpoint of this command ({error!r}); {_ANEW}") from error
        if drafter != self.trainee.identity:
            raise SelectorError(
                f"{file}: holds another drafter ({drafter}, not {self.trainee.identity}); "
                "resume with the same kind, --start-from and --data"
            )
        moments = MOMENTS if progress.step else ()  # a training that was stopped before its first step has none
        for name, parameter in self.named.items():
            for part in ("weight", *moments):
                stored = tensors.get(f"{part} {name}")
                if stored is None or (part != "step" and stored.shape != parameter.shape):
                    raise SelectorError(f"{file}: {part} of {name} is missing or of another shape; {_ANEW}")
        with torch.no_grad():
            for name, parameter in self.named.items():
                parameter.copy_(tensors[f"weight {name}"])
                if moments:
                    self.optimizer.state[parameter] = {m: tensors[f"{m} {name}"] for m in moments}
        self.progress = progress
