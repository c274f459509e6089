"""The router: class choice, fallbacks, odd input, damaged policies, feedback."""

from __future__ import annotations

import copy
import io
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selector import Decision, Router
from selector.errors import PolicyError
from selector.policy import Classifier
from selector.policy_source import MAX_POLICY_BYTES
from selector.train_classifier import train
from tests.unit import policies

WORDS = {
    "chat": [
        "how do I keep a basil plant alive",
        "what should I say at an interview",
        "why is the moon big today",
    ],
    "code": [
        "def f(x): return x",
        "write a python function sort(items)",
        "```python\nimport os\n``` complete it",
    ],
    "edit": [
        "rename the variable a to b in this text",
        "fix the typos and return all",
        "rename b to c everywhere",
    ],
}


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    pairs = [(f"{text} {i}", task) for task, texts in WORDS.items() for text in texts for i in range(4)]
    trained = train([t for t, _ in pairs], [task for _, task in pairs], seed=0)
    assert trained is not None
    return trained


@pytest.fixture(scope="module")
def router(classifier: Classifier) -> Router:
    return Router(policies.policy(classifier=classifier.model_copy(update={"min_confidence": 0.5})))


def test_the_fallback_reports_its_pools_k_at_the_policys_load() -> None:
    policy, pool = policies.one_pool(policies.pool(schedule=[[1, 2, 4], [3, 8, 1]]))
    for load in (1, 4):
        decision = Router(policy.model_copy(update={"load": load})).route(request_class="lost")
        assert decision.num_speculative_tokens == pool.k_at(load)


def test_a_named_class_gets_its_pool_and_the_others_as_fallbacks(router: Router) -> None:
    assert router.route(request_class="code") == Decision(
        request_class="code",
        strategy=router.policy.pool("spec").strategy,
        num_speculative_tokens=4,
        pool="spec",
        base_url="http://spec.example:8000/v1",
        fallbacks=("plain", "lookup"),  # plain first although it has fewer servers
        confidence=1.0,
        reason="measured for code",
        policy_fingerprint=router.policy.fingerprint,
        speculative_config={
            "method": "eagle3",
            "model": "/models/my eagle3 head",
            "num_speculative_tokens": 4,
        },
    )


def test_fallbacks_after_the_plain_one_go_by_server_share(router: Router) -> None:
    assert router.route(request_class="chat, t=0.8").fallbacks == ("spec", "lookup")


@pytest.mark.parametrize("label", ["stories", "", "CODE", "x" * 5000])
def test_c7_07_an_unknown_class_goes_to_the_fallback_pool_never_to_the_best(router: Router, label: str) -> None:
    d = router.route(request_class=label)
    assert (d.pool, d.request_class, d.strategy.method, d.speculative_config) == (
        "plain",
        "unknown",
        "none",
        None,
    )
    assert "not in this policy" in d.reason
    assert len(d.reason) < 200


@pytest.mark.parametrize(
    ("temperature", "expected", "note"),
    [
        (None, "chat", None),
        (0, "chat", None),
        (0.5, "chat, t=0.5", None),
        (0.2, "chat, t=0.5", "temperature 0.2 was not profiled, the nearest higher one, 0.5, is used"),
        (0.51, "chat, t=0.8", "temperature 0.51 was not profiled, the nearest higher one, 0.8, is used"),
        (1.5, "chat, t=0.8", "temperature 1.5 is above every profiled one, the highest, 0.8, is used"),
    ],
)
@pytest.mark.parametrize("by", ["task", "text"])
def test_temperature_picks_the_nearest_higher_profiled_class(
    router: Router, temperature: float | None, expected: str, note: str | None, by: str
) -> None:
    if by == "task":
        d = router.route(request_class="chat", temperature=temperature)
        assert d.reason == f"measured for {expected}" + (f"; {note}" if note else "")
    else:
        d = router.route(WORDS["chat"][0], temperature=temperature)
        assert d.reason.startswith("classified as 'chat'; ")
        assert (note or "measured for") in d.reason
    assert d.request_class == expected


def test_a_full_class_name_says_its_own_temperature(router: Router) -> None:
    assert router.route(request_class="chat, t=0.8", temperature=0.2).request_class == "chat, t=0.8"


def test_top_p_picks_the_nearest_higher_one_at_the_temperature() -> None:
    classes = [policies.request_class("chat", "spec", 0.8, p) for p in (0.5, 0.9, 1.0)]
    router = Router(policies.policy(classes=classes))
    chosen = [
        router.route(request_class="chat", temperature=0.8, top_p=p).request_class for p in (0.6, 0.9, 0.95, None)
    ]
    assert chosen == ["chat, t=0.8, top_p=0.9", "chat, t=0.8, top_p=0.9", "chat, t=0.8", "chat, t=0.8"]


