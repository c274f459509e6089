"""The command: `python -m selector.training eagle3|draft`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import click

from selector.errors import MissingExtra, SelectorError


@click.command(help="Train a drafter for a Llama-like target from the target's own outputs.")
@click.argument("kind", type=click.Choice(["eagle3", "draft"]))
@click.option(
    "--target",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Checkpoint folder of the target.",
)
@click.option(
    "--data",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help='JSONL with {"p": [prompt ids], "r": [answer ids]} per line, answers by the target.',
)
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the drafter and its checkpoint.",
)
@click.option(
    "--minutes",
    default=20.0,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Wall time of training over all resumed runs; 0 only evaluates.",
)
@click.option(
    "--start-from",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Drafter folder whose weights are the start (default: the target's own).",
)
@click.option("--resume", is_flag=True, help="Continue from the checkpoint in --out.")
@click.option(
    "--threads",
    default=0,
    show_default=True,
    type=click.IntRange(min=0),
    help="Torch threads; 0: torch's choice.",
)
@click.option("--seed", default=0, show_default=True, help="Order of the batches and random tokens.")
@click.option("--batch", default=8, show_default=True, type=click.IntRange(min=1), help="Conversations per step.")
@click.option(
    "--feature-memory",
    default=2.0,
    show_default=True,
    type=click.FloatRange(min=0),
    help="GiB of target features kept instead of computed again.",
)
def main(
    kind: str, target: Path, data: Path, out: Path, minutes: float, start_from: Path | None, resume: bool,
    threads: int, seed: int, batch: int, feature_memory: float,
) -> None:  # fmt: skip
    """Parse, train, print."""
    for module in ("torch", "transformers", "safetensors"):
        if importlib.util.find_spec(module) is None:
            raise click.ClickException(str(MissingExtra(module, "reference")))
    from selector.training.run import Options, train

    options = Options(kind, target, data, out, minutes, start_from, resume, threads, seed, batch, feature_memory)
    try:
        train(options, lambda text: click.echo(text, err=True))
    except SelectorError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main(prog_name="python -m selector.training")
