"""A check of losslessness catches every sabotage on a tiny model, and nothing that is right."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from selector.engines.base import TokenScores
from selector.engines.reference.sampling import probabilities  # after the skips, since these import torch
from selector.errors import SelectorError
from selector.measure.progress import Silent
from selector.strategy import PLAIN, Strategy
from selector.verify import LosslessCheck, LosslessReport, Setting, StrategyReport, verify_lossless
from selector.verify.arms import impossible, step_starts
from selector.verify.text import report_text
from selector.workload import Request
from tests import tiny
from tests.sabotage import SABOTAGES

if TYPE_CHECKING:
    from selector.engines.reference import ReferenceEngine

HOT, WARM = Setting(temperature=1.0), Setting(temperature=1.0, top_p=0.9)
MILD, COLD = Setting(temperature=0.7), Setting(temperature=0.4)
ROOT = Path(__file__).parents[2]
LONG = Request.model_validate({"prompt": "w5 " * 254, "class": "tiny"})
ONE_DRAFT, ONE_GRAM = tiny.DRAFT.with_k(1), tiny.NGRAM.with_k(1)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> ReferenceEngine:
    return tiny.engine(tmp_path_factory.mktemp("tiny"))


def check(
    engine: ReferenceEngine, *strategies: Strategy, sampled: Setting | None = None,
    prompts: int = 6, samples: int = 1, seed: int = 0,
) -> LosslessReport:  # fmt: skip
    settings = [sampled] if sampled else []
    return verify_lossless(engine, strategies, tiny.requests(prompts), settings=settings, samples=samples, seed=seed)


def one(report: LosslessReport) -> StrategyReport:
    (found,) = report.strategies
    return found


@pytest.mark.embedded  # many sampled outputs: too slow for the plain run
@pytest.mark.parametrize("seed", range(3))
def test_an_unmodified_adapter_raises_no_alarm(engine: ReferenceEngine, seed: int) -> None:
    strategy = (tiny.DRAFT, tiny.DRAFT.drawing, tiny.NGRAM)[seed]
    sampled, samples = ((WARM, 1), (COLD, 4), (MILD, 1))[seed]
    found = one(check(engine, strategy, sampled=sampled, prompts=14, samples=samples, seed=seed))
    assert found.verdict == "lossless", found.evidence
    assert found.drafting.verdict == "as replayed"
    assert found.greedy.equal == 14
    assert len(found.tests) >= 2
    assert not found.failed


@pytest.mark.parametrize("strategy", [tiny.DRAFT, ONE_GRAM], ids=lambda s: s.method)
@pytest.mark.parametrize("fault", ["KV crop, one too many", "KV crop, one too few", "bonus token lost"])
def test_wrong_greedy_tokens_are_caught(engine: ReferenceEngine, fault: str, strategy: Strategy) -> None:
    found = one(check(SABOTAGES[fault](engine), strategy, prompts=8))
    assert found.verdict == "not lossless"
    assert found.greedy.different > 0
    first = next(e for e in found.evidence if e.kind == "different token")
    assert None not in (first.position, first.expected, first.got)
    assert first.expected != first.got
    assert ("missing bonus token" in found.evidence_counts) == (fault == "bonus token lost")


@pytest.mark.parametrize("strategy", [tiny.DRAFT, ONE_GRAM], ids=lambda s: s.method)
@pytest.mark.parametrize("fault", ["stale drafter state", "bonus token never emitted"])
def test_right_outputs_by_wrong_steps_are_told_apart(engine: ReferenceEngine, fault: str, strategy: Strategy) -> None:
    report = check(SABOTAGES[fault](engine), strategy, prompts=8)
    found = one(report)
    assert found.verdict != "not lossless"
    assert found.greedy.equal == 8
    assert found.drafting.verdict == "not as replayed"
    assert found.failed
    if strategy == tiny.DRAFT:
        hint = "the bonus token is missing" if "never" in fault else "stale state"
        assert hint in report_text(report)


@pytest.mark.embedded  # many sampled outputs: too slow for the plain run
@pytest.mark.parametrize(
    ("fault", "strategy", "setting", "samples"),
    [
        ("wrong residual", ONE_DRAFT, WARM, 8),
        ("wrong residual", ONE_DRAFT.drawing, MILD, 10),
        ("drawn drafts taken for greedy ones", ONE_DRAFT.drawing, WARM, 3),
        ("temperature ignored in verification", ONE_DRAFT, COLD, 4),
        ("temperature ignored in verification", ONE_DRAFT.drawing, COLD, 5),
        ("same random numbers at every step", tiny.DRAFT, HOT, 4),
        ("same random numbers at every step", tiny.NGRAM, HOT, 4),
        ("same random numbers at every step of all", tiny.DRAFT, HOT, 4),
        ("same random numbers at every step of all", tiny.DRAFT.drawing, HOT, 6),
    ],
)
def test_a_wrong_distribution_is_caught(
    engine: ReferenceEngine, fault: str, strategy: Strategy, setting: Setting, samples: int
) -> None:
    report = check(SABOTAGES[fault](engine), strategy, sampled=setting, samples=samples)
    found = one(report)
    assert found.greedy.equal == 6
    assert found.verdict == "not lossless"
    assert min(t.corrected_p for t in found.tests) < report.alpha


def test_a_token_far_too_improbable_is_caught_in_a_few_tokens(engine: ReferenceEngine) -> None:
    report = check(SABOTAGES["garbage now and then"](engine), tiny.NGRAM, sampled=COLD, prompts=2)
    found = one(report)
    assert found.verdict == "not lossless"
    assert found.tests == ()  # too few tokens for any
    assert found.evidence_counts["improbable token"] >= 2
    assert "so unlikely a token comes once in 10^" in report_text(report)


@pytest.mark.parametrize("strategy", [tiny.DRAFT, tiny.NGRAM], ids=lambda s: s.method)
def test_an_ignored_seed_is_caught_by_two_samples(engine: ReferenceEngine, strategy: Strategy) -> None:
    report = check(SABOTAGES["seed ignored"](engine), strategy, sampled=HOT, prompts=2, samples=2)
    assert one(report).verdict == "not lossless"
    assert one(report).evidence_counts["repeated output"] == 2
    assert "repeated output (2): is the seed ignored?" in report_text(report)
    assert "repeated output" not in one(check(engine, strategy, sampled=HOT, prompts=2, samples=2)).evidence_counts


@pytest.mark.parametrize("fault", ["stop token overrun, to the step's end", "stop token overrun, no stop at all"])
def test_an_overrun_stop_token_is_caught(engine: ReferenceEngine, fault: str) -> None:
    found = one(check(SABOTAGES[fault](engine), tiny.DRAFT, prompts=24))
    assert found.verdict == "not lossless"
    assert found.evidence_counts["stop token overrun"] == found.evidence_counts["different length"] > 0
    assert found.greedy.near_tie == 0


def test_too_little_is_no_answer_and_plain_decoding_none_to_ask_for(engine: ReferenceEngine) -> None:
    found = one(check(engine, tiny.NGRAM, PLAIN, prompts=2))
    assert found.verdict == "inconclusive"
    assert "too few sampled tokens" in found.reason
    with pytest.raises(Exception, match="nothing to compare"):
        check(engine, PLAIN)


def test_an_interrupted_check_reports_what_it_found(engine: ReferenceEngine) -> None:
    broken = SABOTAGES["KV crop, one too many"](engine)
    partial = LosslessCheck(broken, [tiny.DRAFT, tiny.NGRAM], tiny.requests(4), settings=[WARM])
    assert [s.verdict for s in partial.report(interrupted=True).strategies] == ["inconclusive"] * 2
    partial._greedy()
    report = partial.report(interrupted=True)
    assert report.strategies[0].verdict == "not lossless"
    assert "interrupted" in report_text(report)
    assert LosslessReport.model_validate_json(report.model_dump_json()) == report


@pytest.mark.parametrize("strategy", [tiny.DRAFT, tiny.DRAFT.drawing, tiny.NGRAM], ids=lambda s: s.family)
def test_scores_are_what_the_target_alone_says(engine: ReferenceEngine, strategy: Strategy) -> None:
    request = tiny.requests(1)[0].model_copy(update={"temperature": 0.6, "top_p": 0.9})
    output = engine.generate(request, strategy, seed=5)
    scores = engine.score(output, [strategy], temperature=0.6, top_p=0.9)
    tokens = torch.tensor([output.prompt_ids + output.output_ids])
    n = len(output.output_ids)
    engine.model.tap(())
    logits, _ = engine.model.forward(tokens, engine.model.new_cache(1, tokens.shape[1]))
    p = probabilities(logits[0, -n - 1 : -1], 0.6, 0.9)
    for i, token in enumerate(output.output_ids):
        own = float(p[i, token])
        assert scores.p[i] == pytest.approx(own, abs=1e-5)
        assert scores.likelier[i] == pytest.approx(float(p[i][p[i] > own].sum()), abs=1e-4)
        assert scores.excess[i] == pytest.approx(-np.log(own) - float(torch.special.entr(p[i]).sum()), abs=1e-3)
        assert scores.beyond[i] < 1e-6
        assert scores.before[i] == pytest.approx(float(p[i, :token].sum()), abs=1e-4)
        assert np.exp(scores.log_tail[i]) == pytest.approx(1 - float(p[i][p[i] > own].sum()), abs=1e-4)
    if strategy == tiny.DRAFT:  # what a step drafts first is favoured most, so nothing comes before an accepted one
        favoured = [scores.favoured[strategy.family][at] for at in step_starts(output)]
        assert {f for f, accepted in zip(favoured, output.accepted_per_step, strict=True) if accepted} == {0.0}
        assert max(favoured) > 0.1


def test_one_pass_over_an_output_scores_it_for_both_ways_to_draft(engine: ReferenceEngine) -> None:
    output = engine.generate(tiny.requests(1)[0], PLAIN, seed=0)
    ways = [tiny.DRAFT, tiny.DRAFT.drawing, tiny.NGRAM]
    together = engine.score(output, ways, temperature=0.7, top_p=0.9)
    for way in ways:
        alone = engine.score(output, [way], temperature=0.7, top_p=0.9)
        assert alone.favoured[way.family] == pytest.approx(together.favoured[way.family], nan_ok=True, abs=1e-6)


def test_a_token_outside_the_nucleus_is_impossible_only_beyond_rounding() -> None:
    p, one = np.array([0.5, 0.0, 0.0]), np.zeros(3)
    scores = TokenScores(p, one, one, beyond=np.array([-0.1, 5e-4, 0.02]), before=one, log_tail=one, favoured={})
    assert impossible(scores, 0.9, 1e-3) == [2]
    assert impossible(scores, 1.0, 1e-3) == []  # without a nucleus nothing has an edge: see `RareTokens`


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"requests": []}, "no requests to compare"),
        ({"requests": [*tiny.requests(1), LONG]}, "k=3 leave no room in the model's 256"),
        ({"strategies": []}, "nothing to compare"),
        ({"strategies": [tiny.DRAFT.model_copy(update={"drafter": "far"})]}, "the engine has draft_model near"),
        ({"strategies": [tiny.DRAFT.model_copy(update={"method": "eagle"})]}, "eagle near: the engine has draft_model"),
        ({"alpha": 0}, "alpha is 0"),
        ({"alpha": 2}, "alpha is 2"),
        ({"alpha": float("nan")}, "alpha is nan"),
        ({"samples": 0}, "samples is 0"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_any_work(
    engine: ReferenceEngine, changed: dict[str, Any], told: str
) -> None:
    arguments: dict[str, Any] = {"strategies": [tiny.NGRAM, tiny.DRAFT], "requests": tiny.requests(1)}
    with pytest.raises(SelectorError, match=told):
        LosslessCheck(engine, **(arguments | changed))


def test_the_time_left_is_told_when_the_first_prompt_has_shown_the_pace(engine: ReferenceEngine) -> None:
    class Recorder(Silent):
        total, done = 0.0, 0.0

        def begin(self, total_seconds: float) -> None:
            assert not self.total
            self.total, self.done = total_seconds, 0.0

        def advance(self, estimated_seconds: float) -> None:
            self.done += estimated_seconds

    recorder = Recorder()
    settings = [MILD, MILD]  # a setting named twice is one
    verify_lossless(engine, [tiny.NGRAM], tiny.requests(2), settings=settings, samples=2, progress=recorder)
    assert recorder.total == pytest.approx(recorder.done)


def test_the_python_example_runs_as_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny.engine(tmp_path / "models")
    rows = [r.model_dump_json(by_alias=True, exclude_none=True) for r in tiny.requests(4)]
    Path("requests.jsonl").write_text("\n".join(rows), "utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "verify.md").read_text("utf-8"), re.DOTALL)
    exec(compile(block, "verify.md", "exec"), {})
    assert "draft_model k=4 (small): " in capsys.readouterr().out
