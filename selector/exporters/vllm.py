"""Writes what starts vLLM with a policy: one folder per pool."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from selector.errors import ExportError
from selector.exporters.vllm_config import engine_yaml, speculative_config
from selector.policy import Policy, Pool

__all__ = ["engine_yaml", "export_vllm", "llm_kwargs", "speculative_config", "stale_folders"]

#: Options of the HTTP server, which `LLM(...)` does not know.
_SERVER_ONLY = frozenset({
    "host", "port", "uds", "api-key", "root-path", "chat-template", "response-role",
    "enable-auto-tool-choice", "tool-call-parser", "uvicorn-log-level",
    "allow-credentials", "allowed-origins", "allowed-methods",
    "allowed-headers", "ssl-keyfile", "ssl-certfile", "ssl-ca-certs", "api-server-count", "middleware",
})  # fmt: skip
_BAD_IN_FOLDER = set('/\\:*?"<>|')


def export_vllm(
    policy: Policy,
    out_dir: str | Path,
    *,
    model_paths: Mapping[str, str] | None = None,
    engine_args: Mapping[str, Any] | None = None,
    allow_k0: bool = False,
) -> list[Path]:
    """Write `OUT/<pool>/` for every pool and return the files.

    `model_paths` maps the names of target and drafters to what the server will see; `engine_args` are further
    `vllm serve` options. Everything is checked before anything is written; raises `ExportError`.
    """
    _check_folders([pool.name for pool in policy.pools])
    written = {
        pool.name: _files(policy, pool, engine_yaml(policy, pool, model_paths, engine_args, allow_k0=allow_k0))
        for pool in policy.pools
    }
    paths: list[Path] = []
    for name, files in written.items():
        folder = Path(out_dir) / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "speculative-config.json").unlink(missing_ok=True)  # of an earlier export; plain pools have none
            for file, text in files.items():
                (folder / file).write_text(text, "utf-8")
                paths.append(folder / file)
        except OSError as error:
            raise ExportError(f"{folder}: cannot be written ({error.strerror}); choose another --out") from error
    return paths


def stale_folders(policy: Policy, out_dir: str | Path) -> list[Path]:
    """Folders in `out_dir` that an earlier export wrote for pools this policy does not have; left as they are."""
    names = {pool.name for pool in policy.pools}
    return sorted(f.parent for f in Path(out_dir).glob("*/engine.yaml") if f.parent.name not in names)


def llm_kwargs(engine: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings as keywords of `vllm.LLM`; options of the HTTP server are left out."""
    kwargs: dict[str, Any] = {}
    for option, value in engine.items():
        negated = option.startswith("no-") and value is True
        name = option.removeprefix("no-") if negated else option
        if name not in _SERVER_ONLY:
            kwargs[name.replace("-", "_")] = False if negated else value
    return kwargs


def _files(policy: Policy, pool: Pool, engine: dict[str, Any]) -> dict[str, str]:
    kwargs = llm_kwargs(engine)
    files = {
        "engine.yaml": _yaml(engine),
        "llm_kwargs.json": _json(kwargs, indent=1) + "\n",
        "serve.py": _python(kwargs),
        "start.txt": _start(policy, pool, engine),
    }
    if "speculative-config" in engine:
        files["speculative-config.json"] = _json(engine["speculative-config"]) + "\n"
    return files


def _yaml(engine: dict[str, Any]) -> str:
    text = "# start with: vllm serve --config engine.yaml    (two words: --config=FILE is silently ignored)\n"
    text += yaml.safe_dump(engine, sort_keys=False, allow_unicode=True, width=1000)
    if yaml.safe_load(text) != engine:
        raise ExportError("a value does not survive YAML; look at --engine-arg and --model-path for odd characters")
    return text


def _json(value: Any, indent: int | None = None) -> str:
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False, indent=indent)
    except (TypeError, ValueError) as error:
        raise ExportError(f"an engine option cannot be written as JSON ({error})") from error


def _python(kwargs: Mapping[str, Any]) -> str:
    """`LLM(...)` with literals only; under the main guard, as vLLM's workers import the file again."""
    lines = "".join(f"        {name}={value!r},\n" for name, value in kwargs.items())
    return (
        '"""The settings of this pool for offline use."""\n\nfrom vllm import LLM\n\n'
        f'if __name__ == "__main__":\n    llm = LLM(\n{lines}    )\n'
    )


def _start(policy: Policy, pool: Pool, engine: Mapping[str, Any]) -> str:
    """Command lines to paste into a shell in this folder."""
    measured = policy.engine
    words = ["vllm", "serve", str(engine["model"])]
    for option, value in engine.items():
        if option != "model":
            words.append(f"--{option}")
            if value is not True:
                words.append(value if isinstance(value, str) else _json(value))
    return (
        f"Pool {pool.name}: {pool.strategy.label}. In this folder, either\n\n"
        "vllm serve --config engine.yaml\n\n"
        "or, the same without the file,\n\n"
        f"{shlex.join(words)}\n\n"
        "Where the vllm command is missing:\n\n"
        "python -m vllm.entrypoints.openai.api_server --config engine.yaml\n\n"
        "Keep --config and its file two words (--config=engine.yaml is ignored), and put no\n"
        "--speculative-config.… option beside the file (the rest of its mapping would be dropped).\n\n"
        f"Measured on the {measured.name} engine {measured.version} ({measured.device}, {measured.dtype}), not on\n"
        "vLLM: check the gains there before relying on them.\n"
    )


def _check_folders(names: list[str]) -> None:
    """Pool names become folder names on any file system, each its own."""
    for name in names:
        if (
            _BAD_IN_FOLDER & set(name)
            or not name.isprintable()
            or name[:1] in "-. "
            or name[-1:] in ". "
            or len(name.encode()) > 100
        ):
            raise ExportError(
                f"pool name {name!r} cannot be a folder: no path characters, no '.', '-' or blank "
                "in front, at most 100 bytes"
            )
    if len({name.casefold() for name in names}) != len(names):
        raise ExportError(f"pool names differ only in case: {', '.join(names)}")
