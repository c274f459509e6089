"""What runs now: the strategy of a policy file or of a vLLM configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from selector.errors import NotMeasured, PolicyError
from selector.policy import parse_policy
from selector.profile import Profile
from selector.strategy import PLAIN, Strategy
from selector.workload import first_problem

_KEYS = ("speculative-config", "speculative_config")
_VLLM_WINDOW = 5  # vLLM's default for prompt_lookup_min and _max when neither is set


def read_current(path: str | Path, profile: Profile, load: int) -> dict[str, Strategy]:
    """Strategy per class that `path` deploys at a load: a policy, or a vLLM YAML / JSON file ("" = every class).

    A vLLM file without speculative config is plain decoding. Raises `PolicyError` when it is neither,
    `NotMeasured` when its drafter is not one of the profile's.
    """
    data = _read(Path(path))
    if "schema_version" in data:
        policy = parse_policy(data, str(path))
        by_pool = {p.name: p.strategy.with_k(p.k_at(load)) for p in policy.pools}
        return {"": by_pool[policy.fallback_pool]} | {c.request_class: by_pool[c.pool] for c in policy.classes}
    config = next((data[k] for k in _KEYS if data.get(k)), data if "num_speculative_tokens" in data else None)
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except ValueError as error:
            raise PolicyError(f"{path}: speculative config is not JSON ({error})") from error
    if config is None:
        return {"": PLAIN}
    if not isinstance(config, dict):
        raise PolicyError(f"{path}: speculative config is no table of settings")
    return {"": _from_vllm(config, profile, str(path))}


def _read(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text("utf-8"))  # JSON is YAML
    except OSError as error:
        raise PolicyError(f"{path}: cannot be read ({error.strerror})") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise PolicyError(f"{path}: neither YAML nor JSON ({error})") from error
    if not isinstance(data, dict):
        raise PolicyError(f"{path}: no settings in it")
    return data


def _from_vllm(config: dict[str, Any], profile: Profile, path: str) -> Strategy:
    method, model = config.get("method"), config.get("model")
    if method is None:
        method = "ngram" if model in ("ngram", "[ngram]") else "draft_model"
    settings: dict[str, Any] = {
        "method": method,
        "num_speculative_tokens": config.get("num_speculative_tokens", 0),
    }
    if method == "ngram":
        low, high = config.get("prompt_lookup_min"), config.get("prompt_lookup_max")
        settings |= {"lookup_min": low or high or _VLLM_WINDOW, "lookup_max": high or low or _VLLM_WINDOW}
    else:
        settings["drafter"] = _drafter(str(method), model, profile, path)
    try:
        return Strategy.model_validate(settings)
    except ValidationError as error:
        raise NotMeasured(
            f"{path}: {method} as configured there cannot be compared ({first_problem(error)})"
        ) from error


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
