"""The target and the drafters that a command line names, loaded into the reference engine."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from selector.adapters.checkpoint import Checkpoint
from selector.adapters.recognise import recognise
from selector.errors import SelectorError
from selector.policy import Policy
from selector.strategy import METHODS, MODEL_METHODS

if TYPE_CHECKING:
    from selector.engines.reference import ReferenceEngine


def reference_engine(
    model: Path | None,
    given: tuple[str, ...],
    say: Callable[[str], None],
    *,
    dtype: str,
    device: str,
    threads: int | None,
) -> ReferenceEngine:
    """The model in a local folder with the drafters given; without one, the embedded model and its own drafters."""
    from selector.engines.reference import ReferenceEngine

    if model is None:
        from selector.embedded import TARGET_NAME, embedded_drafters, embedded_target

        target, name = embedded_target(say), TARGET_NAME
        drafters = named(given) or embedded_drafters(say)
    else:
        target, name, drafters = model, model.resolve().name, named(given)
    say(f"loading {name} and {len(drafters)} drafters")
    return ReferenceEngine(target, name, drafters, dtype=dtype, device=device, threads=threads)


def policy_engine(
    policy: Policy, model: Path | None, given: tuple[str, ...], say: Callable[[str], None], *, dtype: str, device: str,
    threads: int | None,
) -> ReferenceEngine:  # fmt: skip
    """The policy's target and drafters from where it found them; a model or a drafter that is given moved there."""
    from selector.engines.reference import ReferenceEngine

    used = {pool.strategy.drafter for pool in policy.pools}
    drafters: dict[str, tuple[Any, Path]] = {
        name: (info.method, Path(info.path)) for name, info in policy.drafters.items() if name in used
    }
    moved = named(given)
    if unknown := sorted(moved.keys() - drafters.keys()):
        known = ", ".join(drafters) or "no drafter"
        raise SelectorError(f"--drafter {unknown[0]}: the policy's pools use {known}; write NAME=PATH")
    say(f"loading {policy.target.name} and {len(drafters)} drafters")
    engine = ReferenceEngine(
        model or Path(policy.target.path), policy.target.name, drafters | moved,
        dtype=dtype, device=device, threads=threads,
    )  # fmt: skip
    for ours, theirs in ((engine.target, policy.target), *((engine.drafters[n], policy.drafters[n]) for n in drafters)):
        if ours.config_sha256 != theirs.config_sha256:
            raise SelectorError(
                f"{ours.path}: its config.json is not that of the policy's {theirs.name}; give its folder"
            )
    return engine


def named(given: tuple[str, ...]) -> dict[str, tuple[Any, Path]]:
    """`PATH`, `METHOD=PATH` and `NAME=PATH` options by name; without one a drafter is called as its folder."""
    drafters: dict[str, tuple[Any, Path]] = {}
    for text in given:
        left, sign, path = ("", "", text) if Path(text).is_dir() or "=" not in text else text.partition("=")
        if (sign and not re.fullmatch(r"[\w.-]+", left)) or left in set(METHODS) - MODEL_METHODS:
            raise click.UsageError(f"--drafter {text!r}: write PATH, METHOD=PATH or NAME=PATH, such as eagle3=PATH")
        folder = Path(path)
        if folder.is_file():
            raise SelectorError(f"--drafter {text!r}: this is a file; give the folder it lies in, {folder.parent}")
        if not folder.is_dir():
            raise SelectorError(f"--drafter {text!r}: no such folder")
        insisted = left in MODEL_METHODS  # the engine refuses it when the tensors say otherwise
        method = left if insisted else recognise(Checkpoint(folder))
        name = folder.resolve().name if insisted or not left else left
        if re.search(r"\s", name):
            raise SelectorError(f"--drafter {text!r}: the name {name!r} holds a blank; name it: NAME={path}")
        drafters[name if name not in drafters else f"{name}-{len(drafters)}"] = (method, folder)
    return drafters
