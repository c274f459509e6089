"""`selector verify`: what it compares, what it refuses, and what its exit code says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

pytest.importorskip("torch")
pytest.importorskip("transformers")

from selector.cli import main
from selector.cli.strategies import parse, strategies
from selector.engines.reference import ReferenceEngine  # after the skips, since these import torch
from selector.errors import SelectorError
from selector.policy import Policy
from selector.profile import DrafterInfo
from selector.strategy import Strategy
from selector.verify import LosslessCheck, LosslessReport
from tests import tiny
from tests.sabotage import StaleDrafter
from tests.unit import policies

NEAR = DrafterInfo.model_validate(policies.drafter("draft_model"))
FEW = ["--prompts", "4", "--max-tokens", "24", "--temperatures", "0.7", "--top-p", "1", "--samples", "4"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, a draft model and a workload."""
    folder = tmp_path_factory.mktemp("models")
    tiny.engine(folder)
    rows = [r.model_dump_json(by_alias=True, exclude_none=True) for r in tiny.requests(6)]
    (folder / "requests.jsonl").write_text("\n".join(rows), "utf-8")
    return folder


def run(folder: Path, *arguments: str) -> Result:
    line = ["verify", "--workload", str(folder / "requests.jsonl"), *arguments]
    return CliRunner().invoke(main, line, prog_name="selector", catch_exceptions=False)


def models(folder: Path) -> list[str]:
    return ["--model", str(folder / "target"), "--drafter", f"draft_model={folder / 'near'}"]


def test_right_strategies_end_with_0_and_say_how_much_was_compared(folder: Path) -> None:
    done = run(folder, *models(folder), "--strategy", "ngram 1..3 k=2", *FEW)
    assert done.exit_code == 0, done.output
    assert "ngram 1..3 k=2: lossless" in done.stdout
    assert "4 equal, 0 near-tie, 0 different" in done.stdout


def test_a_stale_drafter_ends_with_3_and_all_of_it_is_in_the_json(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReferenceEngine, "stepper", StaleDrafter)
    done = run(folder, *models(folder), "--strategy", "draft_model k=3", *FEW[:-1], "1", "--json")
    assert done.exit_code == 3
    report = LosslessReport.model_validate(json.loads(done.stdout))
    assert report.strategies[0].verdict != "not lossless"
    assert report.strategies[0].drafting.verdict == "not as replayed"


def test_too_little_and_an_interruption_end_with_4(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = [*models(folder), "--strategy", "ngram k=2", "--prompts", "1", "--max-tokens", "4", "--temperatures", "1"]
    assert run(folder, *few).exit_code == 4

    def stopped(check: LosslessCheck) -> None:
        check._greedy()
        raise KeyboardInterrupt

    monkeypatch.setattr(LosslessCheck, "run", stopped)
    done = run(folder, *few)
    assert done.exit_code == 4
    assert "interrupted: this is what was found until then" in done.stdout
    assert "1 equal" in done.stdout


def test_a_policy_says_what_is_compared_and_where_its_models_were(folder: Path) -> None:
    engine = ReferenceEngine(folder / "target", "tiny", {"near": ("draft_model", folder / "near")})
    strategy = {"method": "draft_model", "drafter": "near", "num_speculative_tokens": 2}
    policy: Policy = policies.policy(
        engine=engine.info.model_dump(), target=engine.target.model_dump(),
        drafters={"near": engine.drafters["near"].model_dump()},
        pools=[policies.pool("spec", strategy), policies.pool("plain", policies.PLAIN)],
        classes=[], fallback_pool="plain",
    )  # fmt: skip
    file = folder / "x.policy.json"
    file.write_text(policy.model_dump_json(), "utf-8")
    done = run(folder, str(file), "--prompts", "1", "--max-tokens", "4", "--json")
    report = LosslessReport.model_validate(json.loads(done.stdout))
    assert [s.strategy.label for s in report.strategies] == ["draft_model k=2"]
    done = run(folder, str(file), "--drafter", f"other={folder / 'near'}")
    assert (done.exit_code, "the policy's pools use near" in done.stderr) == (1, True)
    elsewhere = policy.model_copy(update={"target": policy.target.model_copy(update={"config_sha256": "0" * 64})})
    file.write_text(elsewhere.model_dump_json(), "utf-8")
    assert "not that of the policy's tiny" in run(folder, str(file)).stderr


def test_a_policy_of_the_fake_engine_has_nothing_to_verify(folder: Path) -> None:
    file = folder / "fake.policy.json"
    file.write_text(policies.policy().model_dump_json(), "utf-8")
    done = run(folder, str(file))
    assert (done.exit_code, "made with --engine fake: there is no model, and so nothing" in done.stderr) == (1, True)


@pytest.mark.parametrize("option", ["--alpha", "--temperatures", "--top-p"])
def test_nan_is_no_number(folder: Path, option: str) -> None:
    done = run(folder, *models(folder), option, "nan")
    assert (done.exit_code, "'nan'" in done.stderr) == (2, True)


def test_vllm_is_refused_for_now(folder: Path) -> None:
    done = run(folder, "--engine", "vllm")
    assert (done.exit_code, "--engine vllm is not there yet" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ngram k=3", Strategy(method="ngram", lookup_min=2, lookup_max=4, num_speculative_tokens=3)),
        ("ngram 1..5 k=6", Strategy(method="ngram", lookup_min=1, lookup_max=5, num_speculative_tokens=6)),
        ("draft_model k=2", Strategy(method="draft_model", drafter="near", num_speculative_tokens=2)),
        (
            "draft_model near probabilistic k=2",
            Strategy(method="draft_model", drafter="near", num_speculative_tokens=2).drawing,
        ),
    ],
)
def test_a_strategy_is_written_as_tables_print_it(text: str, expected: Strategy) -> None:
    assert parse(text, {"near": NEAR}) == expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "begin with a method"),
        ("none", "begin with a method"),
        ("ngram", "such as k=4"),
        ("eagle3 k=4", "there is draft_model near"),
        ("draft_model far k=4", "there is draft_model near"),
        ("ngram near k=4", "there is draft_model near"),
        ("ngram 4..2 k=3", "is above"),
        ("ngram probabilistic k=3", "draws no drafts"),
        ("draft_model k=0", "k is 0 for 'none' only"),
        ("ngram k=17", "k is 17, at most 16"),
        ("ngram k=1000000", "k is 1000000, at most 16"),
        ("ngram k=4 k=5", "k=5 says again"),
        ("ngram 2..4 1..3 k=4", r"1\.\.3 says again"),
        ("draft_model probabilistic probabilistic k=3", "probabilistic says again"),
    ],
)
def test_what_is_no_strategy_is_refused_with_the_reason(text: str, told: str) -> None:
    with pytest.raises(SelectorError, match=told):
        parse(text, {"near": NEAR})


def test_without_texts_every_drafter_drafts_both_ways() -> None:
    assert [s.family for s in strategies((), {"near": NEAR}, 4)] == [
        "ngram 2..4", "draft_model near", "draft_model near probabilistic"
    ]  # fmt: skip
