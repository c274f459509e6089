"""Every variant of an EAGLE head drafts what the slow computation of `heads_by_hand` drafts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import torch
    import transformers
else:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file

from selector.adapters import adapter
from selector.adapters.base import FINAL, Drafts, DraftSampling, Recording
from selector.adapters.checkpoint import Checkpoint
from selector.adapters.head_config import HeadConfig, eagle3_config, eagle_config
from selector.adapters.head_layout import needed, optional, plain_name
from selector.adapters.head_model import HeadDrafter
from selector.engines.reference.model import DecoderModel
from selector.engines.reference.stepper import Sampler, Stepper
from selector.strategy import Method, Strategy

from . import heads_by_hand

HIDDEN, VOCABULARY, REDUCED, LAYERS, K = 32, 97, 40, 8, 4
FAMILIES = ("Llama", "Qwen2", "Qwen3")
BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": 40,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1, "vocab_size": VOCABULARY,
    "rms_norm_eps": heads_by_hand.EPS, "max_position_embeddings": 256,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
EAGLE3: dict[str, dict[str, Any]] = {
    "plain": {},
    "reduced vocabulary": {"draft_vocab_size": REDUCED},
    "norm before fc": {"norm_before_fc": True},
    "norm before fc, nested": {"eagle_config": {"norm_before_fc": True}},
    "norm of each state": {"fc_norm": True, "norm_before_fc": True},
    "norm before residual": {"norm_before_residual": True},
    "normed output": {"norm_output": True},
    "chosen layers": {"eagle_aux_hidden_state_layer_ids": [0, 3, 8]},
    "two layers, nested": {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [6, 1]}},
    "four layers": {"eagle_aux_hidden_state_layer_ids": [1, 2, 5, 7], "num_aux_hidden_states": 4},
    "final state only": {"eagle_config": {"use_aux_hidden_state": False}},
    "another width": {"hidden_size": 24, "target_hidden_size": HIDDEN, "head_dim": 8},
    "three layers": {"num_hidden_layers": 3, "norm_before_residual": True},
    "logit scale": {"logit_scale": 0.5, "draft_vocab_size": REDUCED},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "Qwen3 layers": {"architectures": ["Qwen3ForCausalLM"], "head_dim": 16, "attention_bias": True},
    "one key head": {"num_key_value_heads": 1, "rope_theta": 500.0},
    "llama3 rope": {"rope_scaling": LLAMA3, "rope_theta": 500.0},
    "linear rope": {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "yarn rope": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}},
}
EAGLE: dict[str, dict[str, Any]] = {
    "plain": {},
    "two layers": {"num_hidden_layers": 2},
    "logit scale": {"logit_scale": 2.0},
    "biases of q, k and v": {"qkv_bias": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "llama3 rope": {"rope_scaling": LLAMA3},
}
CASES = (
    [("eagle3", name, family, ()) for name in EAGLE3 for family in FAMILIES[:1]]
    + [("eagle3", "reduced vocabulary", family, ()) for family in FAMILIES[1:]]
    + [("eagle3", "plain", "Llama", ("embed_tokens.weight",)), ("eagle3", "plain", "Llama", ("lm_head.weight",))]
    + [("eagle", name, "Llama", ()) for name in EAGLE]
    + [("eagle", "plain", family, ("embed_tokens.weight",)) for family in FAMILIES]
)


@pytest.fixture(scope="module", params=[True, False], ids=["own pass", "transformers' pass"])
def targets(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, DecoderModel]:
    """A tiny random target of each family, not tied, so that embedding and output head differ."""
    found = {}
    for family in FAMILIES:
        torch.manual_seed(1)
        config = getattr(transformers, f"{family}Config")(
            vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=48, num_hidden_layers=LAYERS,
            num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=256,
            tie_word_embeddings=False, initializer_range=0.2,
        )  # fmt: skip
        folder = tmp_path_factory.mktemp(family)
        model: Any = getattr(transformers, f"{family}ForCausalLM")(config)
        with torch.no_grad():
            for name, p in model.named_parameters():
                if "norm" in name:
                    p.mul_(1 + 0.2 * torch.randn_like(p))
        model.save_pretrained(folder)
        found[family] = DecoderModel(folder, "float32", "cpu", pack=request.param, lean=request.param)
    return found


def write_head(folder: Path, method: str, config: dict[str, Any], own: tuple[str, ...], target: DecoderModel) -> Path:
    """A random head; `own` names what it does not borrow from the target."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    head = (eagle_config if method == "eagle" else eagle3_config)(Checkpoint(folder))
    shapes = needed(head) | {name: optional(head)[name] for name in own}
    generator = torch.Generator().manual_seed(len(shapes))
    tensors: dict[str, torch.Tensor] = {
        n: torch.randn(s, generator=generator) * (0.3 if len(s) > 1 else 0.2) for n, s in shapes.items()
    }
    for name in tensors:
        if "norm" in name:
            tensors[name] += 1
    if "d2t" in tensors:
        chosen = torch.randperm(VOCABULARY, generator=generator)[:REDUCED].sort().values
        tensors["d2t"] = chosen - torch.arange(REDUCED)
    names = {n: n.replace("layers.0.", "midlayer.") if method == "eagle3" else n for n in tensors}
    first = {names[n]: t for n, t in tensors.items() if "mlp" not in n}
    save_file(first, folder / "model-00001-of-00002.safetensors")
    save_file({names[n]: t for n, t in tensors.items() if "mlp" in n}, folder / "model-00002-of-00002.safetensors")
    return folder


