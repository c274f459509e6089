"""Branch-mask replay gives what drafting step by step gives, for greedy and for drawn drafts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    import torch
    import transformers
else:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")

from selector.adapters.base import Recording, SampledRecording
from selector.adapters.draft_model_model import ModelDrafter  # after the skip, since these import torch
from selector.engines.reference.loop import decode
from selector.engines.reference.model import DecoderModel
from selector.engines.reference.sampling import probabilities
from selector.engines.reference.stepper import Sampler
from selector.walks import walk

K, PROMPT, OUTPUT, TEMPERATURE, TOP_P = 4, 7, 24, 0.8, 0.9


def tiny(folder: Path, noise: float, layers: int = 2) -> Path:
    """A random Llama of a few thousand parameters; `noise` moves its weights away from the one at noise 0."""
    config = transformers.LlamaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=False, initializer_range=0.3,
    )  # fmt: skip
    torch.manual_seed(0)
    model: Any = transformers.LlamaForCausalLM(config)  # type: ignore[no-untyped-call]  # transformers' own
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * noise * p.std())
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> DecoderModel:
    return DecoderModel(tiny(tmp_path_factory.mktemp("target"), 0.0), "float32", "cpu", pack=False)


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory, target: DecoderModel) -> ModelDrafter:
    return ModelDrafter(tiny(tmp_path_factory.mktemp("draft"), 0.1), target)


def prompt_ids(seed: int) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(1, 97, PROMPT)]


def recorded(target: DecoderModel, seed: int, sampled: bool) -> Recording:
    """One plain output, and with `sampled` what drawn drafts need to know about it."""
    generator = torch.Generator().manual_seed(seed)
    sampler = Sampler(TEMPERATURE, TOP_P, generator) if sampled else Sampler()
    g = decode(target, None, prompt_ids(seed), k=0, max_tokens=OUTPUT, stop_ids=frozenset(), sampler=sampler)
    tokens = torch.tensor(g.prompt_ids + g.output_ids)
    if not sampled:
        return Recording(tokens, PROMPT)
    logits, _ = target.forward(tokens[None, :-1], target.new_cache(1, len(tokens)), keep=OUTPUT)
    p = probabilities(logits[0], TEMPERATURE, TOP_P).gather(1, tokens[PROMPT:, None])[:, 0]
    return Recording(
        tokens, PROMPT, None, SampledRecording(TEMPERATURE, p, torch.rand((OUTPUT - 1, K), generator=generator))
    )


def step_by_step(drafter: ModelDrafter, recording: Recording) -> list[int]:
    """From every position alone: one pass over the prefix per draft, no cache and no mask of ours."""
    accepted = []
    for at in range(1, OUTPUT):
        count = 0
        while count < K and at + count < OUTPUT:
            prefix = recording.tokens[: PROMPT + at + count]
            logits, _ = drafter.model.forward(prefix[None], drafter.model.new_cache(1, len(prefix)), keep=1)
            truth = int(recording.tokens[PROMPT + at + count])
            if recording.sampled is None:
                through = int(logits[0, -1].argmax()) == truth
            else:
                q = float(torch.softmax(logits[0, -1] / TEMPERATURE, -1)[truth])
                chance = min(1.0, q / float(recording.sampled.p[at + count]))
                through = float(recording.sampled.u[at - 1, count]) < chance
            if not through:
                break
            count += 1
        accepted.append(count)
    return accepted


@pytest.mark.parametrize("sampled", [False, True], ids=["greedy drafts", "drawn drafts"])
def test_the_masked_passes_equal_drafting_step_by_step(
    target: DecoderModel, drafter: ModelDrafter, sampled: bool
) -> None:
    seen: set[int] = set()
    for seed in range(4):
        recording = recorded(target, seed, sampled)
        got, proposed = drafter.replay(recording, K)
        assert proposed is None
        assert got == step_by_step(drafter, recording)
        seen |= set(got)
    assert {0, 1, 2} <= seen, "acceptance too one-sided to prove anything"


def test_drawn_drafts_are_accepted_live_as_often_as_replay_foretells(
    target: DecoderModel, drafter: ModelDrafter
) -> None:
    """Different random streams, so totals are compared: tokens per step within four standard errors."""
    replayed: list[float] = []
    live: list[float] = []
    greedy: list[float] = []
    for seed in range(60):
        recording = recorded(target, seed, True)
        walked = walk(drafter.replay(recording, K)[0], K)
        replayed.append((OUTPUT - 1) / walked.steps)
        for kept, draws in ((live, True), (greedy, False)):
            sampler = Sampler(TEMPERATURE, TOP_P, torch.Generator().manual_seed(1000 + seed), draws)
            g = decode(target, drafter, prompt_ids(seed), k=K, max_tokens=OUTPUT, stop_ids=frozenset(), sampler=sampler)
            kept.append((OUTPUT - 1) / g.decode_steps)
    error = float(np.hypot(np.std(replayed), np.std(live)) / np.sqrt(60))
    assert abs(np.mean(replayed) - np.mean(live)) < 4 * error, (np.mean(replayed), np.mean(live), error)
    assert abs(np.mean(greedy) - np.mean(live)) > 2 * error, "the two ways to draft cannot be told apart here"
