"""`selector doctor`: what is installed here, and what can therefore be done."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version

import click

from selector.cli import HELP

_NEEDED = {
    "recommend": ("tune", ("optuna", "scikit-learn")),
    "verify": ("reference", ("torch", "transformers", "accelerate", "safetensors", "gguf")),
    "profile": ("all", ("optuna", "torch", "transformers", "accelerate", "safetensors", "gguf")),
}


@click.command("doctor", context_settings=HELP)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def command(as_json: bool) -> None:
    """Say which commands work in this installation, and what to install for the others."""
    findings = {}
    for what, (extra, packages) in _NEEDED.items():
        versions = {p: _version(p) for p in packages}
        findings[what] = {"extra": extra, "packages": versions, "works": None not in versions.values()}
    if as_json:
        click.echo(json.dumps(findings, indent=1))
        return
    click.echo("route, export: work (base installation)")
    for what, found in findings.items():
        missing = [p for p, v in found["packages"].items() if v is None]  # type: ignore[attr-defined]  # plain dict above
        hint = f"missing {', '.join(missing)}: pip install 'decoding-strategy-selector[{found['extra']}]'"
        click.echo(f"{what}: {hint if missing else 'works'}")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
