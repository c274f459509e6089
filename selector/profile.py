"""The profile: what was measured, and under which conditions."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from selector.errors import ProfileError, SelectorError
from selector.strategy import MODEL_METHODS, DraftSampleMethod, Frozen, Method, Strategy, greedy_family
from selector.workload import first_problem

PROFILE_SCHEMA: Literal[1] = 1
Sampling = Literal["greedy", "temperature", "top_p"]
Seconds = Annotated[float, Field(gt=0)]
Digits = Annotated[str, Field(pattern=r"^[0-9a-z]*$")]
#: Most drafted tokens per step; one base-36 digit holds it.
Width = Annotated[int, Field(ge=1, le=35)]


class Hardware(Frozen):
    """The machine as sampled. Rates are measured, not looked up."""

    processor: str
    cores: int
    memory_bytes: int
    gpu: str | None = None
    gpu_memory_bytes: int | None = None
    read_bandwidth_bytes_per_second: float
    matmul_flop_per_second: float
    platform: str


class EngineInfo(Frozen):
    """Which engine measured, in which build and settings."""

    name: str
    version: str
    runner: str | None = None
    dtype: str
    device: str
    threads: int
    packages: dict[str, str] = Field(default_factory=dict)
    environment: dict[str, str] = Field(default_factory=dict)


class ModelInfo(Frozen):
    """Identity of a target or drafter. `path` is what this machine loaded."""

    name: str
    path: str
    config_sha256: str
    parameters: int
    weight_bytes: int
    kv_bytes_per_token: int
    vocab_size: int
    max_model_len: int
    architecture: str
    warnings: tuple[str, ...] = ()


class DrafterInfo(ModelInfo):
    """A drafter with the method that uses it."""

    method: Method


class ClassInfo(Frozen):
    """One request class: its key and the prompts measured for it.

    `prompts_available`: different prompts in the workload; `requests`: all of them, repeats included (traffic).
    """

    name: str
    task: str
    temperature: float
    top_p: float
    prompts: int
    prompts_available: int
    requests: int | None = None


class Recording(Frozen):
    """One prompt decoded plainly; ids are prompt digests, the text is not kept."""

    id: str
    request_class: str
    prompt_tokens: int
    output_tokens: Annotated[int, Field(ge=1)]
    finish: Literal["stop", "length"]
    looping: bool


class Replay(Frozen):
    """Acceptance of one strategy family at every position of one recording (see `selector.walks`).

    `accepted`, `proposed`: base-36 digits for positions 1..n-1, recorded at `k_max`; `proposed` None means always k.
    """

    id: str
    request_class: str
    family: str
    k_max: Width
    accepted: Digits
    proposed: Digits | None = None


class LiveWalk(Frozen):
    """One prompt decoded by a serving engine with a strategy: what every step of it drafted and got accepted.

    `accepted`, `drafted`: base-36 digits, one per decode step; `drafted` None means always `k`. The walk emits
    `output_tokens` - 1 tokens; drafts accepted past the output's end are not counted.
    """

    id: str
    request_class: str
    family: str
    k: Width
    output_tokens: Annotated[int, Field(ge=1)]
    accepted: Digits
    drafted: Digits | None = None


class StepCost(Frozen):
    """Seconds of one decode step of `batch` requests that each verify `drafted` + 1 tokens at `context` tokens.

    `inferred`: not timed at this width and batch but taken from the line through those that were.
    """

    method: Method
    drafter: str | None = None
    drafted: Annotated[int, Field(ge=0)]
    batch: Annotated[int, Field(ge=1)]
    context: int
    sampling: Sampling
    draft_sample_method: DraftSampleMethod = "greedy"
    step_seconds: Annotated[tuple[Seconds, ...], Field(min_length=1)]
    inferred: bool = False


class PrefillCost(Frozen):
    """Seconds to prefill one prompt, the drafter's own prefill included."""

    method: Method
    drafter: str | None = None
    prompt_tokens: int
    prefill_seconds: Annotated[tuple[Seconds, ...], Field(min_length=1)]


class Run(Frozen):
    """One request decoded end to end for a confirmed cell."""

    id: str
    repeat: int
    output_tokens: int
    decode_steps: int
    drafted: int
    accepted: int
    prefill_seconds: Seconds
    decode_seconds: Annotated[float, Field(ge=0)]


