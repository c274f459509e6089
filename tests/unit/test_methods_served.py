"""Methods that only serving engines run: what they require, which k they allow, what is skipped and why."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from selector.acceptance import Acceptances, family_strategy
from selector.adapters import adapter
from selector.adapters.checkpoint import Checkpoint
from selector.adapters.mtp import LAYER_KEYS
from selector.adapters.widths import Widths
from selector.engines.fake import FakeEngine
from selector.engines.served.base import Servers
from selector.engines.served.requirements import RUNNER_VARIABLE, Surroundings, unmet
from selector.errors import DrafterMismatch, SelectorError
from selector.live import LiveAcceptance
from selector.measure.journal import Journal
from selector.measure.served import ServedMeasurement
from selector.measure.served.profile import step_costs
from selector.measure.served.settings import Scope
from selector.profile import LiveWalk, Sampling
from selector.recipes import Recipe, load_recipes
from selector.recommend.candidates import candidates
from selector.strategy import FIXED_K_METHODS, LOOKUP_METHODS, MODEL_METHODS, SERVED_METHODS, Method

from .fake_profiles import fake_profile, fake_requests
from .served import SETTINGS, servers, workload

RECIPES = load_recipes()


def config(folder: Path, **settings: object) -> Checkpoint:
    """A checkpoint folder that holds a config alone."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings), "utf-8")
    return Checkpoint(folder)


def test_a_head_of_three_tokens_is_refused_four_case_c2_01(tmp_path: Path) -> None:
    target = config(tmp_path / "t", hidden_size=5120, vocab_size=32000)
    head = config(tmp_path / "h", model_type="medusa", n_predict=3, hidden_size=5120, vocab_size=32000)
    widths = adapter("medusa").widths(head, target)
    assert widths.upto(8) == (1, 2, 3)
    with pytest.raises(DrafterMismatch, match=r"k = 4: .* supports at most 3; the largest valid k is 3"):
        widths.check(4)


def test_a_module_of_two_tokens_takes_one_two_and_multiples_case_c2_03(tmp_path: Path) -> None:
    widths = adapter("mtp").widths(None, config(tmp_path, num_nextn_predict_layers=2, n_predict=2))
    assert widths.upto(6) == (1, 2, 4, 6)
    widths.check(1)
    with pytest.raises(DrafterMismatch, match=r"k = 3: .*valid: 1, 2, 4"):
        widths.check(3)


def test_a_block_limits_k(tmp_path: Path) -> None:
    head = config(tmp_path, block_size=4)
    assert adapter("dflash").widths(head, head).upto(8) == (1, 2, 3, 4)


@pytest.mark.parametrize("method", sorted(SERVED_METHODS))
def test_nothing_of_them_is_drafted_in_process(method: str) -> None:
    strategy = family_strategy(f"{method} d" if method in MODEL_METHODS else method, 2)
    with pytest.raises(DrafterMismatch, match=f"{method} is not decoded in process"):
        adapter(method).drafter(None, None, strategy)  # type: ignore[arg-type]  # refused before it is looked at


def test_recipes_say_which_methods_keep_their_k() -> None:
    assert {m for m, r in RECIPES.items() if not r.schedule.supported} - {"none"} == FIXED_K_METHODS


@pytest.mark.parametrize(
    ("method", "around", "asked", "reason"),
    [
        ("suffix", Surroundings(sys.executable), True, "lacks arctic_inference: pip install arctic-inference"),
        ("suffix", Surroundings(None), True, None),
        ("suffix", Surroundings(None), False, "cannot be seen from here"),
        ("suffix", Surroundings(None, {RUNNER_VARIABLE: "1"}), True, "only the V1 runner has it"),
        ("medusa", Surroundings(None, {RUNNER_VARIABLE: "1"}), True, "only the V1 runner has it"),
        ("medusa", Surroundings(None, {RUNNER_VARIABLE: "0"}), True, None),
        ("mtp", Surroundings(None, target={"model_type": "llama"}), True, "the target has no such layers"),
        ("mtp", Surroundings(None, target={"num_nextn_predict_layers": 0}), True, "the target has no such layers"),
        ("mtp", Surroundings(None, target={"num_nextn_predict_layers": 1}), True, None),
        ("mtp", Surroundings(None), False, "its files are not here"),
        ("eagle3", Surroundings(None), True, None),
    ],
)
def test_what_a_recipe_requires_is_looked_at_first(
    method: Method, around: Surroundings, asked: bool, reason: str | None
) -> None:
    said = unmet(RECIPES[method], around, asked=asked)
    assert (said is None) if reason is None else (said is not None and reason in said)


def test_a_platform_that_cannot_run_it_is_named() -> None:
    data = RECIPES["suffix"].model_dump()
    data["engine"]["vllm"]["requires"] = {"platforms": ["cuda"]}
    said = unmet(Recipe.model_validate(data), Surroundings(sys.executable), asked=False)  # no vLLM there to ask
    assert said == "it runs on cuda, and the engine's platform is not known"


