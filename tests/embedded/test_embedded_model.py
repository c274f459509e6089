"""The embedded target and drafters, fetched and converted the way a user gets them."""

import json
from typing import Any

import pytest

from selector.embedded import DRAFT_NAME, EAGLE3_NAME, embedded_drafters, embedded_target

pytestmark = pytest.mark.embedded


def test_target_converts_once_and_knows_its_chat_marks() -> None:
    from transformers import AutoTokenizer

    folder = embedded_target()
    said: list[str] = []
    assert embedded_target(said.append) == folder
    assert said == []
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.encode("<|im_start|><|im_end|>", add_special_tokens=False) == [1, 2]
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, tokenize=False
    )
    ids = tokenizer.encode(chat, add_special_tokens=False)
    assert ids[:2] == [1, 9690]
    assert tokenizer.decode(ids) == chat
    assert json.loads((folder / "generation_config.json").read_bytes())["eos_token_id"] == 2


def test_target_answers_and_the_assembled_draft_often_agrees() -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    target, (method, folder) = embedded_target(), embedded_drafters()[DRAFT_NAME]
    assert method == "draft_model"
    tokenizer = AutoTokenizer.from_pretrained(folder)  # the draft's folder carries the target's tokenizer
    chat = [{"role": "user", "content": "Write a short story about a cat."}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    ids = torch.tensor([tokenizer.encode(prompt, add_special_tokens=False)])
    models: list[Any] = [AutoModelForCausalLM.from_pretrained(f, dtype=torch.float32) for f in (target, folder)]
    text = models[0].generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=64)
    assert "cat" in tokenizer.decode(text[0, ids.shape[1] :].tolist())
    with torch.no_grad():
        guesses = models[1](text).logits[0, ids.shape[1] - 1 : -1].argmax(-1)
    assert float((guesses == text[0, ids.shape[1] :]).float().mean()) > 0.15


def test_shipped_head_fits_the_target() -> None:
    from safetensors.torch import load_file

    method, folder = embedded_drafters()[EAGLE3_NAME]
    config = json.loads((folder / "config.json").read_bytes())
    target = json.loads((embedded_target() / "config.json").read_bytes())
    tensors = load_file(folder / "model.safetensors")
    assert method == "eagle3"
    assert config["hidden_size"] == target["hidden_size"]
    ids = [i + offset for i, offset in enumerate(tensors["d2t"].tolist())]
    assert len(set(ids)) == config["draft_vocab_size"]
    assert max(ids) < target["vocab_size"]
