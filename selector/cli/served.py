"""Options of `selector profile` for engines that serve, and the servers they name."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from selector.cli.models import named
from selector.cli.strategies import parse
from selector.errors import SelectorError
from selector.strategy import METHODS, PLAIN, Strategy

if TYPE_CHECKING:
    from selector.cli.progress import ProgressLine
    from selector.engines.served.base import Servers

F = TypeVar("F", bound=Callable[..., Any])

#: Name, what click is told, help.
_OPTIONS: tuple[tuple[tuple[str, ...], dict[str, Any], str], ...] = (
    (
        ("--vllm", "vllm_path"),
        {"metavar": "PATH"},
        "engine vllm: the vllm command, or a Python or virtual environment that has it.  [default: vllm on PATH]",
    ),
    (
        ("--launch", "launch_template"),
        {"metavar": "TEMPLATE"},
        "engine vllm: how a server is started instead, such as "
        "'docker run --rm --gpus all --network host vllm/vllm-openai {args}'.",
    ),
    (
        ("--method", "methods"),
        {"type": click.Choice([m for m in METHODS if m != "none"]), "multiple": True},
        "engine vllm: measure these methods only; may repeat.  [default: ngram, every drafter's, and suffix and mtp "
        "where they can run]",
    ),
    (
        ("--tensor-parallel",),
        {"type": click.IntRange(min=1), "default": 1, "show_default": True},
        "engine vllm: GPUs (or ranks) that a server uses.",
    ),
    (
        ("--draft-tensor-parallel",),
        {"type": click.IntRange(min=1)},
        "engine vllm: those of the drafter, 1 or the target's.",
    ),
    (("--quantization",), {}, "engine vllm: as of vllm serve."),
    (
        ("--max-num-seqs",),
        {"type": click.IntRange(min=1)},
        "engine vllm: seats of a server.  [default: what the loads need]",
    ),
    (
        ("--max-model-len",),
        {"type": click.IntRange(min=64)},
        "engine vllm: longest context.  [default: the model's]",
    ),
    (
        ("--engine-arg", "engine_args"),
        {"multiple": True, "metavar": "KEY=VALUE"},
        "engine vllm: a further option of vllm serve, such as gpu-memory-utilization=0.8; may repeat.",
    ),
    (
        ("--env", "environment"),
        {"multiple": True, "metavar": "NAME=VALUE"},
        "engine vllm: the server's environment; may repeat.",
    ),
    (
        ("--port",),
        {"type": click.IntRange(1, 65535)},
        "engine vllm: the servers' port.  [default: a free one; 8000 with --launch]",
    ),
    (
        ("--ready-timeout", "ready_seconds"),
        {"type": click.IntRange(min=1), "default": 600, "show_default": True},
        "engine vllm: seconds a server may take to start.",
    ),
    (
        ("--base-url", "base_urls"),
        {"multiple": True, "metavar": "[STRATEGY=]URL"},
        "engine endpoint: a server that runs, and what it decodes by, such as none=http://host:8000 or "
        "'eagle3 k=4=http://host:8001'; may repeat. Its key: SELECTOR_API_KEY in the environment.",
    ),
)


def served_options(command: F) -> F:
    """Adds the options to a command."""
    for names, settings, text in reversed(_OPTIONS):
        command = click.option(*names, help=text, **settings)(command)
    return command


def vllm_servers(model: Path | None, options: dict[str, Any], progress: ProgressLine, logs: Path) -> Servers:
    """Servers that `--engine vllm` starts; without MODEL the embedded model and its drafters."""
    from selector.engines.served.command import find_launcher
    from selector.engines.served.options import ServeOptions, engine_args, environment
    from selector.engines.served.vllm import VllmServers

    serve = ServeOptions(
        dtype=options["dtype"] or "auto", quantization=options["quantization"],
        tensor_parallel=options["tensor_parallel"], draft_tensor_parallel=options["draft_tensor_parallel"],
        max_num_seqs=options["max_num_seqs"], max_model_len=options["max_model_len"],
        engine_args=engine_args(options["engine_args"]), environment=environment(options["environment"]),
        port=options["port"] or (8000 if options["launch_template"] else None), ready_seconds=options["ready_seconds"],
    )  # fmt: skip
    launcher = find_launcher(options["vllm_path"], options["launch_template"])
    if launcher.note:
        progress.say(launcher.note)
    drafters, name = named(options["drafters"]), None
    if model is None:
        from selector.embedded import TARGET_NAME, embedded_drafters, embedded_target

        target, name = str(embedded_target(progress.say)), TARGET_NAME
        drafters = drafters or embedded_drafters(progress.say)
    else:
        target = str(model)
    return VllmServers(launcher, target, name, drafters, serve, logs=logs, say=progress.stage)


def endpoint_servers(model: Path | None, options: dict[str, Any], say: Callable[[str], None]) -> Servers:
    """Servers that run already (`--engine endpoint`)."""
    from selector.engines.served.endpoint import EndpointServers, named_drafters

    if not options["base_urls"]:
        raise click.UsageError("--engine endpoint needs --base-url [STRATEGY=]URL")
    drafters = named_drafters(named(options["drafters"]), str(model) if model else None)
    urls: dict[Strategy, str] = {}
    for text in options["base_urls"]:
        told, url = _told(text)
        strategy = PLAIN if told in ("", "none") else parse(told, drafters, "--base-url")
        if strategy in urls:
            raise SelectorError(f"--base-url {text!r}: {strategy.label} has {urls[strategy]} already")
        urls[strategy] = url
    return EndpointServers(urls, str(model) if model else None, drafters, say=say)


def _told(text: str) -> tuple[str, str]:
    """Strategy (or nothing) and URL of a `--base-url`."""
    match = re.fullmatch(r"(?:(.*)=)?(https?://\S+)", text.strip())
    if not match:
        raise SelectorError(f"--base-url {text!r}: write URL or STRATEGY=URL, such as none=http://localhost:8000")
    return (match[1] or "").strip(), match[2]
