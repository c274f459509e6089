"""Profiling end to end on the fake engine: plan, resume after an interruption, confirmation, A/A noise."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from selector.engines.base import Generation
from selector.engines.fake import FakeEngine
from selector.errors import MeasurementFailed, SelectorError
from selector.measure import Settings, Silent, measure
from selector.measure.assemble import aa_noise
from selector.measure.plan import Speed, contexts, make_plan, pick_prompts, step_cells
from selector.measure.windows import search_windows
from selector.profile import ConfirmedCell, Profile, Run, load_profile, write_json
from selector.strategy import PLAIN, Strategy
from selector.walks import decode, walk
from selector.workload import Request, Workload

SETTINGS = Settings(budget_seconds=60, k_max=4, loads=(1, 2), prompts_per_class=4)


@pytest.fixture
def workload() -> Workload:
    rows = [
        Request.model_validate({"prompt": f"{task} {i}", "class": task, "temperature": t})
        for task, t in (("chat", 0.0), ("edit", 0.0), ("chat", 0.7))
        for i in range(6)
    ]
    return Workload(rows, "test")


class Interrupted(FakeEngine):
    """Raises Ctrl-C at its n-th measurement."""

    left = 10**9

    def _tick(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt

    def step_seconds(self, *args: object, **options: object) -> Sequence[float]:
        self._tick()
        return super().step_seconds(*args, **options)  # type: ignore[arg-type]  # passed through unchanged

    def generate(self, request: Request, strategy: Strategy, *, seed: int) -> Generation:
        self._tick()
        return super().generate(request, strategy, seed=seed)


def what_was_measured(profile: Profile) -> dict[str, object]:
    """Everything that must not depend on interruptions (times do: the fake draws noise from one stream)."""
    return {
        "recordings": profile.recordings,
        "replays": profile.replays,
        "rows": sorted(
            (c.method, c.drafted, c.batch, c.context, c.sampling, len(c.step_seconds)) for c in profile.step_costs
        ),
        "prefill": sorted((c.method, c.prompt_tokens, len(c.prefill_seconds)) for c in profile.prefill_costs),
    }


def test_a_profile_holds_every_stage_and_round_trips(tmp_path: Path, workload: Workload) -> None:
    profile = measure(FakeEngine(seed=1), workload, tmp_path / "j", SETTINGS)
    assert [c.name for c in profile.classes] == ["chat", "edit", "chat, t=0.7"]
    assert all(c.prompts == 4 and c.prompts_available == 6 for c in profile.classes)
    assert {c.sampling for c in profile.step_costs} == {"greedy", "temperature"}
    assert {c.batch for c in profile.step_costs} == {1, 2}
    assert all(len(c.step_seconds) >= 3 for c in profile.step_costs)
    assert profile.provenance.complete
    assert {"recording plain outputs", "acceptance", "step cost", "prefill cost", "confirmation"} == set(
        profile.provenance.seconds_by_stage
    )
    write_json(tmp_path / "p.json", profile)
    assert load_profile(tmp_path / "p.json") == profile


def test_confirmation_measures_plain_twice_and_gives_a_noise_band(tmp_path: Path, workload: Workload) -> None:
    profile = measure(FakeEngine(seed=1), workload, tmp_path / "j", SETTINGS)
    for name in ("chat", "edit", "chat, t=0.7"):
        arms = {(c.strategy == PLAIN, c.arm) for c in profile.confirmed if c.request_class == name}
        assert arms == {(True, "main"), (True, "aa"), (False, "main")}
    assert 0 < profile.aa_noise < 0.2


def test_confirmed_counts_equal_the_walk(tmp_path: Path, workload: Workload) -> None:
    profile = measure(FakeEngine(seed=1), workload, tmp_path / "j", SETTINGS)
    replays = {(r.request_class, r.family, r.id): r for r in profile.replays}
    checked = 0
    for cell in (c for c in profile.confirmed if c.strategy != PLAIN):
        for run in cell.runs:
            r = replays[(cell.request_class, cell.strategy.family, run.id)]
            if "t=" not in cell.request_class:
                w = walk(decode(r.accepted), cell.strategy.k, None if r.proposed is None else decode(r.proposed))
                assert (w.steps, w.accepted) == (run.decode_steps, run.accepted)
                checked += 1
    assert checked >= 2


@pytest.mark.parametrize("after", [0, 1, 7, 30, 80, 140])
def test_an_interrupted_run_goes_on_and_measures_the_same(tmp_path: Path, workload: Workload, after: int) -> None:
    whole = measure(FakeEngine(seed=1), workload, tmp_path / "whole", SETTINGS)
    engine = Interrupted(seed=1)
    engine.left = after
    with pytest.raises(KeyboardInterrupt):
        measure(engine, workload, tmp_path / "j", SETTINGS)
    finished = (tmp_path / "j").read_bytes().count(b"\n")
    engine.left = 10**9
    profile = measure(engine, workload, tmp_path / "j", SETTINGS, resume=True)
    assert what_was_measured(profile) == what_was_measured(whole)
    assert profile.provenance.interruptions == 1
    assert finished >= 1


def test_the_journal_keeps_no_prompt_text(tmp_path: Path, workload: Workload) -> None:
    profile = measure(FakeEngine(seed=1), workload, tmp_path / "j", SETTINGS)
    assert "chat 3" not in (tmp_path / "j").read_text()
    assert "chat 3" not in profile.model_dump_json()


def test_plain_decoding_that_fails_ends_the_run(tmp_path: Path, workload: Workload) -> None:
    class Dead(FakeEngine):
        def record(self, requests: Sequence[Request], *, seed: int) -> list[Generation]:
            raise SelectorError("out of memory")

    with pytest.raises(MeasurementFailed, match=r"class 'chat', 'chat, t=0\.7' failed: out of memory"):
        measure(Dead(seed=1), workload, tmp_path / "j", SETTINGS)


def test_a_strategy_that_fails_is_skipped_with_its_message_and_the_rest_is_measured(
    tmp_path: Path, workload: Workload
) -> None:
    class NoEagle(FakeEngine):
        def generate(self, request: Request, strategy: Strategy, *, seed: int) -> Generation:
            if strategy.method == "eagle3":
                raise SelectorError("the head fell off")
            return super().generate(request, strategy, seed=seed)

    profile = measure(NoEagle(seed=1), workload, tmp_path / "j", SETTINGS)
    assert any("the head fell off" in s.reason for s in profile.skipped)
    assert any(c.strategy == PLAIN for c in profile.confirmed)


def test_a_larger_budget_buys_more_prompts_and_repeats(workload: Workload) -> None:
    engine = FakeEngine()
    cells = step_cells(engine, workload, 8, (1, 2, 4, 8))
    plans = [make_plan(workload, cells, 2, Speed(0.05, 0.1), seconds) for seconds in (60, 300, 3000)]
    prompts = [p.prompts_per_class for p in plans]
    assert prompts == sorted(prompts)
    assert prompts[0] >= 3
    assert prompts[-1] == 6
    assert plans[1].total_seconds == pytest.approx(300, rel=0.15)


def test_prompts_are_only_added_by_a_larger_sample(workload: Workload) -> None:
    requests = workload.by_class()["chat"]
    assert pick_prompts(requests, 3, 7) == pick_prompts(requests, 5, 7)[:3]


def test_contexts_span_the_workload(workload: Workload) -> None:
    near, far = contexts(FakeEngine(), workload)
    assert far >= 3 * near


def test_the_window_search_finds_the_copying_window() -> None:
    """A text whose only repeats are long: short windows propose junk, long ones the copy."""
    copied = tuple(range(100, 140))
    noise = tuple(x for i in range(60) for x in (7, 200 + i))
    recording = Generation((*noise, *copied), copied, "stop", 0, 0, 0, 0.0, 0.0)
    windows = search_windows({"copy": [recording]}, 8, seed=0, on_trial=lambda: None)
    best = windows[0]
    assert best.lookup_max is not None
    assert 1 <= len(windows) <= 3


def test_aa_noise_is_the_band_of_plain_against_plain() -> None:
    def cell(arm: str, seconds: float, name: str) -> ConfirmedCell:
        run = Run(
            id="a",
            repeat=0,
            output_tokens=9,
            decode_steps=8,
            drafted=0,
            accepted=0,
            prefill_seconds=0.5,
            decode_seconds=seconds,
        )
        return ConfirmedCell.model_validate(
            {"request_class": name, "strategy": PLAIN, "load": 1, "arm": arm, "runs": (run,)}
        )

    cells = [cell("main", 1.5, "x"), cell("aa", 1.58, "x"), cell("main", 1.5, "y"), cell("aa", 1.42, "y")]
    assert aa_noise(cells) == pytest.approx(1.96 * 0.0400 / 2**0.5, rel=0.03)  # two pairs of one weight
    assert aa_noise(cells[:1]) == 0


def test_silent_progress_takes_everything() -> None:
    quiet = Silent()
    quiet.begin(1)
    quiet.stage("x")
    quiet.advance(1)
    quiet.say(json.dumps({}))