def test_a_task_profiled_only_sampled_serves_greedy_requests_and_says_so() -> None:
    router = Router(policies.policy(classes=[policies.request_class("chat", "spec", 0.8)]))
    d = router.route(request_class="chat")
    assert (d.request_class, d.pool) == ("chat, t=0.8", "spec")
    assert "temperature 0 was not profiled" in d.reason


def test_a_text_is_classified(router: Router) -> None:
    d = router.route("write a python function sort(items)")
    assert (d.request_class, d.pool) == ("code", "spec")
    assert 0.5 <= d.confidence < 1


def test_messages_are_classified_by_their_user_turns(router: Router) -> None:
    messages = [
        {"role": "system", "content": "rename rename rename"},
        {"role": "user", "content": [{"type": "text", "text": "write a python function sort(items)"}]},
    ]
    assert router.route(messages=messages).request_class == "code"


def test_an_unsure_text_goes_to_the_fallback_pool(router: Router) -> None:
    d = router.route("the weather over the northern hills stays grey and cold, with little wind and more rain to come")
    assert (d.pool, d.request_class) == ("plain", "unknown")
    assert d.reason.startswith("classifier not sure")


def test_without_a_classifier_texts_go_to_the_fallback_pool() -> None:
    d = Router(policies.policy()).route("def f(x):")
    assert (d.pool, d.confidence) == ("plain", 0.0)
    assert "no text classifier" in d.reason


ODD: list[list[Any]] = [
    [],
    [None, 3, "user", [], [[]], True],
    [{}],
    [{"role": "user"}],
    [{"role": "user", "content": None}],
    [{"role": "user", "content": {"text": "x"}}],
    [
        {
            "role": "user",
            "content": [None, 1, {"type": "image_url", "image_url": {"url": "data:"}}, {"text": None}],
        }
    ],
    [{"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"arguments": "{"}}]}],
    [{"role": "tool", "content": "42", "tool_call_id": "1"}],
    [{"role": ["user"], "content": "x"}],
    [{"role": "user", "content": "\ud800 \x00 \U0010ffff"}],
    [{"role": "user", "content": " \n"}],
]


@pytest.mark.parametrize("messages", ODD, ids=range(len(ODD)))
def test_odd_messages_give_a_decision(router: Router, messages: list[Any]) -> None:
    assert router.route(messages=messages).pool == "plain"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["role", "content", "text", "type", "x"]), inner | st.just("user"), max_size=4
        )
    ),
    max_leaves=20,
)