class ConfirmedCell(Frozen):
    """One (class, strategy, load) measured end to end. `arm` tells the second plain arm (A/A) from the first.

    `max_running`, `max_waiting`: most requests that a serving engine ran and kept waiting at once, where it tells.
    """

    request_class: str
    strategy: Strategy
    load: int
    arm: Literal["main", "aa"] = "main"
    runs: tuple[Run, ...]
    max_running: int | None = None
    max_waiting: int | None = None


class Skipped(Frozen):
    """What was asked for and not measured, and why."""

    what: str
    reason: str


class Provenance(Frozen):
    """Where the numbers came from."""

    selector_version: str
    command: str
    started: str
    seconds_by_stage: dict[str, float]
    seed: int
    budget_seconds: float | None
    complete: bool
    interruptions: int = 0


class Profile(Frozen):
    """Everything `recommend` needs; read with `load_profile`."""

    schema_version: Literal[1] = PROFILE_SCHEMA
    hardware: Hardware
    engine: EngineInfo
    target: ModelInfo
    drafters: dict[str, DrafterInfo]
    workload: str
    workload_sha256: str
    temperature_bands: tuple[float, ...] | None = None
    classes: tuple[ClassInfo, ...]
    k_max: Width
    #: Family -> every k that its drafter allows, where that is not all of 1..k_max.
    valid_k: dict[str, tuple[Width, ...]] = Field(default_factory=dict)
    loads: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)]
    recordings: tuple[Recording, ...]
    replays: tuple[Replay, ...]
    live: tuple[LiveWalk, ...] = ()
    step_costs: tuple[StepCost, ...]
    prefill_costs: tuple[PrefillCost, ...]
    confirmed: tuple[ConfirmedCell, ...]
    aa_noise: Annotated[float, Field(ge=0)]
    skipped: tuple[Skipped, ...] = ()
    provenance: Provenance

    @model_validator(mode="after")
    def _drafters_are_there(self) -> Self:
        families = {f"replays.{i}.family": r.family for i, r in enumerate(self.replays)}
        families |= {f"live.{i}.family": w.family for i, w in enumerate(self.live)}
        used = {key: greedy_family(family).partition(" ") for key, family in families.items()}
        for key, (method, _, drafter) in used.items():
            if method in MODEL_METHODS and drafter not in self.drafters:
                raise ValueError(f"{key} uses drafter {drafter!r}, which 'drafters' does not hold")
        return self

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the file's content (16 hex digits)."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]


def load_profile(path: str | Path) -> Profile:
    """Read a profile file; raises `ProfileError` naming the file and the key."""
    data = read_json(path, PROFILE_SCHEMA, ProfileError)
    try:
        return Profile.model_validate(data)
    except ValidationError as error:
        raise ProfileError(f"{path}: {first_problem(error)}") from error


def read_json(path: str | Path, schema: int, error_type: type[Exception]) -> dict[str, Any]:
    """A JSON object whose schema this version can read; every fault becomes `error_type` with the file's name."""
    try:
        data = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise error_type(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise error_type(f"{path}: not JSON ({error})") from error
    if not isinstance(data, dict) or not isinstance(data.get("schema_version"), int):
        raise error_type(f"{path}: no schema_version in it: not a file this program wrote")
    if data["schema_version"] > schema:
        raise error_type(
            f"{path}: schema {data['schema_version']} is newer than schema {schema}, "
            "the newest this version reads: upgrade"
        )
    return data


def write_json(path: str | Path, model: Frozen) -> None:
    """Write a model as indented JSON: to a temporary file first, then renamed, so no half file is ever read."""
    _write(Path(path), model.model_dump_json(indent=1) + "\n")


def check_writable(path: str | Path) -> None:
    """Refuse a file that `write_json` could not write, before any work is done for it."""
    _write(Path(path), None)


def _write(file: Path, text: str | None) -> None:
    """Write and rename; without a text only try whether that would go."""
    try:
        if not file.name or (file.exists() and not file.is_file()):
            raise SelectorError(f"{file}: not a file that can be written; give a file name")
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f".{file.name}.{os.getpid()}")
        try:
            partial.write_text(text or "", "utf-8")
            if text is not None:
                partial.replace(file)
        finally:
            partial.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SelectorError(f"{file}: cannot be written ({reason}); give another --out") from error
