"""`selector recommend`: decide from a profile."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from selector.cli import HELP
from selector.cli.progress import command_line
from selector.errors import MissingExtra
from selector.profile import check_writable, load_profile, write_json


@click.command("recommend", context_settings=HELP)
@click.argument("profile", type=click.Path(path_type=Path))
@click.option(
    "--objective",
    type=click.Choice(["throughput", "latency"]),
    default="throughput",
    show_default=True,
    help="Requests per second per server, or request time at each class's own lengths.",
)
@click.option(
    "--load",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Concurrent requests per server (closed load).",
)
@click.option(
    "--traffic",
    metavar="NAME=SHARE,...",
    show_default="as in the workload",
    help="Request share per class or task, e.g. chat=0.6,code=0.4.",
)
@click.option(
    "--max-pools",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Pools of differently configured servers that may be used.",
)
@click.option(
    "--current",
    type=click.Path(path_type=Path),
    show_default="none",
    help="Policy or vLLM config that runs now: what would be gained over it?",
)
@click.option(
    "--workload",
    type=click.Path(path_type=Path),
    show_default="where the profile found it",
    help="The profile's workload file, for the text classifier.",
)
@click.option("--draws", type=click.IntRange(min=20), default=400, show_default=True, help="Joint bootstrap draws.")
@click.option(
    "--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Seed of draws and searches."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "md"]),
    default="text",
    show_default=True,
    help="Form of the table.",
)
@click.option("--json", "as_json", is_flag=True, show_default="off", help="Print the policy instead of the table.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    show_default="PROFILE with .policy.json",
    help="Policy file to write.",
)
def command(profile: Path, traffic: str | None, form: Any, as_json: bool, out: Path | None, **options: Any) -> None:
    """Decide which decoding strategy serves each class of PROFILE best, and write the policy."""
    try:
        from selector.recommend import parse_traffic, recommend, render
    except ModuleNotFoundError as error:
        raise MissingExtra(error.name or "optuna", "tune") from error
    measured = load_profile(profile)
    shares = None if traffic is None else parse_traffic(traffic, measured)
    target = out or policy_path(profile)
    check_writable(target)
    policy = recommend(measured, traffic=shares, command=command_line(), **options)
    write_json(target, policy)
    click.echo(policy.model_dump_json(indent=1) if as_json else render(policy, form))
    where = shlex.quote(str(target))
    click.echo(f"\npolicy: {target}      next: selector export {where} --to vllm", err=True)


def policy_path(profile: Path) -> Path:
    """`x.policy.json` beside `x.profile.json`."""
    stem = profile.name.removesuffix(".json").removesuffix(".profile")
    return profile.with_name(f"{stem}.policy.json")
