"""The progress line: time left from the pace really kept, journalled work left out of it."""

from __future__ import annotations

import io

import pytest

from selector.cli.progress import ProgressLine


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def test_the_time_left_follows_the_pace(clock: list[float]) -> None:
    line = ProgressLine(io.StringIO())
    line.begin(100)
    assert line.seconds_left == 100
    clock[0] += 20
    line.advance(10)  # twice as slow as planned
    assert line.seconds_left == pytest.approx(180)


def test_without_a_plan_no_time_is_made_up(clock: list[float]) -> None:
    log = io.StringIO()
    line = ProgressLine(log)
    clock[0] += 6
    line.stage("first prompt")
    assert log.getvalue() == "first prompt\n"


def test_work_from_the_journal_says_nothing_about_the_pace(clock: list[float]) -> None:
    line = ProgressLine(io.StringIO())
    line.begin(100)
    line.skip(80)
    clock[0] += 10
    line.advance(10)
    assert line.seconds_left == pytest.approx(10)


def test_a_log_gets_a_line_when_the_stage_changes_but_not_too_often(clock: list[float]) -> None:
    log = io.StringIO()
    line = ProgressLine(log)
    line.begin(60)
    for i in range(12):
        clock[0] += 2
        line.stage(f"part {i}")
    assert 3 <= len(log.getvalue().splitlines()) <= 5
    assert "\r" not in log.getvalue()


def test_a_terminal_gets_one_line_that_is_rewritten_and_then_cleared() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    line = ProgressLine(terminal)
    line.begin(60)
    line.stage("acceptance")
    line.advance(30)
    assert terminal.getvalue().count("\n") == 0
    assert " 50%" in terminal.getvalue()
    line.say("a remark")
    line.finish()
    assert terminal.getvalue().endswith("\x1b[K")
