"""The user's own `vllm serve` options: spelling, and what the YAML reader would drop or misread."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from selector.errors import ExportError

#: Options the policy decides, or that no export may set.
_RESERVED = {
    "model": "give --model-path instead",
    "config": "vLLM reads one config file only",
    "speculative-config": "the policy decides it",
    "max-num-seqs": "it is the pool's max_batch",
    "per-request-spec-decode-metrics": "it follows from the strategy (vLLM refuses it without speculation)",
    "trust-remote-code": "an exported config never runs a model folder's own code",
}
#: Short spellings of vllm serve. They are single-dash options: `tp: 2` in YAML becomes `--tp`, which it does not know.
_SHORT = {
    "tp": "tensor-parallel-size", "dp": "data-parallel-size", "pp": "pipeline-parallel-size",
    "dcp": "decode-context-parallel-size", "pcp": "prefill-context-parallel-size", "dpl": "data-parallel-size-local",
    "dpn": "data-parallel-rank", "dpr": "data-parallel-start-rank", "dpa": "data-parallel-address",
    "dpp": "data-parallel-rpc-port", "dpb": "data-parallel-backend", "sc": "speculative-config", "q": "quantization",
}  # fmt: skip
_LONGEST_SHORT = 3
#: Options that are looked at by name: an abbreviation must not slip past.
_CHECKED = {
    *_RESERVED, "tensor-parallel-size", "data-parallel-size", "draft-tensor-parallel-size", "max-model-len",
    "max-num-batched-tokens", "async-scheduling", "logits-processors", "override-generation-config",
    "generation-config",
}  # fmt: skip


def normalised(engine_args: Mapping[str, Any]) -> dict[str, Any]:
    """User options with vLLM's spelling; raises `ExportError` for what its YAML reader drops or misreads."""
    out: dict[str, Any] = {}
    for name, value in engine_args.items():
        key = name.removeprefix("--").replace("_", "-")
        if not re.fullmatch(r"[a-z][a-z0-9-]*", key):
            raise ExportError(f"engine option {name!r}: not an option name of vllm serve")
        key = _SHORT.get(key, key)
        bare = key.removeprefix("no-")
        _check_long(name, bare)
        if isinstance(value, str) and value in ("True", "False", "true", "false"):
            value = value.lower() == "true"
        if bare in _RESERVED or bare.startswith("spec-"):
            raise ExportError(
                f"engine option {name!r} cannot be set here: {_RESERVED.get(bare, 'the policy decides it')}"
            )
        if value is None or value == "" or value == [] or value == {}:
            raise ExportError(f"engine option {name!r} has no value: leave it out")
        if isinstance(value, str) and (value.startswith("-") or not value.isprintable()):
            raise ExportError(
                f"engine option {name!r}: {value!r} starts with '-' or holds control characters; vLLM misreads it"
            )
        if value is False and bare != key:
            raise ExportError(f"engine option {name!r} is false: say '{bare}' = true instead")
        key, value = (f"no-{key}", True) if value is False else (key, value)
        if key in out or key.removeprefix("no-") in out or f"no-{key}" in out:
            raise ExportError(f"engine option {key.removeprefix('no-')!r} is given twice")
        out[key] = value
    return out


def _check_long(name: str, bare: str) -> None:
    """Refuse short forms: the unknown ones, and the front part of an option that is looked at."""
    if len(bare) <= _LONGEST_SHORT and bare != "uds":
        raise ExportError(f"engine option {name!r}: a short form; write the long name that vllm serve --help gives")
    whole = next((c for c in sorted(_CHECKED) if c.startswith(bare) and bare not in _CHECKED), None)
    if whole is not None:
        raise ExportError(f"engine option {name!r}: an abbreviation of {whole!r}; write it in full")
