"""What runs now: the strategy of a policy file or of a vLLM configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from selector.errors import NotMeasured, PolicyError
from selector.policy import parse_policy
from selector.profile import Profile
from selector.strategy import METHODS, MODEL_METHODS, PLAIN, Strategy
from selector.workload import first_problem

_KEY = "speculative-config"
#: vLLM's short spellings of single settings of the speculative config.
_SHORT = {"spec-method": "method", "spec-model": "model", "spec-tokens": "num_speculative_tokens"}
#: Options of `vllm serve` that few other files have: with one of them, or `model`, a file without speculation is plain.
_SERVE_KEYS = frozenset(
    {
        "dtype", "enable-prefix-caching", "enforce-eager", "gpu-memory-utilization", "kv-cache-dtype", "max-model-len",
        "max-num-batched-tokens", "max-num-seqs", "pipeline-parallel-size", "quantization", "served-model-name",
        "tensor-parallel-size", "trust-remote-code",
    }
)  # fmt: skip
_SCHEDULE = "num_speculative_tokens_per_batch_size"
_VLLM_WINDOW = 5  # vLLM's default for prompt_lookup_min and _max when neither is set


def read_current(path: str | Path, profile: Profile, load: int) -> dict[str, Strategy]:
    """Strategy per class that `path` deploys at a load: a policy, or a vLLM YAML / JSON file ("" = every class).

    A vLLM file without speculative config is plain decoding. Raises `PolicyError` when it is neither,
    `NotMeasured` when its drafter or its k is not one of the profile's.
    """
    data = _read(Path(path))
    if "schema_version" in data:
        policy = parse_policy(data, str(path))
        by_pool = {p.name: p.strategy.with_k(p.k_at(load)) for p in policy.pools}
        return {"": by_pool[policy.fallback_pool]} | {c.request_class: by_pool[c.pool] for c in policy.classes}
    config = data if "num_speculative_tokens" in data else _speculation(data, str(path))
    return {"": _from_vllm(config, profile, str(path), load) if config else PLAIN}


def _read(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text("utf-8"))  # JSON is YAML
    except OSError as error:
        raise PolicyError(f"{path}: cannot be read ({error.strerror})") from error
    # besides its own errors PyYAML lets those of the values out: a 13th month, a tag that does not fit its text
    except (ValueError, LookupError, AttributeError, TypeError, RecursionError, yaml.YAMLError) as error:
        raise PolicyError(f"{path}: neither YAML nor JSON ({' '.join(str(error).split())})") from error
    if not isinstance(data, dict):
        raise PolicyError(f"{path}: no settings in it")
    return {str(key): value for key, value in data.items()}


def _speculation(data: Mapping[str, Any], path: str) -> dict[str, Any] | None:
    """The speculative config of `vllm serve` options, in whichever of vLLM's spellings; None for plain decoding."""
    options: dict[str, dict[str, Any]] = {}  # by option: "" or the name of one setting -> value
    for key, value in data.items():
        head, _, rest = key.lstrip("-").partition(".")
        options.setdefault(head.replace("_", "-"), {})[rest.replace("-", "_")] = value
    if unknown := [o for o in options if o.startswith("spec-") and o not in _SHORT]:
        raise PolicyError(f"{path}: {unknown[0]} cannot be read here: give all settings in {_KEY}")
    short = {_SHORT[o]: value for o, values in options.items() if o in _SHORT for value in values.values()}
    dotted = {name: value for name, value in options.get(_KEY, {}).items() if name}
    ways = [way for way in (_table(options.get(_KEY, {}).get(""), path), dotted, short) if way]
    if len(ways) > 1:
        raise PolicyError(f"{path}: speculation is set in more than one way: keep only {_KEY}")
    config = ways[0] if ways else {}
    if not config and not (_KEY in options or _SERVE_KEYS & options.keys() or isinstance(data.get("model"), str)):
        raise PolicyError(
            f"{path}: neither a policy nor a vLLM configuration: no {_KEY}, no model and no option of vllm serve in it"
        )
    return config or None


def _table(value: object, path: str) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise PolicyError(f"{path}: speculative config is not JSON ({error})") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise PolicyError(f"{path}: speculative config is no table of settings")
    return {str(key): setting for key, setting in value.items()}


def _from_vllm(config: dict[str, Any], profile: Profile, path: str, load: int) -> Strategy:
    method, model = config.get("method"), config.get("model")
    if method is None:
        method = "ngram" if model in ("ngram", "[ngram]") else "draft_model"
    settings: dict[str, Any] = {"method": method, "num_speculative_tokens": _tokens(config, path, load)}
    if method == "ngram":
        low, high = config.get("prompt_lookup_min"), config.get("prompt_lookup_max")
        settings |= {"lookup_min": low or high or _VLLM_WINDOW, "lookup_max": high or low or _VLLM_WINDOW}
    elif method not in METHODS or method in MODEL_METHODS:
        settings["drafter"] = _drafter(str(method), model, profile, path)
        settings["draft_sample_method"] = config.get("draft_sample_method", "greedy")
    try:
        return Strategy.model_validate(settings)
    except ValidationError as error:
        raise NotMeasured(
            f"{path}: {method} as configured there cannot be compared ({first_problem(error)})"
        ) from error


def _tokens(config: Mapping[str, Any], path: str, load: int) -> object:
    """k at a batch of `load`, as vLLM looks it up in a schedule.

    Ranges include both ends; a gap and the tail carry the k before them on, before the first range k is the highest;
    none is above `num_speculative_tokens`.
    """
    most = config.get("num_speculative_tokens", 0)
    schedule = config.get(_SCHEDULE)
    if schedule is None:
        return most
    if not isinstance(schedule, list) or not all(
        isinstance(entry, list) and len(entry) == 3 and all(type(n) is int for n in entry) for entry in schedule
    ):
        raise PolicyError(f"{path}: {_SCHEDULE} is no list of [first batch, last batch, k]")
    if type(most) is not int:
        raise PolicyError(f"{path}: num_speculative_tokens is {most!r}, not a number of tokens")
    k = next((k for first, _, k in sorted(schedule, reverse=True) if first <= load), most)
    if k < 1:
        raise NotMeasured(
            f"{path}: k = {k} at batch {load}: no draft inside a speculating engine is not plain decoding,"
            " and was not measured"
        )
    return min(k, most)


def _drafter(method: str, model: object, profile: Profile, path: str) -> str:
    """The profile's name of a vLLM drafter: by name, path or last part of the path."""
    tail = Path(str(model)).name
    for name, info in profile.drafters.items():
        if info.method == method and tail in (name, info.name, Path(info.path).name, Path(info.name).name):
            return name
    known = ", ".join(f"{d.method} {n}" for n, d in profile.drafters.items()) or "no drafter with weights"
    raise NotMeasured(
        f"{path}: {method} with {model!r} was not measured; this profile has {known}:"
        f" profile it with --drafter {method}=PATH"
    )
