"""`selector verify`: is the output what plain decoding gives?"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import click

from selector.cli import HELP
from selector.cli.models import policy_engine, reference_engine
from selector.cli.progress import ProgressLine
from selector.cli.strategies import MOST_DRAFTS, strategies
from selector.errors import PolicyError
from selector.finite import FiniteRange
from selector.policy_source import read_policy
from selector.verify import LosslessCheck, LosslessReport, Setting, choose
from selector.verify.text import report_text
from selector.workload import load_workload

FAILED, UNDECIDED = 3, 4


class Numbers(click.ParamType[tuple[float, ...]]):
    """Comma-separated numbers above 0."""

    name = "numbers"

    def __init__(self, most: float) -> None:
        self.most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        """In the order given, without repeats."""
        try:
            numbers = tuple(dict.fromkeys(float(part) for part in str(value).split(",")))
        except ValueError:
            numbers = ()
        if not numbers or not all(0 < n <= self.most for n in numbers):
            self.fail(f"{value!r}: give numbers above 0 and at most {self.most:g}, separated by commas", param, ctx)
        return numbers


@click.command("verify", context_settings=HELP)
@click.argument("policy", required=False, type=click.Path())
@click.option(
    "--engine",
    "engine_name",
    type=click.Choice(["reference", "vllm"]),
    default="reference",
    show_default=True,
    help="reference: decode here with torch; vllm: not there yet.",
)
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    default=None,
    help="Target folder.  [default: the policy's, without POLICY the embedded model]",
)
@click.option(
    "--drafter",
    "drafters",
    multiple=True,
    metavar="[METHOD=]PATH",
    help="A drafter checkpoint, as in profile; may repeat.  [default: the policy's, or the embedded ones]",
)
@click.option(
    "--strategy",
    "texts",
    multiple=True,
    metavar="TEXT",
    help="Such as 'eagle3 k=4', 'ngram 2..4 k=6' or 'draft_model NAME probabilistic k=3'; may repeat.  "
    "[default: the policy's; without POLICY n-gram lookup and every drafter, with likeliest and with drawn drafts]",
)
@click.option(
    "--k", type=click.IntRange(1, MOST_DRAFTS), default=4, show_default=True, help="k of strategies not written out."
)
@click.option(
    "--workload",
    type=click.Path(path_type=Path),
    default=None,
    help="JSONL of requests.  [default: the shipped classes]",
)
@click.option("--prompts", type=click.IntRange(min=1), default=2, show_default=True, help="Prompts per task.")
@click.option("--max-tokens", type=click.IntRange(min=2), default=64, show_default=True, help="Most output tokens.")
@click.option(
    "--temperatures",
    type=Numbers(5),
    default="0.7,1.0",
    show_default=True,
    metavar="T,T,...",
    help="Where sampled outputs are compared; a temperature that is ignored shows at others than 1.",
)
@click.option(
    "--top-p",
    "top_ps",
    type=Numbers(1),
    default="1.0,0.9",
    show_default=True,
    metavar="P,P,...",
    help="With each temperature.",
)
@click.option(
    "--samples",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Sampled outputs per prompt and setting.",
)
@click.option(
    "--alpha",
    type=FiniteRange(0, 0.5, min_open=True),
    default=0.001,
    show_default=True,
    help="Chance of a false alarm, over all strategies and tests together.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16"]),
    default="float32",
    show_default=True,
    help="Weights and activations.",
)
@click.option("--device", default="cpu", show_default=True, help="cpu or cuda.")
@click.option("--threads", type=click.IntRange(min=1), default=None, help="Compute threads.  [default: torch's choice]")
@click.option(
    "--seed",
    type=click.IntRange(0, 2**31 - 1),
    default=0,
    show_default=True,
    help="Seed of prompt choice and sampling.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the whole report as JSON.")
def command(policy: str | None, engine_name: str, texts: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Compare strategies with plain decoding: those of POLICY, or those named.

    Exit: 0 lossless, or near-tie differences only; 3 not lossless, or a drafter out of step; 4 too little compared.
    """
    if engine_name == "vllm":
        raise click.UsageError("--engine vllm is not there yet: verify with --engine reference")
    progress, seed = ProgressLine(), options["seed"]
    requests = choose(load_workload(options["workload"]).requests, options["prompts"], options["max_tokens"], seed)
    loading = {name: options[name] for name in ("dtype", "device", "threads")}
    if policy is None:
        engine, planned = reference_engine(options["model"], options["drafters"], progress.say, **loading), []
    else:
        loaded = read_policy(policy)
        if loaded.engine.name == "fake":
            raise PolicyError(f"{policy}: made with --engine fake: there is no model, and so nothing to verify")
        engine = policy_engine(loaded, options["model"], options["drafters"], progress.say, **loading)
        planned = [pool.strategy for pool in loaded.pools]
    chosen = planned if planned and not texts else strategies(texts, engine.drafters, options["k"])
    settings = [Setting(temperature=t, top_p=p) for t, p in product(options["temperatures"], options["top_ps"])]
    check = LosslessCheck(
        engine, chosen, requests, settings=settings,
        samples=options["samples"], alpha=options["alpha"], seed=seed, progress=progress,
    )  # fmt: skip
    report = _run(check, progress)
    click.echo(report.model_dump_json(indent=1) if as_json else report_text(report))
    if any(s.failed for s in report.strategies):
        raise SystemExit(FAILED)
    if any(s.verdict == "inconclusive" for s in report.strategies):
        raise SystemExit(UNDECIDED)


def _run(check: LosslessCheck, progress: ProgressLine) -> LosslessReport:
    interrupted = False
    try:
        check.run()
    except KeyboardInterrupt:  # what was found until now is an answer too
        interrupted = True
    progress.finish()
    return check.report(interrupted=interrupted)
