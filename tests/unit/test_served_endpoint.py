"""Servers that run already: measured as they are, and what they cannot tell is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from selector.cli import main
from selector.engines.served.endpoint import EndpointServers, named_drafters
from selector.measure.served import ServedSettings, measure_served
from selector.profile import load_profile
from selector.recommend import recommend
from selector.strategy import PLAIN, Strategy
from selector.workload import Request, Workload
from tests.fake_openai import FakeOpenAI, Script
from tests.unit.served import HEAD, workload

NGRAM = Strategy(method="ngram", lookup_min=2, lookup_max=4, num_speculative_tokens=3)
QUICK = ServedSettings(budget_seconds=1, k_max=3, loads=(1, 2), prompts_per_class=3)


def test_two_running_servers_give_a_profile_and_a_policy(tmp_path: Path) -> None:
    with FakeOpenAI(Script(step_seconds=0.002)) as plain, FakeOpenAI(Script(step_seconds=0.002, k=3)) as fast:
        servers = EndpointServers({PLAIN: plain.url, NGRAM: fast.url}, None, {})
        profile = measure_served(servers, workload(1), tmp_path / "j.jsonl", QUICK)
    assert {c.strategy for c in profile.confirmed} == {PLAIN, NGRAM}
    assert profile.engine.name == "endpoint"
    assert recommend(profile, load=1).pools


def test_what_a_server_cannot_tell_is_named_and_the_rest_is_measured(tmp_path: Path) -> None:
    lacking = Script(step_seconds=0.001, refuses=("return_token_ids", "ignore_eos"), per_step=False, stats=False)
    with FakeOpenAI(lacking) as server:
        servers = EndpointServers({PLAIN: server.url}, None, {})
        profile = measure_served(servers, workload(1), tmp_path / "j.jsonl", QUICK)
    said = {s.what: s.reason for s in profile.skipped}
    assert "returns no token ids" in said["step cost of none"]
    assert len(profile.recordings) == 3
    assert {(c.load, c.arm) for c in profile.confirmed} == {(1, "main"), (2, "main"), (1, "aa"), (2, "aa")}


def test_greedy_and_sampled_requests_share_no_batch_while_acceptance_is_seen(tmp_path: Path) -> None:
    head = Strategy(method="eagle3", drafter="head", num_speculative_tokens=3)
    asked = [
        Request.model_validate({"prompt": f"say {i}", "class": f"t={t}", "temperature": t, "max_tokens": 8})
        for i in range(3) for t in (0.8, 0.0)
    ]  # fmt: skip
    settings = ServedSettings(budget_seconds=30, k_max=3, loads=(1, 4), prompts_per_class=3, confirm=False)
    with FakeOpenAI(Script(step_seconds=0.001)) as plain, FakeOpenAI(Script(step_seconds=0.001, k=3)) as fast:
        servers = EndpointServers({PLAIN: plain.url, head: fast.url}, None, named_drafters(HEAD, None))
        measure_served(servers, Workload(asked, "test"), tmp_path / "j.jsonl", settings)
    sent = [b["temperature"] for _, b in fast.requests if str(b.get("messages")).startswith("[{") and "say" in str(b)]
    greedy = sent.index(0.8)
    assert greedy >= 3
    assert set(sent[:greedy]) == {0.0}
    assert set(sent[greedy:]) == {0.8}


def test_without_a_plain_server_no_speedup_is_claimed(tmp_path: Path) -> None:
    with FakeOpenAI(Script(step_seconds=0.001, k=3)) as server:
        servers = EndpointServers({NGRAM: server.url}, None, {})
        profile = measure_served(servers, workload(1), tmp_path / "j.jsonl", QUICK)
    assert any("no server decodes plainly" in s.reason for s in profile.skipped)
    assert profile.confirmed


def test_the_command_takes_urls_with_strategies(tmp_path: Path) -> None:
    out = tmp_path / "p.profile.json"
    (tmp_path / "w.jsonl").write_text(
        '{"prompt": "say a", "max_tokens": 8}\n{"prompt": "say b", "max_tokens": 8}\n', "utf-8"
    )
    with FakeOpenAI(Script(step_seconds=0.001)) as plain, FakeOpenAI(Script(step_seconds=0.001, k=2)) as fast:
        arguments = [
            "profile", "--engine", "endpoint", "--base-url", f"none={plain.url}/v1", "--base-url",
            f"ngram 2..4 k=2={fast.url}", "--workload", str(tmp_path / "w.jsonl"), "--loads", "1", "--budget", "30s",
            "--out", str(out),
        ]  # fmt: skip
        result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert {c.strategy.label for c in load_profile(out).confirmed} == {"none", "ngram 2..4 k=2"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("localhost:8000", "write URL or STRATEGY=URL"),
        ("warp k=2=http://localhost:1", "begin with a method"),
        ("eagle3 k=2=http://localhost:1", "name one drafter"),
    ],
)
def test_a_wrong_base_url_is_told(given: str, said: str) -> None:
    result = CliRunner().invoke(main, ["profile", "--engine", "endpoint", "--base-url", given])
    assert result.exit_code in (1, 2)
    assert said in result.output + str(result.exception)
