"""`selector export`: write the engine config of every pool."""

from __future__ import annotations

import json
import shlex
from typing import Any

import click

from selector.cli import HELP
from selector.exporters.vllm import engine_yaml, export_vllm, stale_folders
from selector.policy import Policy
from selector.policy_source import read_policy


@click.command("export", context_settings=HELP)
@click.argument("policy", type=click.Path())
@click.option(
    "--to",
    "engine",
    type=click.Choice(["vllm"]),
    default="vllm",
    show_default=True,
    help="Engine to write for.",
)
@click.option(
    "--out",
    type=click.Path(),
    default="deploy",
    show_default=True,
    help="Folder that gets one folder per pool.",
)
@click.option(
    "--model-path",
    "model_paths",
    multiple=True,
    metavar="NAME=PATH",
    show_default="as recorded in the policy",
    help="Where the server finds a model of the policy; repeat for each.",
)
@click.option(
    "--engine-arg",
    "engine_args",
    multiple=True,
    metavar="KEY=VALUE",
    show_default="none",
    help="Further option of vllm serve (VALUE: JSON or plain text); repeat for each.",
)
@click.option(
    "--allow-k0",
    is_flag=True,
    show_default="off",
    help="Let schedules hold k = 0; inside a speculating engine that is not plain decoding.",
)
@click.option("--json", "as_json", is_flag=True, show_default="off", help="Print pools, files and settings as JSON.")
def command(
    policy: str,
    engine: str,
    out: str,
    model_paths: tuple[str, ...],
    engine_args: tuple[str, ...],
    allow_k0: bool,
    as_json: bool,
) -> None:
    """Write the config files that deploy POLICY."""
    loaded = read_policy(policy)
    paths = _pairs(model_paths, "--model-path", list(_names(loaded)))
    options = {key: _value(text) for key, text in _pairs(engine_args, "--engine-arg", []).items()}
    files = export_vllm(loaded, out, model_paths=paths, engine_args=options, allow_k0=allow_k0)
    for folder in stale_folders(loaded, out):
        click.echo(f"{folder}: of an earlier export; this policy has no such pool", err=True)
    if as_json:
        pools = {
            p.name: {
                "strategy": p.strategy.model_dump(),
                "schedule": p.schedule,
                "settings": engine_yaml(loaded, p, paths, options, allow_k0=allow_k0),
            }
            for p in loaded.pools
        }
        click.echo(json.dumps({"engine": engine, "out": out, "pools": pools, "files": [str(f) for f in files]}))
        return
    for file in files:
        click.echo(str(file))
    for file in files:
        if file.name == "engine.yaml":
            click.echo(f"start: cd {shlex.quote(str(file.parent))} && vllm serve --config engine.yaml", err=True)


def _names(policy: Policy) -> set[str]:
    return {policy.target.name, *policy.drafters}


def _pairs(given: tuple[str, ...], option: str, names: list[str]) -> dict[str, str]:
    """KEY=VALUE texts as a dict; a known name that itself holds '=' is recognised."""
    pairs: dict[str, str] = {}
    for text in given:
        known = max((n for n in names if text.startswith(f"{n}=")), key=len, default=None)
        key, found, value = (known, "=", text[len(known) + 1 :]) if known else text.partition("=")
        if not found or not key:
            raise click.BadParameter(f"{text!r} is not KEY=VALUE", param_hint=option)
        if key in pairs:
            raise click.BadParameter(f"{key!r} is given twice", param_hint=option)
        pairs[key] = value
    return pairs


def _value(text: str) -> Any:
    """JSON where it is JSON, the text itself elsewhere."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