class Slow:
    """The target by transformers and the head by hand."""

    def __init__(self, method: str, folder: Path, target: DecoderModel) -> None:
        self.method, self.config = method, Checkpoint(folder).config
        self.tensors: dict[str, torch.Tensor] = {}
        for file in folder.glob("*.safetensors"):
            self.tensors |= {plain_name(name): tensor for name, tensor in load_file(file).items()}
        auto: Any = transformers.AutoModelForCausalLM
        self.model = auto.from_pretrained(target.path)
        section = self.config.get("eagle_config") or {}
        ids = self.config.get("eagle_aux_hidden_state_layer_ids") or section.get("eagle_aux_hidden_state_layer_ids")
        final = method == "eagle" or section.get("use_aux_hidden_state") is False
        self.layers = [FINAL] if final else sorted(ids or (2, LAYERS // 2, LAYERS - 3))

    def states(self, ids: list[int]) -> list[torch.Tensor]:
        unnormed: dict[int, torch.Tensor] = {}
        hook = self.model.model.layers[-1].register_forward_hook(lambda m, i, out: unnormed.setdefault(0, out))
        hidden = self.model(torch.tensor([ids]), output_hidden_states=True).hidden_states
        hook.remove()
        return [unnormed[0][0] if i == LAYERS else hidden[i][0] for i in self.layers]  # hidden[-1] is normed

    @torch.no_grad()
    def drafts(self, ids: list[int], k: int) -> list[int]:
        states = [s[:-1] for s in self.states(ids)]
        target = self.model.model.embed_tokens.weight, self.model.lm_head.weight
        return heads_by_hand.drafts(self.method, self.tensors, self.config, target, ids, states, k)


def built(method: Method, folder: Path, target: DecoderModel) -> HeadDrafter:
    assert adapter(method).check(Checkpoint(folder), Checkpoint(target.path)) == []
    strategy = Strategy(method=method, drafter="h", num_speculative_tokens=K)
    drafter = adapter(method).drafter(target, folder, strategy)
    assert isinstance(drafter, HeadDrafter)
    return drafter


def seen(target: DecoderModel, drafter: HeadDrafter, ids: list[int]) -> torch.Tensor:
    target.tap(drafter.aux_layers)
    _, aux = target.forward(torch.tensor([ids]), target.new_cache(1, len(ids)))
    assert aux is not None
    return aux


def random_ids(n: int) -> list[int]:
    return [int(i) for i in torch.randint(VOCABULARY, (n,), generator=torch.Generator().manual_seed(n))]


@pytest.mark.parametrize(("method", "variant", "family", "own"), CASES)
def test_drafts_are_those_of_the_slow_computation(
    tmp_path: Path, targets: dict[str, DecoderModel], method: Method, variant: str, family: str, own: tuple[str, ...]
) -> None:
    config, target = BASE | (EAGLE if method == "eagle" else EAGLE3)[variant], targets[family]
    folder = write_head(tmp_path / "h", method, config, own, target)
    slow, drafter = Slow(method, folder, target), built(method, folder, target)
    prompt = random_ids(9)
    aux = seen(target, drafter, prompt)
    drafter.start(1, 64)
    drafter.prefill(torch.tensor([prompt]), aux)
    ids, emitted = prompt, [5]
    for more in ([7, 8, 9], [11], []):  # three drafts accepted, none accepted
        drafter.commit(torch.tensor([emitted]), aux[:, -len(emitted) :])
        ids = ids + emitted
        assert drafter.draft(K).tokens.tolist() == [slow.drafts(ids, K)]
        emitted, aux = more, seen(target, drafter, ids + more[:-1])


@pytest.mark.parametrize(("method", "variant"), [("eagle", "plain"), ("eagle3", "reduced vocabulary")])
def test_replay_accepts_what_the_slow_computation_would_have_drafted(
    tmp_path: Path, targets: dict[str, DecoderModel], method: Method, variant: str
) -> None:
    config, target = BASE | (EAGLE if method == "eagle" else EAGLE3)[variant], targets["Llama"]
    folder = write_head(tmp_path / "h", method, config, (), target)
    slow, drafter = Slow(method, folder, target), built(method, folder, target)
    ids = random_ids(5)
    for right in (2, 0, K, 1, 3):
        ids = ids + slow.drafts(ids, K)[:right] + random_ids(right + 1)[:1]
    aux = seen(target, drafter, ids)[0]
    accepted, _ = drafter.replay(Recording(torch.tensor(ids), 5, aux), K)
    wanted = []
    for t in range(6, len(ids)):
        guess, truth = slow.drafts(ids[:t], K), ids[t : t + K]
        wanted.append(next((i for i, (a, b) in enumerate(zip(guess, truth, strict=False)) if a != b), len(truth)))
    assert accepted == wanted
    assert max(wanted) >= 3


@pytest.mark.parametrize(("method", "variant"), [("eagle", "plain"), ("eagle3", "plain"), ("eagle3", "chosen layers")])
def test_a_decode_in_the_engine_drafts_the_same(
    tmp_path: Path, targets: dict[str, DecoderModel], method: Method, variant: str
) -> None:
    config, target = BASE | (EAGLE if method == "eagle" else EAGLE3)[variant], targets["Llama"]
    folder = write_head(tmp_path / "h", method, config, (), target)
    slow, drafter, ids = Slow(method, folder, target), built(method, folder, target), random_ids(11)
    stepper = Stepper(target, drafter, Sampler(), 1, 64)
    ids += stepper.prefill(torch.tensor([ids]))
    for _ in range(4):
        wanted = slow.drafts(ids, K)
        listening = Listening(drafter)
        stepper.drafter = listening  # type: ignore[assignment]  # it has only what a step calls
        ids += stepper.step(K).emitted[0]
        assert listening.heard == [wanted]


class Listening:
    """A drafter whose drafts can be read afterwards."""

    def __init__(self, drafter: HeadDrafter) -> None:
        self.commit, self._draft = drafter.commit, drafter.draft

    def draft(self, k: int, sampling: DraftSampling | None = None) -> Drafts:
        drafts = self._draft(k, sampling)
        self.heard = drafts.tokens.tolist()
        return drafts


def drawn_from(drafter: HeadDrafter, target: DecoderModel) -> torch.Tensor:
    """What the drafts behind a short text are drawn from: (1, K, vocabulary)."""
    prompt = random_ids(6)
    aux = seen(target, drafter, prompt)
    drafter.start(1, 64)
    drafter.prefill(torch.tensor([prompt]), aux)
    drafter.commit(torch.tensor([[3]]), aux[:, -1:])
    q = drafter.draft(K, DraftSampling(1.0, torch.Generator().manual_seed(0))).q
    assert q is not None
    return q


def test_drawn_drafts_come_from_the_reduced_vocabulary(tmp_path: Path, targets: dict[str, DecoderModel]) -> None:
    target = targets["Llama"]
    folder = write_head(tmp_path / "h", "eagle3", BASE | {"draft_vocab_size": REDUCED}, (), target)
    q = drawn_from(built("eagle3", folder, target), target)
    assert q.shape == (1, K, VOCABULARY)
    assert torch.allclose(q.sum(-1), torch.ones(1, K))
    assert int((q.sum((0, 1)) > 0).sum()) <= REDUCED


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
def test_the_logit_scale_shows_in_what_drafts_are_drawn_from(
    method: Method, tmp_path: Path, targets: dict[str, DecoderModel]
) -> None:
    """The likeliest draft is the same under every scale that is allowed, so only q can tell."""
    target = targets["Llama"]
    plain, halved = (
        drawn_from(built(method, write_head(tmp_path / str(s), method, BASE | s, (), target), target), target)[0, 0]
        for s in ({}, {"logit_scale": 0.5})
    )
    assert torch.allclose(halved, torch.softmax(plain.log() / 2, -1), atol=1e-5)


def test_a_head_holds_exactly_the_tensors_that_are_checked(tmp_path: Path, targets: dict[str, DecoderModel]) -> None:
    """The layout that is checked without torch and the modules that are loaded say the same."""
    for i, variant in enumerate(EAGLE3.values()):
        folder = write_head(tmp_path / str(i), "eagle3", BASE | variant, (), targets["Llama"])
        config: HeadConfig = eagle3_config(Checkpoint(folder))
        own = {"embed_tokens.weight", "d2t"}
        held = {n: tuple(p.shape) for n, p in loose(built("eagle3", folder, targets["Llama"])).items()}
        assert held == {n: s for n, s in needed(config).items() if n not in own}


def loose(drafter: HeadDrafter) -> dict[str, torch.Tensor]:
    """A head's tensors as they are before packing."""
    from selector.adapters.eagle3_head import Eagle3Head

    head = drafter.head
    fresh = Eagle3Head(head.config, head.rope, head.lent, own_output=getattr(head, "lm_head", None) is not None)
    return dict(fresh.state_dict())
