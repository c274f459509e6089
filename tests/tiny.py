"""A random model of a few hundred thousand parameters that decodes like a real one: it stops, and has a draft model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers

from selector.engines.reference import ReferenceEngine
from selector.strategy import Strategy
from selector.workload import Request

VOCABULARY, STOP_TOKENS = 120, 3
DRAFT = Strategy(method="draft_model", drafter="near", num_speculative_tokens=3)
NGRAM = Strategy(method="ngram", lookup_min=1, lookup_max=3, num_speculative_tokens=3)


def engine(folder: Path) -> ReferenceEngine:
    """Target and draft model, which is the target with its weights moved a little."""
    near = _model(folder / "near", 0.08)
    return ReferenceEngine(_model(folder / "target", 0.0), "tiny", {"near": ("draft_model", near)})


def requests(count: int, max_tokens: int = 32) -> list[Request]:
    """Prompts of a few words that repeat, so that n-gram lookup finds something."""
    found = []
    for i in range(count):
        words = np.random.default_rng(i).integers(STOP_TOKENS, VOCABULARY, 6)
        prompt = " ".join(f"w{w}" for w in [*words, *words[:4]])
        found.append(Request.model_validate({"prompt": prompt, "class": "tiny", "max_tokens": max_tokens}))
    return found


def _model(folder: Path, noise: float) -> Path:
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=False, initializer_range=0.25,
        eos_token_id=list(range(STOP_TOKENS)),
    )  # fmt: skip
    torch.manual_seed(0)
    model: Any = transformers.LlamaForCausalLM(config)  # type: ignore[no-untyped-call]  # transformers' own
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * noise * p.std())
    model.save_pretrained(folder)
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    fast: Any = transformers.PreTrainedTokenizerFast
    fast(tokenizer_object=words).save_pretrained(folder)
    return folder
