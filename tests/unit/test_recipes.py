"""Recipes are strict, complete and tied to their adapters."""

import importlib
import re
from pathlib import Path

import pytest

from selector.errors import RecipeError
from selector.recipes import load_recipes, read_recipe
from selector.resources import data_dir
from selector.strategy import METHODS, MODEL_METHODS, Method, Strategy

FILES = sorted(data_dir("strategies").glob("*.toml"))
ADAPTERS = Path(__file__).parents[2] / "selector" / "adapters"
NONE = (data_dir("strategies") / "none.toml").read_text("utf-8")


def adapter_methods() -> set[str]:
    """Methods that some adapter file declares, read as text: importing could need torch."""
    claim = re.compile(r'^    method: Method = "(\w+)"$', re.MULTILINE)
    return {m for file in ADAPTERS.glob("*.py") for m in claim.findall(file.read_text("utf-8"))}


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_recipe_reads_and_names_an_existing_adapter(file: Path) -> None:
    recipe = read_recipe(file)
    assert recipe.adapter == f"selector.adapters.{file.stem}"
    assert (ADAPTERS / f"{file.stem}.py").is_file()
    assert recipe.needs.drafter == (recipe.method in MODEL_METHODS)


def test_every_method_and_every_adapter_has_a_recipe() -> None:
    assert set(load_recipes()) == set(METHODS) == adapter_methods()


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_readme_maps_the_recipe_to_its_adapter(file: Path) -> None:
    readme = (file.parent / "README.md").read_text("utf-8")
    assert f"[`{file.name}`]({file.name}) | `selector/adapters/{file.stem}.py`" in readme


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_shipped_drafters_lie_where_the_recipe_says(file: Path) -> None:
    for drafter in read_recipe(file).drafters:
        if drafter.path is not None:
            assert (file.parent / drafter.path / "config.json").is_file()


def test_shipped_drafters_stay_under_45_megabytes() -> None:
    folder = data_dir("strategies") / "drafters"
    assert sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) < 45e6


def test_spelling_fills_knobs_and_keeps_their_types() -> None:
    ngram = Strategy(method="ngram", num_speculative_tokens=3, lookup_min=2, lookup_max=4)
    assert load_recipes()["ngram"].spell("vllm", ngram) == {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 4,
    }


@pytest.mark.parametrize("method", METHODS)
def test_recipe_and_adapter_tell_vllm_the_same(method: Method) -> None:
    low, high = (2, 4) if method == "ngram" else (None, None)
    drafter = "h" if method in MODEL_METHODS else None
    k = 0 if method == "none" else 3
    strategy = Strategy(method=method, drafter=drafter, num_speculative_tokens=k, lookup_min=low, lookup_max=high)
    recipe = load_recipes()[method]
    module = importlib.import_module(recipe.adapter)
    (adapter,) = (c for n, c in vars(module).items() if n.endswith("Adapter") and c.__module__ == recipe.adapter)
    told = adapter().vllm(strategy, drafter and "/models/h")
    assert recipe.spell("vllm", strategy, drafter and "/models/h") == (told or {})


def test_sglang_is_told_one_draft_token_more_than_steps() -> None:
    head = Strategy(method="eagle3", drafter="h", num_speculative_tokens=3)
    assert load_recipes()["eagle3"].spell("sglang", head, "/models/h") == {
        "speculative-algorithm": "EAGLE3",
        "speculative-draft-model-path": "/models/h",
        "speculative-num-steps": 3,
        "speculative-eagle-topk": 1,
        "speculative-num-draft-tokens": 4,
    }


def test_spelling_without_the_needed_drafter_is_refused() -> None:
    head = Strategy(method="eagle3", drafter="h", num_speculative_tokens=3)
    with pytest.raises(RecipeError, match="drafter is not set"):
        load_recipes()["eagle3"].spell("vllm", head)


def test_unsupported_engine_is_refused_with_its_reason() -> None:
    head = Strategy(method="eagle3", drafter="h", num_speculative_tokens=3)
    with pytest.raises(RecipeError, match="transformers cannot run eagle3: transformers knows no EAGLE"):
        load_recipes()["eagle3"].spell("transformers", head, "/models/h")


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ('sumary = "x"\n' + NONE, "sumary"),
        (NONE.replace('d2t = "never"', 'd2t = "sometimes"'), "needs.d2t"),
        (NONE + '\n[knobs.speed]\nlow = 1\nhigh = 2\ndefault = 1\nhelp = ""\n', "knobs.speed"),
        (NONE + '\n[knobs.lookup_min]\nlow = 1\nhigh = 2\ndefault = 3\nhelp = ""\n', "outside 1..2"),
        (NONE.replace("settings = {}", 'settings = {k = "{depth}"}', 1), "engine.vllm.settings.k"),
        (NONE.replace("selector.adapters.none", "os"), "adapter"),
        (NONE.replace("[engine.sglang]", "[engine.other]"), "engine.other"),
        ("method = ", "not TOML"),
    ],
)
def test_a_wrong_key_is_refused_with_file_and_key(tmp_path: Path, broken: str, message: str) -> None:
    file = tmp_path / "none.toml"
    file.write_text(broken, "utf-8")
    with pytest.raises(RecipeError, match=message) as caught:
        read_recipe(file)
    assert str(file) in str(caught.value)


def test_a_recipe_under_another_name_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "plain.toml"
    file.write_text(NONE, "utf-8")
    with pytest.raises(RecipeError, match=r"must be called none\.toml"):
        read_recipe(file)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no recipe"):
        load_recipes(tmp_path)
