"""Checks of paths and drafters that vLLM does not make, or makes only after minutes of loading."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from selector.adapters.head_checks import refused_architecture
from selector.adapters.speculators import is_speculators
from selector.errors import ExportError
from selector.policy import Policy, Pool

#: Architectures that other engines know and vLLM refuses.
REFUSED_ARCHITECTURES = frozenset({"LlamaForCausalLMEagle"})
_MAX_HEADER_BYTES = 100_000_000
_MAX_PATH_BYTES, _MAX_PART_BYTES = 4095, 255


def resolve_paths(policy: Policy, model_paths: Mapping[str, str]) -> dict[str, str]:
    """Where the user's server finds the target and each drafter: as mapped, else as recorded."""
    known = {policy.target.name: policy.target.path} | {name: d.path for name, d in policy.drafters.items()}
    for name in model_paths:
        if name not in known:
            raise ExportError(
                f"--model-path names {name!r}, which this policy does not hold; it has {', '.join(map(repr, known))}"
            )
    return {name: str(model_paths.get(name, path)) for name, path in known.items()}


def check_path(name: str, path: str) -> None:
    """Refuse a path that vLLM or a shell would misread."""
    if not path.strip():
        raise ExportError(f"model path of {name!r} is empty: give --model-path '{name}=PATH'")
    if not path.isprintable():  # newline, NUL, other control characters, lone surrogates
        raise ExportError(f"model path of {name!r} holds control characters: {path!r}; rename the folder")
    if len(path.encode()) > _MAX_PATH_BYTES or any(len(part.encode()) > _MAX_PART_BYTES for part in path.split("/")):
        raise ExportError(f"model path of {name!r} is longer than a file system takes: {path[:40]}…")
    if path.startswith("-"):
        raise ExportError(f"model path of {name!r} starts with '-', vLLM would read an option: {path!r}; use ./{path}")


def _is_file(file: Path) -> bool:
    """Also False for a path that this machine cannot even look up."""
    try:
        return file.is_file()
    except (OSError, ValueError):
        return False


def check_drafter(policy: Policy, pool: Pool, paths: Mapping[str, str]) -> None:
    """Refuse a drafter that would not load or would guess wrong; its folder is read where it is here."""
    name = pool.strategy.drafter
    if name is None:
        return
    drafter, target = policy.drafters[name], policy.target
    check_path(name, paths[name])
    if pool.strategy.method == "draft_model" and drafter.vocab_size != target.vocab_size:
        raise ExportError(
            f"drafter {name!r} has a vocabulary of {drafter.vocab_size}, target {target.name!r} of "
            f"{target.vocab_size}: vLLM refuses draft_model then"
        )
    method = pool.strategy.method
    if method in ("eagle", "eagle3"):
        if "ForCausalLM" in drafter.architecture:  # else a scripted drafter, or a name that nobody recorded
            _check_architecture(f"drafter {name!r}", [drafter.architecture], method)
        for folder in {Path(drafter.path), Path(paths[name])}:
            if _is_file(folder / "config.json"):
                _check_head(name, folder, target.vocab_size, method)


def _check_architecture(who: str, architectures: list[str], method: str) -> None:
    refusal = refused_architecture({"architectures": architectures}, method)
    if refusal:
        raise ExportError(f"{who}: {refusal}")


def _check_head(name: str, folder: Path, target_vocab: int, method: str) -> None:
    config = _read_object(folder / "config.json")
    if config.get("architectures") and not is_speculators(config):
        _check_architecture(f"drafter {name!r} ({folder})", config["architectures"], method)
    if method == "eagle":
        return
    draft_vocab = config.get("draft_vocab_size") or config.get("vocab_size", target_vocab)
    weights = sorted(folder.glob("*.safetensors"))
    if draft_vocab == target_vocab or not weights:
        return
    if not any(tensor.split(".")[-1] == "d2t" for file in weights for tensor in tensor_names(file)):
        raise ExportError(
            f"drafter {name!r} ({folder}): draft_vocab_size {draft_vocab} differs from the target's "
            f"{target_vocab} and there is no "
            "'d2t' tensor; vLLM would load it and accept almost nothing"
        )


def tensor_names(file: Path) -> list[str]:
    """Tensor names from the header of a safetensors file: 8 bytes little-endian length, then JSON."""
    try:
        with file.open("rb") as stream:
            (size,) = struct.unpack("<Q", stream.read(8))
            if size > _MAX_HEADER_BYTES:
                raise ExportError(f"{file}: header of {size} bytes, not a safetensors file")
            header = json.loads(stream.read(size))
        return [tensor for tensor in header if tensor != "__metadata__"]
    except (OSError, ValueError, struct.error, TypeError, RecursionError) as error:
        raise ExportError(f"{file}: not a readable safetensors file ({error})") from error


def check_context(policy: Policy, pool: Pool) -> int:
    """The pool's `max-model-len`; refuses contexts that the target or a shorter drafter cannot hold.

    vLLM drops the drafts of a whole batch once one request passes the drafter's length, so a shorter drafter
    limits the server, k tokens before its end.
    """
    target, name, k = policy.target, pool.strategy.drafter, pool.strategy.k
    need = pool.max_context_tokens
    if need > target.max_model_len:
        raise ExportError(
            f"pool {pool.name!r} needs contexts of {need} tokens, target {target.name!r} holds {target.max_model_len}"
        )
    if name is None or policy.drafters[name].max_model_len >= target.max_model_len:
        return target.max_model_len
    held = policy.drafters[name].max_model_len
    if need + k > held:
        raise ExportError(
            f"pool {pool.name!r} needs {need} tokens of context + k = {k}, drafter {name!r} holds {held}: "
            f"send longer requests to a plain pool, or limit them to {held - k} tokens"
        )
    return held - k


def sets_min_p(policy: Policy, paths: Mapping[str, str]) -> bool:
    """Whether the target's generation_config.json, if it is on this machine, makes min_p a server default."""
    for folder in (policy.target.path, paths[policy.target.name]):
        file = Path(folder) / "generation_config.json"
        if _is_file(file) and _read_object(file).get("min_p"):
            return True
    return False


def _read_object(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ExportError(f"{file}: not readable JSON ({error})") from error
    if not isinstance(data, dict):
        raise ExportError(f"{file}: not a JSON object")
    return data
