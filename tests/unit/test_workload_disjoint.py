"""Shipped workloads share no prompt with what the shipped drafters were trained on."""

from selector.resources import data_dir
from selector.training.rows import prompt_fingerprint
from selector.workload import load_workload, texts

HASHES = data_dir("strategies") / "drafters" / "training-prompts.sha256"


def test_training_prompts_are_listed_once_each_and_sorted() -> None:
    lines = HASHES.read_text("ascii").split()
    assert len(lines) > 1500
    assert lines == sorted(set(lines))
    assert {len(line) for line in lines} == {16}


def test_shipped_workload_prompts_are_not_training_prompts() -> None:
    trained = set(HASHES.read_text("ascii").split())
    shared = [text for text in texts(load_workload().requests) if prompt_fingerprint(text) in trained]
    assert shared == []
