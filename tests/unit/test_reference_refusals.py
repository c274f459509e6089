"""What the reference engine cannot load is one line: a head in the target's place, a device that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from selector.cli import main

from . import checkpoints

pytest.importorskip("torch")


def refused(*arguments: str) -> str:
    done = CliRunner().invoke(main, list(arguments))
    assert (done.exit_code, done.stdout) == (1, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("selector: ")
    return last


@pytest.mark.parametrize("command", [["profile"], ["verify", "--model"]])
def test_a_head_given_as_the_model_is_told_to_be_a_drafter(tmp_path: Path, command: list[str]) -> None:
    head = str(checkpoints.head(tmp_path / "h"))
    assert "this is an EAGLE-3 head, which drafts for a model and is none: give it with --drafter" in refused(
        *command, head
    )


@pytest.mark.parametrize(
    ("device", "why"),
    [("bogus", "neither cpu nor cuda"), ("meta", "neither cpu nor cuda"), ("cuda:77", ""), ("cpu:x", "cpu:x")],
)
def test_a_device_that_cannot_be_used_is_named_before_anything_is_loaded(tmp_path: Path, device: str, why: str) -> None:
    model = str(checkpoints.whole_model(tmp_path / "m"))
    said = refused("profile", model, "--device", device)
    assert f"--device {device}: torch " in said
    assert why in said
    assert said.endswith("use --device cpu, or cuda where torch finds a GPU")


def test_a_folder_that_transformers_cannot_load_is_named(tmp_path: Path) -> None:
    model = checkpoints.whole_model(tmp_path / "m", model_type="medusa")
    said = refused("profile", str(model))
    assert f"selector: {model}: transformers cannot load it (" in said
    assert said.endswith("; give the folder of a causal language model")
