"""The embedded model writes training conversations: prompts of its own, resumable, disjoint from the workloads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from selector.errors import WorkloadError

pytestmark = pytest.mark.embedded


def test_a_data_file_goes_on_where_a_kill_cut_it(tmp_path: Path) -> None:
    from selector.embedded import embedded_target
    from selector.training.generate import DataOptions, generate

    def options(conversations: int, resume: bool) -> DataOptions:
        return DataOptions(
            embedded_target(), tmp_path / "data.jsonl", conversations, answer_tokens=16, batch=4, resume=resume
        )

    said: list[str] = []
    assert generate(options(2, False), said.append) >= 2
    file = tmp_path / "data.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"p": [1, 2')  # killed in the middle of a line
    with pytest.raises(WorkloadError, match="go on with --resume"):
        generate(options(4, False), said.append)
    assert generate(options(4, True), said.append) >= 4
    assert file.read_bytes().startswith(whole)
    lines = [line for line in file.read_text("utf-8").splitlines() if line]
    rows = [json.loads(line) for line in lines]
    assert len({row["fingerprint"] for row in rows}) == len(rows) == int(said[-1].split()[0])
    assert all(len(row["p"]) > 10 and 9 <= len(row["r"]) <= 16 for row in rows)
