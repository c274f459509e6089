"""Our own forward pass computes what transformers' does, on tiny random models of every kind it knows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import torch
    import transformers
else:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")

from selector.adapters.base import FINAL
from selector.engines.reference import lean  # after the skip, since it imports torch
from selector.engines.reference.model import DecoderModel

VOCABULARY, LAYERS = 97, 3
ROPE = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama with biases, tied": (
        "Llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "llama3 rope": ("Llama", {"rope_parameters": ROPE}),
    "mistral, head size of its own": ("Mistral", {"sliding_window": None, "head_dim": 16}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
}  # fmt: skip


def build(folder: Path, name: str, **options: Any) -> Path:
    """A saved random model; norms and biases are random too, so that none of them can be forgotten."""
    config = getattr(transformers, f"{name}Config")(**{
        "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": LAYERS,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
        "tie_word_embeddings": False, "initializer_range": 0.3, **options,
    })  # fmt: skip
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name, options = KINDS[request.param]
    return build(tmp_path_factory.mktemp("model"), name, **options)


def both(folder: Path, dtype: str = "float32", *, pack: bool = False) -> tuple[DecoderModel, DecoderModel]:
    ours = DecoderModel(folder, dtype, "cpu", pack=pack)
    theirs = DecoderModel(folder, dtype, "cpu", pack=pack, lean=False)
    assert (ours.forward_by, theirs.forward_by) == ("lean", "transformers")
    return ours, theirs


def passes(model: DecoderModel) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
    """A prompt, a step of four, a crop, a step of one, a masked pass at positions of its own, a wide step."""
    ids = torch.randint(VOCABULARY, (2, 96), generator=torch.Generator().manual_seed(1))
    model.tap((1, LAYERS, FINAL))
    cache = model.new_cache(2, 96)
    found = [model.forward(ids[:, :20], cache, keep=1), model.forward(ids[:, 20:24], cache)]
    cache.crop_to(22)
    found.append(model.forward(ids[:, 22:23], cache))
    mask = torch.zeros(1, 1, 3, 26)
    mask[..., 0, 24:] = mask[..., 1, 21:24] = mask[..., 2, 5] = float("-inf")
    positions = torch.tensor([[23, 21, 25]])
    found.append(model.forward(ids[:, 23:26], cache, positions=positions, mask=mask.to(model.dtype), keep=2))
    found.append(model.forward(ids[:, 26:66], cache))
    assert cache.length == 66
    return found


def same(ours: DecoderModel, theirs: DecoderModel, tolerance: float) -> None:
    for (logits, taps), (their_logits, their_taps) in zip(passes(ours), passes(theirs), strict=True):
        assert taps is not None
        assert their_taps is not None
        for a, b in ((logits, their_logits), (taps, their_taps)):
            assert a.shape == b.shape
            assert float((a - b).float().norm() / b.float().norm()) < tolerance


@pytest.mark.parametrize("pack", [False, True])
def test_logits_and_hidden_states_are_transformers(folder: Path, pack: bool) -> None:
    same(*both(folder, pack=pack), tolerance=1e-5)


@pytest.mark.parametrize("pack", [False, True])
def test_a_prompt_of_which_only_the_end_is_read_gives_the_same_end(folder: Path, pack: bool) -> None:
    ours, theirs = both(folder, pack=pack)
    ids = torch.randint(VOCABULARY, (2, 20), generator=torch.Generator().manual_seed(2))
    for keep in (1, 4):
        caches = [m.new_cache(2, 24) for m in (ours, theirs)]
        ends = [m.forward(ids, c, keep=keep)[0] for m, c in zip((ours, theirs), caches, strict=True)]
        after = [m.forward(ids[:, :2], c)[0] for m, c in zip((ours, theirs), caches, strict=True)]
        assert torch.allclose(ends[0], ends[1], atol=1e-4)
        assert torch.allclose(after[0], after[1], atol=1e-4)


def test_the_same_in_bfloat16(folder: Path) -> None:
    same(*both(folder, "bfloat16"), tolerance=0.1)


@pytest.mark.parametrize("pack", [False, True])
def test_a_left_padded_batch_gives_each_rows_own_logits(folder: Path, pack: bool) -> None:
    from selector.engines.reference.record import _prompt_mask, _row_mask

    model, _ = both(folder, pack=pack)
    prompts = [[5, 6, 7, 8, 9], [11, 12]]
    pad = torch.tensor([0, 3])
    tokens = torch.tensor([[5, 6, 7, 8, 9], [0, 0, 0, 11, 12]])
    cache = model.new_cache(2, 6)
    positions = (torch.arange(5)[None] - pad[:, None]).clamp(min=0)
    model.forward(tokens, cache, positions=positions, mask=_prompt_mask(pad, 5, model.dtype), keep=1)
    last = torch.tensor([[1], [2]])
    batched, _ = model.forward(last, cache, positions=5 - pad[:, None], mask=_row_mask(pad, 6, model.dtype))
    for row, prompt, token in zip(batched, prompts, (1, 2), strict=True):
        alone, _ = model.forward(torch.tensor([[*prompt, token]]), model.new_cache(1, 8), keep=1)
        assert torch.allclose(row, alone[0], atol=1e-4)


def test_a_full_cache_is_refused(folder: Path) -> None:
    model, _ = both(folder)
    with pytest.raises(ValueError, match="cache of 4 tokens is full: 5 asked for"):
        model.forward(torch.ones(1, 5, dtype=torch.long), model.new_cache(1, 4))


def test_a_pass_that_differs_leaves_transformers_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lean.TOLERANCE, torch.float32, 0.0)
    fallen = DecoderModel(folder, "float32", "cpu")
    assert fallen.forward_by == "transformers"
    same(fallen, DecoderModel(folder, "float32", "cpu", lean=False), tolerance=1e-6)


@pytest.mark.parametrize(
    "options", [{"hidden_act": "gelu"}, {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}]
)
def test_what_it_does_not_know_runs_in_transformers(tmp_path: Path, options: dict[str, Any]) -> None:
    model = DecoderModel(build(tmp_path, "Llama", **options), "float32", "cpu")
    assert model.forward_by == "transformers"
    assert torch.isfinite(model.forward(torch.ones(1, 5, dtype=torch.long), model.new_cache(1, 8))[0]).all()
