"""Identity and sizes of a model that another process serves, from its folder's config and tensor headers."""

from __future__ import annotations

import hashlib
import math
import os
from pathlib import Path

from selector.adapters.checkpoint import Checkpoint
from selector.profile import DrafterInfo, ModelInfo
from selector.strategy import Method

#: Bytes of one number by tensor type or dtype option; others count as stored.
_BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}


def local_folder(model: str) -> Path | None:
    """The model's folder: itself, or a Hugging Face id's newest snapshot in the local cache; None: not here."""
    if Path(model).is_dir():
        return Path(model)
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    cache = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    snapshots = cache / f"models--{model.replace('/', '--')}" / "snapshots"
    found = [s for s in snapshots.glob("*") if (s / "config.json").is_file()] if snapshots.is_dir() else []
    return max(found, key=lambda s: s.stat().st_mtime, default=None)


def model_info(model: str, dtype: str, max_model_len: int | None = None) -> ModelInfo:
    """What is known of a target; sizes are 0, with a warning, when its files are not on this machine."""
    folder = local_folder(model)
    name = Path(model).resolve().name if Path(model).is_dir() else model
    if folder is None:
        return ModelInfo(
            name=name, path=model, config_sha256=hashlib.sha256(model.encode()).hexdigest(), parameters=0,
            weight_bytes=0, kv_bytes_per_token=0, vocab_size=0, max_model_len=max_model_len or 0,
            architecture="unknown", warnings=("its files are not on this machine: sizes and memory are unknown",),
        )  # fmt: skip
    checkpoint = Checkpoint(folder)
    config = checkpoint.config
    item = _BYTES.get(dtype) or _BYTES.get(str(config.get("dtype") or config.get("torch_dtype")), 2)
    parameters = sum(math.prod(t.shape) for n, t in checkpoint.tensors.items() if n not in ("d2t", "t2d"))
    heads = int(config.get("num_key_value_heads") or config.get("num_attention_heads") or 0)
    width = int(config.get("head_dim") or int(config.get("hidden_size") or 0) // max(1, _heads(config)))
    longest = int(config.get("max_position_embeddings") or 0)
    return ModelInfo(
        name=name, path=model, config_sha256=hashlib.sha256((folder / "config.json").read_bytes()).hexdigest(),
        parameters=parameters, weight_bytes=parameters * item,
        kv_bytes_per_token=2 * heads * width * int(config.get("num_hidden_layers") or 1) * item,
        vocab_size=int(config.get("vocab_size") or 0), max_model_len=min(longest, max_model_len or longest) or longest,
        architecture=str((config.get("architectures") or ["unknown"])[0]),
    )  # fmt: skip


def drafter_info(
    name: str, method: Method, folder: Path, target: ModelInfo, dtype: str, warnings: tuple[str, ...]
) -> DrafterInfo:
    """What is known of a drafter; it is told the target's length where it has none of its own."""
    info = model_info(str(folder), dtype)
    return DrafterInfo.model_validate(
        info.model_dump()
        | {"name": name, "path": str(folder), "method": method, "warnings": warnings,
           "max_model_len": info.max_model_len or target.max_model_len}
    )  # fmt: skip


def _heads(config: dict[str, object]) -> int:
    heads = config.get("num_attention_heads")
    return heads if isinstance(heads, int) else 1
