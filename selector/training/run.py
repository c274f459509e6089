"""One training from options to files: read, build, train, evaluate, save."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from selector.adapters.checkpoint import Checkpoint
from selector.errors import SelectorError
from selector.training.draft import load_draft, new_draft
from selector.training.eagle import load_eagle, new_eagle
from selector.training.eagle3 import load_head, new_head
from selector.training.features import FeatureCache, Target
from selector.training.loop import CHECKPOINT, Loop, Plan
from selector.training.rows import Row, grouped, read_rows
from selector.training.trainee import Acceptance, Trainee, evaluate


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    kind: str
    target: Path
    data: Path
    out: Path
    minutes: float = 20.0
    start_from: Path | None = None
    resume: bool = False
    threads: int = 0
    seed: int = 0
    batch: int = 8
    feature_memory_gib: float = 2.0


def train(options: Options, say: Callable[[str], None]) -> tuple[Acceptance, Acceptance]:
    """Train as told and write the drafter to `out`; the hold-out acceptance before and after."""
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    _keep_checkpoint(options)
    rows = read_rows(options.data, Checkpoint(options.target).whole("vocab_size"))
    seen = [row for row in rows if not row.held_out]
    unseen = [row for row in rows if row.held_out]
    say(f"{len(seen)} conversations to train on, {len(unseen)} held out")
    target = Target(options.target, aux=options.kind == "eagle3")
    memory = int(options.feature_memory_gib * 2**30)
    held_out = FeatureCache(target, grouped(unseen, options.batch), memory)
    trainee = _build(options, target, seen)
    plan = Plan(options.minutes, options.seed)
    loop = Loop(trainee, FeatureCache(target, grouped(seen, options.batch), memory), plan, options.out)
    if options.resume:
        loop.resume()
    before = after = evaluate(trainee, held_out)
    say(f"hold-out acceptance before: {before}")
    if options.minutes > 0:
        if loop.progress.elapsed_seconds >= 60 * options.minutes:
            say(f"its {options.minutes:g} minutes are used up: more --minutes would train on")
        loop.run(say)
        after = evaluate(trainee, held_out)
        say(f"hold-out acceptance after {loop.progress.step} steps: {after}")
        trainee.save(options.out)
        for file in options.out.glob("*.safetensors"):
            file.chmod(0o644)  # safetensors writes 0600; the server that loads it may be another user
        say(f"drafter: {options.out}")
    return before, after


def _keep_checkpoint(options: Options) -> None:
    """Make the folder; a training that lies there already is not overwritten."""
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / CHECKPOINT
    if file.exists() and options.minutes > 0 and not options.resume:
        raise SelectorError(f"{file}: an earlier training; go on with --resume, name another --out or delete it")


def _build(options: Options, target: Target, seen: list[Row]) -> Trainee:
    if options.kind == "eagle3":
        return load_head(target, options.start_from) if options.start_from else new_head(target, seen)
    if options.kind == "eagle":
        return load_eagle(target, seen, options.start_from) if options.start_from else new_eagle(target, seen)
    return load_draft(target, seen, options.start_from) if options.start_from else new_draft(target, seen)