def test_an_unavailable_method_is_skipped_and_the_rest_is_measured(tmp_path: Path) -> None:
    settings = replace(SETTINGS, methods=("ngram", "mtp", "medusa"), confirm=False)
    target = config(tmp_path / "target", model_type="llama", max_position_embeddings=2048)
    run = ServedMeasurement(servers(tmp_path, {}, model=str(target.path)), workload(1), settings)
    assert [s.method for s in run.scope.strategies()] == ["ngram"]
    assert run.scope.unavailable == {
        "medusa": "no drafter for it was given (--drafter medusa=PATH)",
        "mtp": "the target has no such layers: its config says nothing of "
        "num_nextn_predict_layers or mtp_num_hidden_layers or n_predict",
    }


def test_what_nobody_asked_for_is_tried_only_where_it_is_seen_to_run(tmp_path: Path) -> None:
    scope = Scope(servers(tmp_path, {}), workload(1), replace(SETTINGS, methods=None))
    assert [s.method for s in scope.strategies()] == ["ngram"]
    assert set(scope.unavailable) == {"suffix", "mtp"}


def test_recipe_and_adapter_of_mtp_read_the_same_keys() -> None:
    assert set(RECIPES["mtp"].engine["vllm"].requires.target_config) == set(LAYER_KEYS)


def timed(method: str, drafted: float, batch: int, seconds: float, sampling: str = "greedy") -> dict[str, object]:
    """One timed step as the journal holds it."""
    return {
        "method": method, "drafter": None, "k": round(drafted), "drafted": drafted, "batch": batch, "context": 64,
        "sampling": sampling, "repetitive": False, "seconds": seconds, "steps": 9,
    }  # fmt: skip


@pytest.mark.parametrize("sampling", ["greedy", "temperature"])
def test_a_lookup_step_without_a_draft_costs_more_than_a_plain_one(tmp_path: Path, sampling: Sampling) -> None:
    with Journal(tmp_path / "j.jsonl", {}, resume=False) as journal:
        for batch in (1, 2):
            journal.add(f"step/none/{batch}", timed("none", 0, batch, 0.010))
            journal.add(f"step/none/s/{batch}", timed("none", 0, batch, 0.010, "temperature"))
            for drafted in (1.0, 2.0, 4.0):
                journal.add(f"step/ngram/{batch}/{drafted}", timed("ngram", drafted, batch, 0.015 + 0.001 * drafted))
            journal.add(f"step/ngram/s/{batch}", timed("ngram", 1.0, batch, 0.020, "temperature"))
        rows = step_costs(journal, 4, (1, 2), seed=0)
    zero = [c for c in rows if c.method == "ngram" and c.drafted == 0 and c.sampling == sampling]
    assert [c.batch for c in zero if c.inferred] == [1, 2]
    expected = 0.015 if sampling == "greedy" else 0.019
    assert [median(c.step_seconds) for c in zero] == pytest.approx([expected, expected], rel=0.02)


def test_a_run_of_unavailable_methods_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SelectorError, match=r"--method medusa: no drafter"):
        Scope(servers(tmp_path, {}), workload(1), replace(SETTINGS, methods=("medusa",)))


def test_only_valid_k_are_launched(tmp_path: Path) -> None:
    target = config(tmp_path / "target", num_nextn_predict_layers=3, max_position_embeddings=2048)
    here: Servers = servers(tmp_path, {}, model=str(target.path))
    scope = Scope(here, workload(1), replace(SETTINGS, k_max=5, methods=("mtp",)))
    assert [launch.name for launch in scope.launches] == ["none", "mtp k=3", "mtp k=1"]
    assert scope.valid_k() == {"mtp": (1, 2, 3)}


def test_widths_that_nothing_limits_allow_every_k() -> None:
    assert Widths().upto(3) == (1, 2, 3)


def suffix_walk(accepted: str, drafted: str) -> LiveWalk:
    """A walk of a lookup method, whose steps draft what was found."""
    return LiveWalk(
        id="a", request_class="c", family="suffix", k=4, output_tokens=12, accepted=accepted, drafted=drafted
    )


def test_what_is_looked_up_counts_steps_without_a_draft() -> None:
    assert "suffix" in LOOKUP_METHODS
    live = LiveAcceptance([suffix_walk("0402", "0413")])
    assert live.tau(4, ["a"])[0] == pytest.approx(1 + 6 / 4)
    assert live.widths(4, ["a"]).tolist() == [[0.25, 0.25, 0, 0.25, 0.25]]
    assert live.tau(2, ["a"])[0] == pytest.approx(1 + 4 / 4)
    assert live.widths(2, ["a"]).tolist() == [[0.25, 0.25, 0.5]]


def test_a_model_drafts_k_in_every_step() -> None:
    walk = suffix_walk("0402", "4443").model_copy(update={"family": "eagle3 head"})
    live = LiveAcceptance([walk])
    assert live.tau(4, ["a"])[0] == pytest.approx(1 + 4 / 3)  # the last step was cut at the output's end
    assert live.widths(4, ["a"]).tolist() == [[0, 0, 0, 0, 1]]


def test_k_that_an_engine_would_refuse_is_no_candidate() -> None:
    profile = fake_profile(FakeEngine(), fake_requests(["chat"], prompts=3))
    family = next(iter(Acceptances(profile).families))
    limited = profile.model_copy(update={"valid_k": {family: (1, 3)}})
    assert {s.k for s in candidates(Acceptances(limited)) if s.family == family} == {1, 3}
