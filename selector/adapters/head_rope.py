"""The rotary settings of a head: refused unless transformers and vLLM compute them alike."""

from __future__ import annotations

from typing import Any

from selector.adapters.base import INSTEAD
from selector.adapters.checkpoint import Checkpoint
from selector.adapters.tensor_file import AGAIN
from selector.errors import DrafterMismatch

_LENGTH = "original_max_position_embeddings"
#: Scalings that are computed alike, and what each needs; others change with the text's length or the engine.
_NEEDS = {
    "default": (),
    "linear": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", _LENGTH),
}
_LEAST = {"factor": 1.0, "mscale": 0.0, "mscale_all_dim": 0.0, "beta_fast": 0.0, "beta_slow": 0.0}
_NULLABLE = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")  # of yarn, with its defaults


def refuse_rope(drafter: Checkpoint) -> None:
    """Raise `DrafterMismatch` for a scaling that is not computed here, and for numbers that make no angles."""
    config, file = drafter.config, drafter.path / "config.json"
    for key in ("rope_scaling", "rope_parameters"):
        if config.get(key) is not None and not isinstance(config[key], dict):
            raise DrafterMismatch(f"{file}: {key} is {config[key]!r}, an object of rope settings is needed; {AGAIN}")
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    rope: dict[str, Any] = config.get(key) or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    top = config.get("partial_rotary_factor")
    part = next((p for p in (1 if top is None else top, rope.get("partial_rotary_factor", 1)) if p != 1), 1)
    known = isinstance(kind, str) and kind in _NEEDS
    if not known or part != 1:
        asked = f"partial_rotary_factor {part}" if known else f"rope scaling ({kind})"
        raise DrafterMismatch(
            f"{file}: asks for {asked}, which a head's positions are not computed with here "
            f"({', '.join(_NEEDS)} are): it would accept almost nothing; {INSTEAD}"
        )
    missing = [name for name in _NEEDS[kind] if name not in rope]
    if missing:
        raise DrafterMismatch(f"{file}: rope scaling ({kind}) without {', '.join(missing)}; {AGAIN}")
    layered = [name for name, told in rope.items() if isinstance(told, dict)]
    if layered:
        raise DrafterMismatch(
            f"{file}: {key} of several kinds of layers ({', '.join(layered)}), a head has one; {INSTEAD}"
        )
    if config.get("max_position_embeddings") is not None:
        drafter.whole("max_position_embeddings")
    _refuse_numbers(drafter, key, rope, kind)


def _refuse_numbers(drafter: Checkpoint, key: str, rope: dict[str, Any], kind: str) -> None:
    """Raise for numbers that would put NaN into the angles: every draft would be noise, and drafting only cost."""
    if drafter.config.get("rope_theta") is not None:
        drafter.number("rope_theta", drafter.config["rope_theta"], above=1)
    if "rope_theta" in rope:
        drafter.number(f"{key}: rope_theta", rope["rope_theta"], above=1)
    names = [*_NEEDS[kind]]
    if kind == "yarn":
        names += [name for name in _NULLABLE if rope.get(name) is not None] + [_LENGTH] * (_LENGTH in rope)
    told = {name: drafter.number(f"{key}: {name}", rope[name], least=_LEAST.get(name)) for name in names}
    if kind == "llama3" and told["high_freq_factor"] <= told["low_freq_factor"]:
        raise DrafterMismatch(
            f"{drafter.path / 'config.json'}: {key}: high_freq_factor {told['high_freq_factor']:g} is not above "
            f"low_freq_factor {told['low_freq_factor']:g}; {AGAIN}"
        )
