"""A user's own model folder: another architecture, no drafters; and drafters that do not belong to it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from selector.embedded import EAGLE3_NAME, embedded_drafters, embedded_target

pytestmark = pytest.mark.embedded


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer Qwen2 with random weights and the embedded target's tokenizer."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=49152, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True, eos_token_id=2, bos_token_id=1,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("model") / "tiny qwen"
    Qwen2ForCausalLM(config).save_pretrained(folder)  # type: ignore[no-untyped-call]  # untyped upstream
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(embedded_target() / name, folder)
    return folder


def selector(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    line = (sys.executable, "-m", "selector", *args)
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)


def test_another_architecture_without_drafters_is_profiled_and_decided(tiny: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"say {word} again", "class": "c", "max_tokens": 12} for word in ("one", "two", "three")]
    (tmp_path / "w.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    options = ("--workload", "w.jsonl", "--budget", "5s", "--loads", "1,2", "--max-k", "2", "--out", "t.profile.json")
    done = selector(tmp_path, "profile", str(tiny), *options)
    assert done.returncode == 0, done.stderr
    profile = json.loads((tmp_path / "t.profile.json").read_text())
    assert profile["target"]["name"] == "tiny qwen"
    assert profile["target"]["architecture"] == "Qwen2ForCausalLM"
    assert {c["method"] for c in profile["step_costs"]} == {"none", "ngram"}
    done = selector(tmp_path, "recommend", "t.profile.json", "--workload", "w.jsonl")
    assert done.returncode == 0, done.stderr


def test_a_head_for_another_target_is_refused_in_one_line(tiny: Path, tmp_path: Path) -> None:
    head = embedded_drafters()[EAGLE3_NAME][1]
    done = selector(tmp_path, "profile", str(tiny), "--drafter", f"eagle3={head}")
    assert done.returncode == 1
    assert "made for a target of hidden size 576, this one has 32" in done.stderr
    assert "use one trained for this target, or a method that needs none" in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2


def test_a_folder_that_holds_no_model_is_refused_in_one_line(tmp_path: Path) -> None:
    done = selector(tmp_path, "profile", str(tmp_path))
    assert done.returncode == 1
    assert "no config.json there" in done.stderr
    assert "Traceback" not in done.stderr
