"""What a broken copy or export leaves behind is refused in one line that names the file, and what in it."""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selector.adapters import adapter
from selector.adapters.checkpoint import Checkpoint
from selector.errors import DrafterMismatch

from . import checkpoints

HEAD = Path("model.safetensors")
ODD: tuple[Any, ...] = (
    None, True, 0, -1, 7, 10**400, 0.5, float("nan"), float("inf"), "", "x", [], [1], ["x"], [[1]], [{}], {}, {"a": 1},
)  # fmt: skip
KEYS = (
    *checkpoints.LAYER_CONFIG, "architectures", "draft_vocab_size", "head_dim", "model_type", "logit_scale", "fc_norm",
    "norm_before_fc", "num_aux_hidden_states", "target_hidden_size", "eagle_aux_hidden_state_layer_ids", "eagle_config",
    "layer_types", "hidden_act", "quantization_config", "attention_bias", "rope_theta", "rope_scaling",
    "rope_parameters", "partial_rotary_factor", "max_position_embeddings", "text_config", "speculators_config",
    "speculators_model_type", "transformer_layer_config",
)  # fmt: skip


def refused(method: str, head: Path, target: Path) -> str:
    with pytest.raises(DrafterMismatch) as caught:
        adapter(method).check(Checkpoint(head), Checkpoint(target))
    return str(caught.value)


def with_header(content: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """The file with another header before the same numbers."""
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + size :]


def moved(name: str, start: int, end: int) -> Callable[[dict[str, Any]], object]:
    def change(header: dict[str, Any]) -> None:
        a, b = header[name]["data_offsets"]
        header[name]["data_offsets"] = [a + start, b + end]

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c + b"x" * 100, "100 bytes behind the last tensor belong to none"),
        (lambda c: c[:-8], "cut off: "),
        (lambda c: c[:100], "the safetensors header is broken"),
        (lambda c: struct.pack("<Q", 100_000) + b"[" * 100_000, "the safetensors header is broken (maximum recursion"),
        (lambda c: struct.pack("<Q", 4) + b"null", "the safetensors header is broken (not a JSON object)"),
        (lambda c: with_header(c, moved("d2t", 0, -8)), "tensor d2t of type 'I64' and shape (10,) does not fill"),
        (lambda c: with_header(c, moved("d2t", 8, 8)), "tensor d2t begins at byte "),
        (lambda c: with_header(c, lambda h: h.pop("norm.weight")), "the one before it ends at "),
        (lambda c: with_header(c, lambda h: h["d2t"].pop("shape")), "(tensor d2t: KeyError('shape'))"),
        (
            lambda c: with_header(c, lambda h: h["d2t"].update(shape="ten")),
            "tensor d2t of type 'I64' and shape ('t', 'e",
        ),
        (lambda c: with_header(c, lambda h: h["d2t"].update(dtype=5)), "tensor d2t of type 5 and shape (10,)"),
        (lambda c: with_header(c, lambda h: h["d2t"].update(data_offsets=[0.0, 80])), "does not fill bytes 0.0 to 80"),
    ],
)
def test_weights_that_do_not_fit_their_header_are_refused_before_they_are_loaded(
    tmp_path: Path, change: Callable[[bytes], bytes], said: str
) -> None:
    head = checkpoints.head(tmp_path / "h")
    (head / HEAD).write_bytes(change((head / HEAD).read_bytes()))
    message = refused("eagle3", head, checkpoints.target(tmp_path / "t"))
    assert message.startswith(str(head / HEAD))
    assert said in message
    assert message.endswith(" again")


def test_weights_that_are_a_folder_are_named(tmp_path: Path) -> None:
    head = checkpoints.head(tmp_path / "h")
    (head / HEAD).unlink()
    (head / HEAD).mkdir()
    assert "model.safetensors: cannot be read (" in refused("eagle3", head, checkpoints.target(tmp_path / "t"))


@pytest.mark.parametrize("method", ["eagle3", "draft_model"])
@pytest.mark.parametrize(
    "content",
    [
        b"not JSON",
        b"\xff",
        b"[]",
        b"[" * 100_000,
        b'{"model": null}',
        b'{"model": {"vocab": 5}}',
        b'{"added_tokens": [1]}',
    ],
)
def test_a_tokenizer_that_is_none_is_named(tmp_path: Path, method: str, content: bytes) -> None:
    drafter = (checkpoints.head if method == "eagle3" else checkpoints.whole_model)(tmp_path / "h", tokens={"a": 0})
    (drafter / "tokenizer.json").write_bytes(content)
    message = refused(method, drafter, checkpoints.target(tmp_path / "t", {"a": 0}))
    assert f"{drafter / 'tokenizer.json'}: not a tokenizer (" in message
    assert message.endswith("; copy or export the checkpoint again")


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff"])
def test_a_config_that_is_none_is_named_with_what_to_do(tmp_path: Path, content: bytes) -> None:
    head = checkpoints.head(tmp_path / "h")
    (head / "config.json").write_bytes(content)
    message = refused("eagle3", head, checkpoints.target(tmp_path / "t"))
    assert f"{head / 'config.json'}: not " in message
    assert message.endswith("; copy or export the checkpoint again")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_draft_model_with_nan_or_inf_is_refused(tmp_path: Path, bad: float) -> None:
    draft = checkpoints.whole_model(tmp_path / "d")
    content = (draft / HEAD).read_bytes()
    (draft / HEAD).write_bytes(content[:-4] + np.float32(bad).tobytes())
    assert "q_proj.weight holds NaN or Inf" in refused("draft_model", draft, checkpoints.target(tmp_path / "t"))


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("method", ["eagle", "eagle3"])
def test_no_odd_value_of_a_setting_is_more_than_a_refusal_or_a_warning(tmp_path: Path, method: str, key: str) -> None:
    head = (checkpoints.eagle_head if method == "eagle" else checkpoints.head)(tmp_path / "h")
    target, plain = checkpoints.target(tmp_path / "t"), json.loads((head / "config.json").read_text())
    for value in ODD:
        layers = plain | {key: value}
        for config in (layers, {"speculators_model_type": "eagle3", "transformer_layer_config": layers, key: value}):
            (head / "config.json").write_text(json.dumps(config))
            with contextlib.suppress(DrafterMismatch):  # anything else would reach the user as a traceback
                adapter(method).check(Checkpoint(head), Checkpoint(target))
