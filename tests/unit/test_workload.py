"""Workload files: what is read, and what is refused with file, line and reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from selector.errors import WorkloadError
from selector.workload import Request, Workload, load_workload, user_text


def written(folder: Path, content: bytes | str, name: str = "w.jsonl") -> Path:
    file = folder / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def test_a_byte_order_mark_line_ends_and_blank_lines_do_no_harm(tmp_path: Path) -> None:
    rows = ["first", "\u8bf7\u7528\u4e00\u53e5\u8bdd", "derni\u00e8re ligne"]
    first, *others = (json.dumps({"prompt": row}, ensure_ascii=False) + "\r\n" for row in rows)
    lines = "\ufeff" + first + "\r\n".join(others)
    requests = load_workload(written(tmp_path, lines)).requests
    assert [r.prompt for r in requests] == rows


def test_a_line_separator_inside_a_prompt_does_not_split_it(tmp_path: Path) -> None:
    row = json.dumps({"prompt": "a\u2028b"}, ensure_ascii=False)
    assert load_workload(written(tmp_path, row)).requests[0].prompt == "a\u2028b"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"prompt":"kept"}\n{this is not json}\n', "w.jsonl:2: not JSON (Expecting property name"),
        ('{"prompt":"kept"}\n\n"a bare string"\n', "w.jsonl:3: a request is a JSON object, this is str"),
        ('{"prompt":"   "}\n', "w.jsonl:1: 'prompt' is empty"),
        ('{"prompt":"cut off in the mid', "w.jsonl:1: not JSON"),
        ('{"messages":[{"role":"assistant","content":"x"}]}', "'messages' holds no user turn"),
        ('{"prompt":"a","messages":[{"role":"user","content":"x"}]}', "exactly one of 'prompt' and 'messages'"),
        ('{"text":"another column"}', "text: unknown key (a request may hold prompt or messages, class"),
        ('{"prompt":"a","max_tokens":16.5}', "w.jsonl:1: max_tokens: "),
        ('{"prompt":"a","max_tokens":0}', "w.jsonl:1: max_tokens: "),
        ('{"prompt":["token","ids?"]}', "w.jsonl:1: prompt: "),
        ('{"prompt":"a","temperature":-1}', "w.jsonl:1: temperature: "),
        ('{"prompt":"kept"}\n{"messages":' + "[" * 100_000, "w.jsonl:2: nested too deeply"),
        ('{"messages":[{"role":"user","content":' + "[" * 80 + "]" * 80 + "}]}", "'messages' is nested too deeply"),
        ('{"prompt":"a","max_tokens":' + "9" * 5000 + "}", "w.jsonl:1: Exceeds the limit"),
        ('{"prompt":"\\ud800"}', "w.jsonl:1: 'prompt' holds a lone surrogate"),
        ('{"messages":[{"role":"user","content":"\\ud800"}]}', "w.jsonl:1: 'messages' holds a lone surrogate"),
        ('{"prompt":"a","class":"\\udfff"}', "w.jsonl:1: class: "),
        ("", "no usable request in it"),
        ("\n\n", "no usable request in it"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, content: str, said: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        load_workload(written(tmp_path, content))
    assert said in str(caught.value)
    assert "w.jsonl" in str(caught.value)


def test_a_trace_without_text_is_refused_for_acceptance() -> None:  # C5-07
    with pytest.raises(WorkloadError) as caught:
        load_workload(Path(__file__).parent / "cases" / "C5-07.jsonl")
    said = str(caught.value)
    assert "C5-07.jsonl:1: no text in it, only timestamp, input_length, output_length, hash_ids" in said
    assert "may be used for arrival times and lengths only" in said


def test_another_encoding_is_refused_with_the_byte(tmp_path: Path) -> None:
    content = b'{"prompt":"' + "请把下面".encode("gb18030") + b'"}\n'
    with pytest.raises(WorkloadError, match="not UTF-8 at byte 11; convert it first"):
        load_workload(written(tmp_path, content))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="no such workload file"):
        load_workload(tmp_path / "nowhere.jsonl")


def test_a_manifest_gives_files_sampling_and_refuses_unknown_keys(tmp_path: Path) -> None:
    written(tmp_path, '{"prompt":"x","class":"chat"}\n', "chat.jsonl")
    manifest = '[[class]]\nfile = "chat.jsonl"\n[[class]]\nfile = "chat.jsonl"\ntemperature = 0.8\ntop_p = 0.9\n'
    workload = load_workload(written(tmp_path, manifest, "m.toml"))
    assert list(workload.by_class()) == ["chat", "chat, t=0.8, top_p=0.9"]
    with pytest.raises(WorkloadError, match="unknown: temprature"):
        load_workload(written(tmp_path, '[[class]]\nfile = "chat.jsonl"\ntemprature = 1\n', "m.toml"))


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        ("class = 5", "'class' is int, not a list"),
        ("class = [1]", "class entry 1 is int, not a"),
        ("[[class]]\nfile = 5", "entry 1: file: a path, this is int"),
        ('[[class]]\nfile = "a.jsonl"\n[[class]]\nfile = "a.jsonl"\ntemperature = 9', "entry 2: temperature: "),
        ('[[class]]\nfile = "a\\u0000"', "cannot be read"),
        ("class = " + "[" * 100_000, "not a workload manifest"),
        ("class = " + "9" * 5000, "not a workload manifest"),
    ],
)
def test_a_bad_manifest_entry_is_named(tmp_path: Path, manifest: str, said: str) -> None:
    written(tmp_path, '{"prompt":"x"}', "a.jsonl")
    with pytest.raises(WorkloadError) as caught:
        load_workload(written(tmp_path, manifest, "m.toml"))
    assert said in str(caught.value)


def test_two_classes_that_print_the_same_name_are_refused(tmp_path: Path) -> None:
    rows = '{"prompt":"x","class":"chat, t=0.8"}\n{"prompt":"y","class":"chat","temperature":0.8}'
    with pytest.raises(WorkloadError, match=r"two different classes print as 'chat, t=0\.8'"):
        load_workload(written(tmp_path, rows))
    rows = '{"prompt":"x","class":"chat","top_p":0.5}\n{"prompt":"y","class":"chat"}'  # greedy: top_p changes nothing
    assert list(load_workload(written(tmp_path, rows)).by_class()) == ["chat"]


def test_repeated_prompts_count_once() -> None:
    request = Request.model_validate({"prompt": "same", "class": "c"})
    from selector.workload import Workload

    assert len(Workload([request, request], "x").by_class()["c"]) == 1


def test_only_text_of_user_turns_is_read() -> None:
    messages = [
        {"role": "system", "content": "no"},
        {"role": "user", "content": None},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}]},
        "junk",
        {"role": "user", "content": "b"},
    ]
    assert user_text(messages) == "a\nb"


def test_the_shipped_classes_hold_forty_prompts_or_more() -> None:
    classes = load_workload().by_class()
    assert list(classes) == ["chat", "code", "edit", "extract", "math", "translate", "chat, t=0.8"]
    assert all(len(rs) >= 40 for rs in classes.values())
    prompts = [r.prompt for name, rs in classes.items() if name != "chat, t=0.8" for r in rs]
    assert len(set(prompts)) == len(prompts)


def test_temperature_bands_gather_sampled_requests_at_the_nearest_higher_edge() -> None:
    rows = [
        Request.model_validate({"prompt": f"p{i}", "class": "chat", "temperature": t})
        for i, t in enumerate((0.0, 0.1, 0.3, 0.31, 0.7, 1.0))
    ]
    banded = Workload(rows, "w").banded((0.3, 0.7, 1.0))
    assert {name: len(rs) for name, rs in banded.by_class().items()} == {
        "chat": 1, "chat, t=0.3": 2, "chat, t=0.7": 2, "chat, t=1": 1
    }  # fmt: skip
    with pytest.raises(
        WorkloadError, match=r"w: a request has temperature 1, above every temperature band \(0.3, 0.7\)"
    ):
        Workload(rows, "w").banded((0.7, 0.3))
