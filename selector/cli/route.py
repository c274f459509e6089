"""`selector route`: ask a policy where a request goes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

import click

from selector.cli import HELP
from selector.errors import WorkloadError
from selector.router import Decision, Router

_FIELDS = ("prompt", "messages", "temperature", "top_p", "max_tokens")


@click.command("route", context_settings=HELP)
@click.argument("policy", type=click.Path())
@click.argument("prompt", required=False)
@click.option(
    "--class",
    "request_class",
    help="Request class or task, instead of classifying the text.",
    show_default="from the text",
)
@click.option("--temperature", type=float, help="Sampling temperature of the request.", show_default="0, greedy")
@click.option("--max-tokens", type=int, help="Output limit of the request.", show_default="none")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print everything as JSON, one object per request.",
    show_default="off",
)
def command(
    policy: str,
    prompt: str | None,
    request_class: str | None,
    temperature: float | None,
    max_tokens: int | None,
    as_json: bool,
) -> None:
    """Print the class, strategy and pool that POLICY gives to PROMPT.

    With '-' as PROMPT, requests are read from stdin, one JSON object per line (prompt or messages, optional
    class, temperature, top_p, max_tokens; other keys are passed over); options stand in for what a line
    leaves out.
    """
    if prompt is None and request_class is None:
        raise click.UsageError("give a PROMPT, '-' for JSON lines on stdin, or --class")
    router = Router.load(policy)
    settings: dict[str, Any] = {
        "request_class": request_class,
        "temperature": temperature,
        "max_tokens": max_tokens,
    }
    if prompt == "-":
        for decision in _route_lines(router, sys.stdin.buffer, settings):
            click.echo(to_json(decision) if as_json else _line(decision))
        return
    try:
        decision = router.route(prompt, **settings)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    click.echo(to_json(decision) if as_json else _page(decision))


def _route_lines(router: Router, lines: Iterable[bytes], settings: dict[str, Any]) -> Iterator[Decision]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _route_line(router, line, number, settings)


def _route_line(router: Router, line: bytes, number: int, settings: dict[str, Any]) -> Decision:
    try:
        row = json.loads(line.decode("utf-8-sig"))
        if not isinstance(row, dict):
            raise ValueError(f"a request is a JSON object, this is {type(row).__name__}")
        given = {name: row[name] for name in _FIELDS if row.get(name) is not None}
        if row.get("class") is not None:
            given["request_class"] = row["class"]
        return router.route(**(settings | given))
    except UnicodeDecodeError as error:
        raise WorkloadError(f"stdin:{number}: not UTF-8 at byte {error.start}") from error
    except (ValueError, RecursionError) as error:
        raise WorkloadError(f"stdin:{number}: {error}") from error


def to_json(decision: Decision) -> str:
    """A decision as one line of JSON."""
    plain = asdict(decision) | {"strategy": decision.strategy.model_dump()}
    return json.dumps(plain)


def _line(d: Decision) -> str:
    return f"{d.request_class}\t{d.pool}\t{d.strategy.label}"


def _page(d: Decision) -> str:
    rows = {
        "class": f"{d.request_class}  (confidence {d.confidence:.2f})",
        "strategy": f"{d.strategy.label}, k = {d.num_speculative_tokens} at the policy's load",
        "pool": d.pool + (f"  {d.base_url}" if d.base_url else ""),
        "fallbacks": ", ".join(d.fallbacks) or "none",
        "reason": d.reason,
        "policy": d.policy_fingerprint,
    }
    return "\n".join(f"{name:<10} {value}" for name, value in rows.items())
