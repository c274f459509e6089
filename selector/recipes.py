"""Recipes: what is known about each decoding method, read strictly from `strategies/*.toml`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, Literal, Self, get_args

from pydantic import Field, ValidationError, model_validator

from selector.errors import RecipeError
from selector.resources import data_dir
from selector.strategy import Frozen, Method, Strategy
from selector.workload import first_problem

EngineName = Literal["vllm", "sglang", "trtllm", "transformers"]
Setting = str | int | float | bool
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_TERM = re.compile(r"(\w+)(?: \+ (\d+))?")


class Needs(Frozen):
    """What must fit between drafter and target before the method is used."""

    drafter: bool
    vocabulary: Literal["any", "equal", "equal, or smaller with d2t"]
    tokenizer: Literal["any", "equal"]
    hidden_size: Literal["any", "equal"]
    d2t: Literal["never", "when draft_vocab_size is smaller"]


class Knob(Frozen):
    """An integer setting with its range (both ends included)."""

    low: int
    high: int
    default: int
    help: str

    @model_validator(mode="after")
    def _in_range(self) -> Self:
        if not self.low <= self.default <= self.high:
            raise ValueError(f"default {self.default} is outside {self.low}..{self.high}")
        return self


class ScheduleSupport(Frozen):
    """Whether k may depend on the batch size."""

    supported: bool
    note: str


class Requires(Frozen):
    """What an engine needs beyond itself to run a method; what is left out is not needed.

    runner: the only one that has it; platforms: those that have it (vLLM's `device_type`); package: importable in the
    engine's environment, `install` says how it gets there; target_config: one of these keys of the target's config
    counts something above 0.
    """

    runner: Literal["V1", "V2"] | None = None
    platforms: tuple[str, ...] = ()
    package: str | None = None
    install: str | None = None
    target_config: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _package_can_be_had(self) -> Self:
        if (self.package is None) != (self.install is None):
            raise ValueError("give package and install together")
        return self


class EngineSpelling(Frozen):
    """How one serving engine is told. `schedule`: what the keys of its k-by-batch-size table mean."""

    versions: str
    supported: bool
    reason: str | None = None
    requires: Requires = Requires()
    settings: dict[str, Setting] = Field(default_factory=dict)
    schedule: Literal["none", "honours", "lower bounds", "upper bounds"]
    traps: tuple[str, ...]

    @model_validator(mode="after")
    def _reason_if_unsupported(self) -> Self:
        if self.supported == (self.reason is not None):
            raise ValueError("give a reason exactly when supported = false")
        return self


class KnownDrafter(Frozen):
    """A drafter for one target: public (`repository`) or shipped (`path` inside `strategies/`)."""

    target: str
    name: str
    repository: str | None = None
    path: str | None = None
    note: str = ""

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.repository is None) == (self.path is None):
            raise ValueError(f"drafter {self.name!r}: give exactly one of 'repository' and 'path'")
        return self


class Recipe(Frozen):
    """One method: what it needs, its knobs and how each engine spells it."""

    method: Method
    summary: str
    adapter: str
    needs: Needs
    knobs: dict[str, Knob] = Field(default_factory=dict)
    schedule: ScheduleSupport
    engine: dict[EngineName, EngineSpelling]
    drafters: tuple[KnownDrafter, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.adapter != f"selector.adapters.{self.method}":
            raise ValueError(f"adapter is {self.adapter!r}, method {self.method!r} has selector.adapters.{self.method}")
        if unknown := set(self.knobs) - set(Strategy.model_fields):
            raise ValueError(f"knobs.{min(unknown)}: a strategy has no such setting")
        if missing := set(get_args(EngineName)) - set(self.engine):
            raise ValueError(f"engine.{min(missing)}: missing; say supported = false with a reason if it cannot")
        allowed = set(self.knobs) | ({"drafter"} if self.needs.drafter else set())
        for engine, spelling in self.engine.items():
            for key, value in spelling.settings.items():
                _check_placeholders(f"engine.{engine}.settings.{key}", value, allowed)
        return self

    def spell(self, engine: EngineName, strategy: Strategy, drafter: str | None = None) -> dict[str, Setting]:
        """The engine's settings for a strategy; `drafter` is the path or id the server will see."""
        spelling = self.engine[engine]
        if not spelling.supported:
            raise RecipeError(f"{engine} cannot run {self.method}: {spelling.reason}")
        values = {k: v for k, v in strategy.model_dump().items() if k in self.knobs} | {"drafter": drafter}
        return {key: _fill(value, values) for key, value in spelling.settings.items()}


def load_recipes(folder: str | Path | None = None) -> dict[Method, Recipe]:
    """Every recipe by method, from the shipped folder or the user's own. Raises `RecipeError`."""
    where = data_dir("strategies") if folder is None else Path(folder)
    files = sorted(where.glob("*.toml"))
    if not files:
        raise RecipeError(f"{where}: no recipe (*.toml) in it")
    return {recipe.method: recipe for recipe in map(read_recipe, files)}


def read_recipe(file: Path) -> Recipe:
    """One recipe file; its name is its method."""
    try:
        recipe = Recipe.model_validate(tomllib.loads(file.read_text("utf-8")))
    except OSError as error:
        raise RecipeError(f"{file}: cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{file}: not TOML ({error})") from error
    except ValidationError as error:
        raise RecipeError(f"{file}: {first_problem(error)}") from error
    if recipe.method != file.stem:
        raise RecipeError(f"{file}: method is {recipe.method!r}; the file must be called {recipe.method}.toml")
    return recipe


def _check_placeholders(where: str, value: Setting, allowed: set[str]) -> None:
    for found in _PLACEHOLDER.findall(value) if isinstance(value, str) else ():
        term = _TERM.fullmatch(found)
        if term is None or term[1] not in allowed:
            raise ValueError(f"{where}: {{{found}}} is none of {', '.join(sorted(allowed)) or 'nothing'}")


def _fill(value: Setting, values: dict[str, Any]) -> Setting:
    """The one placeholder replaced, keeping its type; anything else as it stands."""
    whole = _PLACEHOLDER.fullmatch(value) if isinstance(value, str) else None
    term = _TERM.fullmatch(whole[1]) if whole else None
    if term is None:
        return value
    filled = values[term[1]]
    if filled is None:
        raise RecipeError(f"{term[1]} is not set")
    return filled + int(term[2]) if term[2] else filled  # type: ignore[no-any-return]  # from model_dump: int or str
