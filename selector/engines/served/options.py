"""What a served engine is started with, and its command line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from selector.errors import SelectorError

#: Options that the measurement sets itself, with how to say what is wanted instead.
_OURS = {
    "model": "give MODEL", "port": "use --port", "host": "the server listens on this machine only",
    "speculative-config": "the measurement tries several", "config": "one config would hide what is measured",
    "max-num-seqs": "use --max-num-seqs", "max-model-len": "use --max-model-len", "dtype": "use --dtype",
    "quantization": "use --quantization", "tensor-parallel-size": "use --tensor-parallel",
    "enable-prefix-caching": "prompts of a measurement must not hit a cache",
    "per-request-spec-decode-metrics": "it is set where the engine speculates",
    "api-key": "servers on this machine need none",
    "disable-log-stats": "its counters are needed",
    "trust-remote-code": "a measurement never runs a model folder's own code",
}  # fmt: skip


@dataclass(frozen=True)
class ServeOptions:
    """How every server of a measurement is started. `environment` is added to this process's own.

    stall_seconds: the longest silence of a stream before its request counts as failed.

    engine_args: further `vllm serve` options, name to value; True is a bare flag, False its `no-` form.
    """

    dtype: str = "auto"
    quantization: str | None = None
    tensor_parallel: int = 1
    draft_tensor_parallel: int | None = None
    max_num_seqs: int | None = None
    max_model_len: int | None = None
    engine_args: Mapping[str, str | bool] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    port: int | None = None
    ready_seconds: float = 600.0
    stall_seconds: float = 120.0

    def __post_init__(self) -> None:
        draft = self.draft_tensor_parallel
        if draft not in (None, 1, self.tensor_parallel):
            raise SelectorError(f"--draft-tensor-parallel {draft}: vLLM takes 1 or the target's {self.tensor_parallel}")


def engine_args(given: Sequence[str]) -> dict[str, str | bool]:
    """`KEY=VALUE` and `KEY` options; raises `SelectorError` for what the measurement decides itself."""
    found: dict[str, str | bool] = {}
    for text in given:
        name, sign, value = text.partition("=")
        key = name.strip().removeprefix("--").replace("_", "-")
        if not key or not key.replace("-", "").replace(".", "").isalnum():
            raise SelectorError(f"--engine-arg {text!r}: write KEY=VALUE, or KEY alone for a flag of vllm serve")
        bare = key.removeprefix("no-")
        if bare in _OURS:
            raise SelectorError(f"--engine-arg {text!r}: {_OURS[bare]}")
        found[key] = {"true": True, "false": False}.get(value.lower(), value) if sign else True
    return found


def environment(given: Sequence[str]) -> dict[str, str]:
    """`NAME=VALUE` options for the server's environment."""
    found: dict[str, str] = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name.isidentifier():
            raise SelectorError(f"--env {text!r}: write NAME=VALUE")
        found[name] = value
    return found


def arguments(
    model: str, options: ServeOptions, speculative: Mapping[str, Any] | None, *, port: int, max_num_seqs: int
) -> list[str]:
    """What stands behind `vllm serve`. `speculative`: the speculative config; None leaves it out."""
    out = [
        model, "--port", str(port), "--dtype", options.dtype, "--max-num-seqs", str(max_num_seqs),
        "--no-enable-prefix-caching", "--enable-prompt-tokens-details",
    ]  # fmt: skip
    if options.max_model_len is not None:
        out += ["--max-model-len", str(options.max_model_len)]
    if options.quantization is not None:
        out += ["--quantization", options.quantization]
    if options.tensor_parallel != 1:
        out += ["--tensor-parallel-size", str(options.tensor_parallel)]
    for key, value in options.engine_args.items():
        if isinstance(value, bool):
            out.append(f"--{key}" if value else f"--no-{key}")
        else:
            out += [f"--{key}", value]
    if speculative is not None:
        out += ["--per-request-spec-decode-metrics", "detailed", "--speculative-config", json.dumps(speculative)]
    return out
