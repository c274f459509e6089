"""The command: `python -m selector.training data|eagle|eagle3|draft`."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from selector.errors import MissingExtra, SelectorError
from selector.finite import FiniteRange

KINDS = {
    "eagle": "Train an EAGLE-1 head: one layer that foretells the target's next hidden state.",
    "eagle3": "Train an EAGLE-3 head: one layer over three of the target's hidden states, with a reduced vocabulary.",
    "draft": "Train an independent draft model: a few of the target's own layers, distilled.",
}
_folder = click.Path(exists=True, file_okay=False, path_type=Path)
_target = click.option("--target", required=True, type=_folder, help="Checkpoint folder of the target.")
_threads = click.option(
    "--threads", default=0, show_default=True, type=click.IntRange(min=0), help="Torch threads; 0: torch's choice."
)
_TRAINING = (
    _target,
    click.option(
        "--data",
        required=True,
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help='JSONL with {"p": [prompt ids], "r": [answer ids]} per line, answers by the target (see `data`).',
    ),
    click.option(
        "--out",
        required=True,
        type=click.Path(file_okay=False, path_type=Path),
        help="Folder for the drafter and its checkpoint.",
    ),
    click.option(
        "--minutes",
        default=20.0,
        show_default=True,
        type=FiniteRange(min=0),
        help="Wall time of training over all resumed runs; 0 only evaluates.",
    ),
    click.option(
        "--start-from",
        type=_folder,
        help="Drafter folder whose weights are the start.  [default: the target's own]",
    ),
    click.option("--resume", is_flag=True, help="Continue from the checkpoint in --out."),
    _threads,
    click.option("--seed", default=0, show_default=True, help="Order of the batches and random tokens."),
    click.option("--batch", default=8, show_default=True, type=click.IntRange(min=1), help="Conversations per step."),
    click.option(
        "--feature-memory",
        "feature_memory_gib",
        default=2.0,
        show_default=True,
        type=FiniteRange(min=0),
        help="GiB of target features kept instead of computed again.",
    ),
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
def main() -> None:
    """Train a drafter for a Llama-like target from the target's own outputs: `data` first, then one of the others."""


@main.command("data")
@_target
@click.option(
    "--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="JSONL file to write or go on with."
)
@click.option(
    "--conversations", default=1600, show_default=True, type=click.IntRange(min=1), help="How many the file shall hold."
)
@click.option("--answer-tokens", default=200, show_default=True, type=click.IntRange(min=16), help="Longest answer.")
@click.option(
    "--temperature",
    default=0.6,
    show_default=True,
    type=FiniteRange(0, 5),
    help="Of every second answer; the others are greedy.",
)
@click.option("--batch", default=16, show_default=True, type=click.IntRange(min=1), help="Conversations at once.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Of all that is drawn.")
@click.option("--resume", is_flag=True, help="Go on with the file in --out.")
@_threads
def data(**options: Any) -> None:
    """Let the target write prompts and answer them: training data without anyone else's text.

    Prompts of the shipped workloads are left out, so what is measured is never trained on.
    """
    _need_torch()
    from selector.training.generate import DataOptions, generate

    _run(lambda say: generate(DataOptions(**options), say), options["out"])


def _trainer(kind: str, text: str) -> None:
    @main.command(kind, help=text)
    def command(**options: Any) -> None:
        _need_torch()
        from selector.training.loop import CHECKPOINT
        from selector.training.run import Options, train

        _run(lambda say: train(Options(kind, **options), say), options["out"] / CHECKPOINT)

    for option in _TRAINING:
        option(command)


def _need_torch() -> None:
    for module in ("torch", "transformers", "safetensors"):
        if importlib.util.find_spec(module) is None:
            raise click.ClickException(str(MissingExtra(module, "reference")))


def _run(work: Callable[[Callable[[str], None]], object], kept: Path) -> None:
    """`kept`: the file that a run goes on from."""
    try:
        work(lambda text: click.echo(text, err=True))
    except SelectorError as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        done = f"what was done is in {kept}, go on with --resume" if kept.exists() else "nothing was written yet"
        click.echo(f"stopped; {done}", err=True)
        raise SystemExit(130) from None


for _kind, _text in KINDS.items():
    _trainer(_kind, _text)

if __name__ == "__main__":
    main(prog_name="python -m selector.training")