@given(messages=st.lists(JSON, max_size=4), temperature=st.none() | st.floats(0, 5))
@settings(max_examples=150, deadline=None)
def test_any_json_messages_give_a_decision(router: Router, messages: list[Any], temperature: float | None) -> None:
    d = router.route(messages=messages, temperature=temperature)
    assert d.pool in {"spec", "plain", "lookup"}
    assert 0 <= d.confidence <= 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({}, "nothing to route by"),
        ({"prompt": 3}, "prompt must be a string, not int"),
        ({"prompt": b"x"}, "prompt must be a string, not bytes"),
        ({"messages": "hello"}, "messages must be a list of chat messages, not str"),
        ({"messages": {"role": "user"}}, "messages must be a list"),
        ({"request_class": ["chat"]}, "request_class must be a string, not list"),
        ({"request_class": "chat", "temperature": "hot"}, "temperature must be a number, not str"),
        ({"request_class": "chat", "temperature": True}, "temperature must be a number, not bool"),
        ({"request_class": "chat", "temperature": [1]}, "temperature must be a number, not list"),
        ({"request_class": "chat", "temperature": float("nan")}, "temperature nan is out of range"),
        ({"request_class": "chat", "temperature": 10**400}, "is out of range"),
        ({"request_class": "chat", "temperature": -1}, "temperature -1 is out of range"),
        ({"request_class": "chat", "top_p": 1.5}, "top_p 1.5 is out of range"),
        ({"request_class": "chat", "max_tokens": 1.5}, "max_tokens must be an integer, not float"),
        ({"request_class": "chat", "metadata": "x"}, "metadata must be a mapping, not str"),
    ],
)
def test_a_wrong_call_is_a_value_error(router: Router, arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        router.route(**arguments)


def test_policies_load_from_path_file_and_dict(tmp_path: Path, router: Router) -> None:
    text = router.policy.model_dump_json()
    file = tmp_path / "p.policy.json"
    file.write_text(text, "utf-8")
    sources = [file, str(file), io.StringIO(text), io.BytesIO(text.encode()), json.loads(text)]
    assert {Router.load(s).route(request_class="code") for s in sources} == {router.route(request_class="code")}


def _without(key: str) -> dict[str, Any]:
    return {k: v for k, v in policies.data().items() if k != key}


def _with(path: list[Any], value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(policies.data())
    at: Any = changed
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return changed


@pytest.mark.parametrize(
    ("damaged", "named"),
    [
        (_without("classes"), "classes"),
        (_without("schema_version"), "schema_version"),
        (_with(["surprise"], 1), "surprise"),
        (_with(["pools"], []), "pools"),
        (_with(["fallback_pool"], "nowhere"), "fallback_pool"),
        (_with(["classes", 0, "pool"], "nowhere"), "classes.chat.pool"),
        (_with(["classes", 1, "request_class"], "chat"), "chat"),
        (
            _with(["pools", 1, "strategy", "num_speculative_tokens"], "four"),
            "pools.1.strategy.num_speculative_tokens",
        ),
        (_with(["pools", 1, "strategy", "num_speculative_tokens"], 0), "num_speculative_tokens"),
        (_with(["pools", 1, "strategy", "drafter"], "lost"), "lost"),
        (_with(["pools", 1, "schedule"], [[1, 4, 9], [5, 8, 1]]), "pools.1: schedule"),
        (_with(["classes", 0, "temperature"], float("nan")), "classes.0.temperature"),
        (_with(["target"], "__import__('os').system('true')"), "target"),
    ],
)
def test_a_damaged_policy_is_refused_by_key(damaged: dict[str, Any], named: str) -> None:
    with pytest.raises(PolicyError, match=named):
        Router.load(damaged)


@pytest.mark.parametrize("key", ["idf", "bias", "weights"])
def test_a_classifier_whose_tables_do_not_fit_is_refused(classifier: Classifier, key: str) -> None:
    numbers = classifier.model_dump() | {key: getattr(classifier, key)[:-1]}
    with pytest.raises(PolicyError, match=f"classifier.{key} holds"):
        Router.load(policies.data(classifier=numbers))


def test_a_newer_schema_is_refused_naming_both(tmp_path: Path) -> None:
    newer = policies.data(schema_version=7)
    file = tmp_path / "p.json"
    file.write_text(json.dumps(newer), "utf-8")
    for source in (newer, file, io.StringIO(json.dumps(newer))):
        with pytest.raises(PolicyError, match="schema 7 is newer than schema 1"):
            Router.load(source)


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 200_000, '{"schema_version": 1e999}', "\ufeff{}", "1" * 5000])
def test_text_that_is_no_policy_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "p.json"
    file.write_text(text, "utf-8")
    for source in (file, io.StringIO(text)):
        with pytest.raises(PolicyError, match=r"not JSON|no schema_version"):
            Router.load(source)


def test_missing_and_huge_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="cannot be read"):
        Router.load(tmp_path / "none.json")
    with pytest.raises(PolicyError, match="cannot be read"):
        Router.load(tmp_path)
    huge = tmp_path / "huge.json"
    with huge.open("wb") as stream:
        stream.truncate(MAX_POLICY_BYTES + 1)
    with pytest.raises(PolicyError, match="at most"):
        Router.load(huge)
    with pytest.raises(PolicyError, match="not from int"):
        Router.load(3)  # type: ignore[arg-type]  # what a caller without types may do


def test_feedback_from_many_threads_adds_up(router: Router) -> None:
    fresh = Router(router.policy)
    d = fresh.route(request_class="code")

    def work() -> None:
        for _ in range(200):
            fresh.record(d, drafted=4, accepted=3, tokens=7, seconds=0.5)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    totals = fresh.stats()[("code", "spec")]
    assert (totals.requests, totals.drafted, totals.accepted, totals.tokens) == (800, 3200, 2400, 5600)
    assert totals.seconds == pytest.approx(400)


def test_feedback_stays_bounded_whatever_labels_come(router: Router) -> None:
    fresh = Router(router.policy)
    for i in range(50):
        fresh.record(fresh.route(request_class=f"label {i}"), drafted=0, accepted=0, tokens=1, seconds=0.1)
    assert list(fresh.stats()) == [("unknown", "plain")]


def test_impossible_feedback_is_refused(router: Router) -> None:
    d = router.route(request_class="code")
    with pytest.raises(ValueError, match="accepted"):
        router.record(d, drafted=1, accepted=2, tokens=3, seconds=1.0)
    with pytest.raises(ValueError, match="seconds"):
        router.record(d, drafted=1, accepted=1, tokens=3, seconds=float("nan"))
    with pytest.raises(ValueError, match="this decision is from policy"):
        Router(policies.policy(load=3)).record(d, drafted=1, accepted=1, tokens=3, seconds=1.0)
