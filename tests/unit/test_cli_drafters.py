"""`--drafter` takes a folder alone, a method that is insisted on, or a name of the user's own."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from selector.cli.models import named
from selector.errors import DrafterMismatch, SelectorError

from . import checkpoints


def test_a_folder_alone_is_recognised_and_called_by_its_name(tmp_path: Path) -> None:
    first = checkpoints.head(tmp_path / "llama-draft")
    second = checkpoints.eagle_head(tmp_path / "a=b")
    third = checkpoints.whole_model(tmp_path / "deep" / "llama-draft")
    assert named((str(first), str(second), str(third))) == {
        "llama-draft": ("eagle3", first), "a=b": ("eagle", second), "llama-draft-2": ("draft_model", third)
    }  # fmt: skip


def test_a_method_is_taken_at_its_word_and_any_other_word_is_a_name(tmp_path: Path) -> None:
    head = checkpoints.head(tmp_path / "h=1")
    assert named((f"draft_model={head}",)) == {"h=1": ("draft_model", head)}  # refused by the engine's check
    assert named((f"my-head={head}",)) == {"my-head": ("eagle3", head)}


@pytest.mark.parametrize("method", ["none", "ngram", "my head", ""])
def test_what_is_neither_a_method_with_a_drafter_nor_a_name_is_wrong_usage(tmp_path: Path, method: str) -> None:
    with pytest.raises(click.UsageError, match="write PATH, METHOD=PATH or NAME=PATH"):
        named((f"{method}={checkpoints.head(tmp_path / 'h')}",))


def test_a_folder_that_is_not_there_or_holds_no_drafter_is_named(tmp_path: Path) -> None:
    with pytest.raises(SelectorError, match=r"--drafter 'eagle3=nowhere': no such folder"):
        named(("eagle3=nowhere",))
    file = checkpoints.head(tmp_path / "h") / "model.safetensors"
    with pytest.raises(SelectorError, match=f"this is a file; give the folder it lies in, {file.parent}"):
        named((f"eagle3={file}",))
    with pytest.raises(DrafterMismatch, match="it holds no safetensors file"):
        named((str(tmp_path),))
