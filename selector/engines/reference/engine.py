"""The reference engine behind the `Engine` contract."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import torch
from transformers import AutoTokenizer

from selector.adapters import adapter
from selector.adapters.base import Drafter, Drafts, DraftSampling, Recording, SampledRecording
from selector.adapters.checkpoint import Checkpoint
from selector.adapters.ngram_model import NgramDrafter
from selector.adapters.recognise import refuse_as_target
from selector.adapters.served_only import only_served
from selector.engines.base import Acceptance, Generation, TokenScores
from selector.engines.reference.loop import decode
from selector.engines.reference.model import DecoderModel
from selector.engines.reference.record import record
from selector.engines.reference.sampling import probabilities
from selector.engines.reference.scoring import score
from selector.engines.reference.stepper import Sampler, Stepper
from selector.errors import DrafterMismatch, SelectorError
from selector.profile import DrafterInfo, EngineInfo, ModelInfo, Sampling
from selector.strategy import PLAIN, SERVED_METHODS, Method, Strategy
from selector.workload import Request

STEPS_PER_TIMING = 2


class ReferenceEngine:
    """Loads the target once and each drafter when first used. Not thread-safe: one decode at a time.

    A subclass with another `stepper` decodes by it; timings and recordings stay as they are.
    """

    stepper: type[Stepper] = Stepper

    def __init__(
        self,
        target: Path,
        name: str,
        drafters: Mapping[str, tuple[Method, Path]],
        *,
        dtype: str = "float32",
        device: str = "cpu",
        threads: int | None = None,
    ) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        refuse_as_target(Checkpoint(target))
        self.warnings = {n: self._check(m, p, target) for n, (m, p) in drafters.items()}
        self.model = DecoderModel(target, dtype, device)
        self.tokenizer = AutoTokenizer.from_pretrained(target, local_files_only=True)
        self.stop_ids = self._stop_ids(self.model)
        self._target_info = self.model.info(name)
        self._paths = dict(drafters)
        self._loaded: dict[str, Drafter] = {}
        self._prompts: dict[str, list[int]] = {}
        self._drafter_info = {n: self._describe(n, m, p) for n, (m, p) in drafters.items()}
        self._dtype = dtype

    @staticmethod
    def _check(method: Method, path: Path, target: Path) -> tuple[str, ...]:
        if method in SERVED_METHODS:
            raise DrafterMismatch(f"{path}: {only_served(method)}")
        return tuple(adapter(method).check(Checkpoint(path), Checkpoint(target)))

    @staticmethod
    def _stop_ids(model: DecoderModel) -> frozenset[int]:
        stop = model.model.generation_config.eos_token_id
        if stop is None:
            stop = model.config.eos_token_id
        return frozenset([stop] if isinstance(stop, int) else stop or ())

    def _describe(self, name: str, method: Method, path: Path) -> DrafterInfo:
        checkpoint = Checkpoint(path)
        item, longest = self.model.dtype.itemsize, self._target_info.max_model_len
        parameters = sum(_count(t.shape) for n, t in checkpoint.tensors.items() if n not in ("d2t", "t2d"))
        heads = checkpoint.whole("num_attention_heads")
        head = checkpoint.whole("head_dim", max(1, checkpoint.whole("hidden_size") // heads))
        heads = checkpoint.whole("num_key_value_heads", heads)
        info = self._target_info.model_dump() | {
            "name": name,
            "path": str(path),
            "config_sha256": _sha256(path / "config.json"),
            "parameters": parameters,
            "weight_bytes": parameters * item,
            "kv_bytes_per_token": 2 * heads * head * checkpoint.whole("num_hidden_layers", 1) * item,
            "vocab_size": checkpoint.whole("vocab_size"),
            "max_model_len": checkpoint.whole("max_position_embeddings", longest),
            "architecture": (checkpoint.architectures or ["unknown"])[0],
            "method": method,
            "warnings": self.warnings[name],
        }
        return DrafterInfo.model_validate(info)

    @property
    def info(self) -> EngineInfo:
        """This process's settings."""
        packages = {p: version(p) for p in ("torch", "transformers", "numpy")}
        packages |= {"packed_linears": str(self.model.packed), "forward": self.model.forward_by}
        return EngineInfo(
            name="reference",
            version=version("decoding-strategy-selector"),
            dtype=self._dtype,
            device=str(self.model.device),
            threads=torch.get_num_threads(),
            packages=packages,
        )

    @property
    def target(self) -> ModelInfo:
        """The loaded target."""
        return self._target_info

    @property
    def drafters(self) -> Mapping[str, DrafterInfo]:
        """The drafters that passed their checks."""
        return self._drafter_info

    def drafter(self, strategy: Strategy) -> Drafter | None:
        """The strategy's drafter, loaded at its first use."""
        if strategy.proposer not in self._loaded:
            path = self._paths[strategy.drafter][1] if strategy.drafter else None
            built = adapter(strategy.method).drafter(self.model, path, strategy)
            if built is None:
                return None
            self._loaded[strategy.proposer] = built
        return self._loaded[strategy.proposer]

    def prompt_ids(self, request: Request) -> list[int]:
        """Token ids after the model's chat template (plain tokens where it has none)."""
        if request.digest not in self._prompts:
            if self.tokenizer.chat_template:
                text = self.tokenizer.apply_chat_template(request.chat, tokenize=False, add_generation_prompt=True)
                ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            else:
                ids = self.tokenizer("\n".join(str(m.get("content") or "") for m in request.chat))["input_ids"]
            self._prompts[request.digest] = list(ids)
        return self._prompts[request.digest]

    def prompt_tokens(self, request: Request) -> int:
        """Length after the chat template."""
        return len(self.prompt_ids(request))

    def _limit(self, request: Request, k: int) -> int:
        """Output tokens that fit the model's length behind the prompt."""
        prompt, longest = self.prompt_tokens(request), self._target_info.max_model_len
        if prompt + k + 2 > longest:
            raise SelectorError(
                f"a prompt of {prompt} tokens leaves no room in the model's {longest}: shorten or drop it"
            )
        return min(request.max_tokens, longest - prompt - k - 1)

    def generate(self, request: Request, strategy: Strategy, *, seed: int) -> Generation:
        """Decode one request; the same seed gives the same tokens."""
        return decode(
            self.model,
            self.drafter(strategy),
            self.prompt_ids(request),
            k=strategy.k,
            max_tokens=self._limit(request, strategy.k),
            stop_ids=self.stop_ids,
            sampler=self._sampler(request.temperature, request.top_p, _own_seed(request, seed), strategy),
            stepping=self.stepper,
        )

    def record(self, requests: Sequence[Request], *, seed: int) -> list[Generation]:
        """Plain outputs in one padded batch; sampled rows draw from generators of their own."""
        return record(
            self.model,
            [self.prompt_ids(r) for r in requests],
            [self._limit(r, 0) for r in requests],
            [self._sampler(r.temperature, r.top_p, _own_seed(r, seed)) for r in requests],
            self.stop_ids,
        )

    def _sampler(self, temperature: float, top_p: float, seed: int, strategy: Strategy = PLAIN) -> Sampler:
        if temperature == 0:
            return Sampler()
        draws = strategy.draft_sample_method == "probabilistic"
        return Sampler(temperature, top_p, torch.Generator(self.model.device).manual_seed(seed), draws)

    def top_two_gap(self, tokens: Sequence[int]) -> float:
        """Difference of the two highest logits after `tokens`: how close a greedy choice was."""
        first, second = self._next_logits(tokens).topk(2).values.tolist()
        return float(first - second)

    def behind_best(self, tokens: Sequence[int], token: int) -> float:
        """How far the logit of `token` lies below the highest after `tokens`."""
        logits = self._next_logits(tokens)
        return float(logits.max() - logits[token])

    def _next_logits(self, tokens: Sequence[int]) -> torch.Tensor:
        self.model.tap(())
        ids = torch.tensor([list(tokens)], device=self.model.device)
        logits, _ = self.model.forward(ids, self.model.new_cache(1, len(tokens)), keep=1)
        return logits[0, -1].float()

    def score(
        self, output: Generation, strategies: Sequence[Strategy], *, temperature: float, top_p: float
    ) -> TokenScores:
        """Every token of an output against the target's own distribution at this setting, and against the drafters."""
        drafters = {
            s.family: (d, s.draft_sample_method == "probabilistic") for s in strategies if (d := self.drafter(s))
        }
        return score(self.model, output, drafters, temperature=temperature, top_p=top_p)

    @torch.inference_mode()
    def replay(
        self, recorded: Generation, strategy: Strategy, *, temperature: float = 0.0, top_p: float = 1.0, seed: int = 0
    ) -> Acceptance:
        """Acceptance at every position; the target runs once over the recording when its states or p are needed."""
        drafter, k, n = self.drafter(strategy), strategy.k, len(recorded.output_ids)
        if drafter is None or n < 2:
            return Acceptance((0,) * (n - 1), None if strategy.method != "ngram" else (0,) * (n - 1))
        drawn = strategy.draft_sample_method == "probabilistic" and temperature > 0
        tokens = torch.tensor(recorded.prompt_ids + recorded.output_ids, device=self.model.device)
        aux = sampled = None
        if drafter.aux_layers or drawn:
            self.model.tap(drafter.aux_layers)
            cache = self.model.new_cache(1, len(tokens))
            logits, aux = self.model.forward(tokens[None, :-1], cache, keep=n if drawn else 1)
            if drawn:
                emitted = tokens[len(recorded.prompt_ids) :, None]
                own = torch.cat([  # a few rows at a time: the whole vocabulary of each is needed for a moment only
                    probabilities(rows, temperature, top_p).gather(1, x)[:, 0]
                    for rows, x in zip(*(torch.split(t, 256) for t in (logits[0], emitted)), strict=True)
                ])  # fmt: skip
                u = torch.rand((n - 1, k), generator=torch.Generator().manual_seed(seed)).to(own.device)
                sampled = SampledRecording(temperature, own, u)
        recording = Recording(tokens, len(recorded.prompt_ids), None if aux is None else aux[0], sampled)
        accepted, proposed = drafter.replay(recording, k)
        return Acceptance(tuple(accepted), None if proposed is None else tuple(proposed))

    def step_seconds(
        self, strategy: Strategy, *, batch: int, context: int, sampling: Sampling, repeats: int
    ) -> Sequence[float]:
        """Each timing is the mean of a few steps whose acceptance is forced to alternate between none and one draft."""
        k = strategy.k
        drafter = _FixedWidth(k) if strategy.method == "ngram" else self.drafter(strategy)
        sampler = self._sampler({"greedy": 0.0}.get(sampling, 0.8), 0.9 if sampling == "top_p" else 1.0, 0, strategy)
        stepper = Stepper(self.model, drafter, sampler, batch, context + (STEPS_PER_TIMING + 1) * (k + 1) + 1)

        def once() -> float:
            stepper.pretend(context)
            start = time.perf_counter()
            for i in range(STEPS_PER_TIMING):
                stepper.step(k, forced=i % 2 if k else 0)
            return (time.perf_counter() - start) / STEPS_PER_TIMING

        stepper.pretend(context)
        stepper.step(k, forced=0)  # the first step allocates and is not like the others
        return [once() for _ in range(repeats)]

    def prefill_seconds(self, strategy: Strategy, *, prompt_tokens: int, repeats: int) -> Sequence[float]:
        """One row of `prompt_tokens` ids."""
        prompt = torch.arange(prompt_tokens, device=self.model.device)[None] % self._target_info.vocab_size
        stepper = Stepper(self.model, self.drafter(strategy), Sampler(), 1, prompt_tokens + 2)

        def once() -> float:
            stepper.cache.crop_to(0)
            if stepper.drafter:
                stepper.drafter.start(1, prompt_tokens + 2)
            start = time.perf_counter()
            stepper.prefill(prompt)
            return time.perf_counter() - start

        once()
        return [once() for _ in range(repeats)]


class _FixedWidth(NgramDrafter):
    """Times an n-gram step with exactly k proposals: the real lookup over the context, then made-up ids."""

    def __init__(self, k: int) -> None:
        super().__init__(2, 4)
        self.k = k

    def draft(self, k: int, sampling: DraftSampling | None = None) -> Drafts:
        """The lookup's cost and the wanted width."""
        super().draft(k)
        return Drafts(torch.ones((self.tokens.shape[0], self.k), dtype=torch.long))


def _own_seed(request: Request, seed: int) -> int:
    """Every prompt draws from a stream of its own, the same one in every run with this seed."""
    return seed + int(request.digest[:8], 16)


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for n in shape:
        total *= n
    return total


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
