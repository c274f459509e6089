"""`selector profile`: measure acceptance, step cost and a few real cells."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from selector.cli import HELP
from selector.cli.models import reference_engine
from selector.cli.progress import ProgressLine, command_line
from selector.cli.served import endpoint_servers, served_options, vllm_servers
from selector.profile import DrafterInfo, check_writable, write_json
from selector.workload import Workload, load_workload

if TYPE_CHECKING:
    from selector.engines.base import Engine
    from selector.engines.served.base import Servers

_UNITS = {"s": 1, "m": 60, "h": 3600}


class Duration(click.ParamType[float]):
    """`90s`, `5m`, `1h`, or seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds."""
        match = re.fullmatch(r"([0-9]{1,7}(?:\.[0-9]+)?)([smh]?)", str(value))
        if not match or float(match[1]) <= 0:
            self.fail(f"{value!r}: give a time such as 90s, 5m or 1h", param, ctx)
        return float(match[1]) * _UNITS[match[2] or "s"]


class Loads(click.ParamType[tuple[int, ...]]):
    """Comma-separated batch sizes."""

    name = "loads"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Sorted, without repeats; 1 is always among them, since the real cells run there."""
        if not re.fullmatch(r"0*[1-9][0-9]{0,4}(,0*[1-9][0-9]{0,4})*", str(value)):
            self.fail(f"{value!r}: give batch sizes such as 1,2,4,8", param, ctx)
        return tuple(sorted({1, *map(int, str(value).split(","))}))


class Bands(click.ParamType[tuple[float, ...]]):
    """Comma-separated temperatures."""

    name = "temperatures"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        """Ascending, without repeats."""
        try:
            edges = sorted({float(part) for part in str(value).split(",")})
        except ValueError:
            edges = []
        if not edges or not all(0 < e <= 5 for e in edges):
            self.fail(f"{value!r}: give temperatures above 0 and at most 5, such as 0.3,0.7,1.0", param, ctx)
        return tuple(edges)


@click.command("profile", context_settings=HELP)
@click.argument("model", required=False, type=click.Path(path_type=Path))
@click.option(
    "--engine",
    "engine_name",
    type=click.Choice(["reference", "vllm", "endpoint", "fake"]),
    default="reference",
    show_default=True,
    help="reference: decode here with torch; vllm: start vLLM servers and measure them; endpoint: measure servers that "
    "run already; fake: scripted, for trying the commands.",
)
@click.option(
    "--drafter",
    "drafters",
    multiple=True,
    metavar="[METHOD=]PATH",
    help="A drafter checkpoint, or NAME=PATH to call it so; may repeat. What it is, its tensors say; METHOD "
    "(eagle, eagle3, draft_model) insists on it.  "
    "[default: the embedded ones for the embedded model]",
)
@click.option(
    "--workload",
    type=click.Path(path_type=Path),
    default=None,
    help="JSONL of requests (prompt or messages, class, temperature, max_tokens).  [default: the shipped classes]",
)
@click.option(
    "--temperature-bands",
    "bands",
    type=Bands(),
    default=None,
    metavar="T,T,...",
    help="Measure sampled requests at the nearest of these temperatures above their own, such as 0.3,0.7,1.0.  "
    "[default: every temperature is a class of its own]",
)
@click.option(
    "--loads",
    type=Loads(),
    default=None,
    help="Batch sizes whose step cost is measured.  [default: 1,2,4,8; of servers 1,4]",
)
@click.option("--max-k", type=click.IntRange(1, 16), default=8, show_default=True, help="Most drafted tokens per step.")
@click.option(
    "--budget",
    type=Duration(),
    default=None,
    help="Time to spend; more time, more prompts and repeats.  [default: 5m; on servers 20m]",
)
@click.option(
    "--prompts-per-class",
    type=click.IntRange(min=1),
    default=None,
    help="Fix the prompts per class.  [default: what the budget allows]",
)
@click.option(
    "--no-confirm", is_flag=True, help="Leave out the real end-to-end cells (and the A/A noise band with them)."
)
@click.option("--plan", "plan_only", is_flag=True, help="Print cells and minutes, and stop.")
@click.option("--resume", is_flag=True, help="Go on with an interrupted run.")
@click.option("--fresh", is_flag=True, help="Throw an interrupted run's journal away and begin again.")
@click.option(
    "--dtype",
    type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
    default=None,
    help="Weights and activations.  [default: float32; of servers auto, as the model says]",
)
@click.option("--device", default="cpu", show_default=True, help="cpu or cuda.")
@click.option("--threads", type=click.IntRange(min=1), default=None, help="Compute threads.  [default: torch's choice]")
@click.option(
    "--seed",
    type=click.IntRange(0, 2**31 - 1),
    default=0,
    show_default=True,
    help="Seed of prompt choice, sampling and order.",
)
@served_options
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=None,
    help="Profile to write.  [default: MODEL's name with .profile.json, here]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the profile instead of its summary.")
def command(
    model: Path | None, out: Path | None, as_json: bool, plan_only: bool, resume: bool, fresh: bool, **options: Any
) -> None:
    """Measure MODEL (a local folder) with its drafters; without MODEL, a small embedded model and its drafters."""
    from selector.measure import journalled  # first: it names the extra that is missing

    from selector.cli.summary import profile_text  # isort: skip

    if resume and fresh:
        raise click.UsageError("--resume and --fresh exclude each other")
    if out is not None and not plan_only:
        check_writable(out)
    progress = ProgressLine()
    workload = load_workload(options["workload"])
    if options["bands"]:
        workload = workload.banded(options["bands"])
    served = options["engine_name"] in ("vllm", "endpoint")
    run, name, drafters, plan = (_servers_run if served else _engine_run)(model, out, workload, options, progress)
    if plan_only:
        told = {n: {"method": d.method, "warnings": list(d.warnings)} for n, d in drafters.items()}
        data = run.plan().as_dict() | {"drafters": told}
        click.echo(json.dumps(data, indent=1) if as_json else plan())
        return
    file = out or Path(f"{name}.profile.json")
    journal = file.with_name(file.name.removesuffix(".json") + ".journal.jsonl")
    for wanted in (file, journal):
        check_writable(wanted)
    if resume and not journal.exists():
        progress.say("nothing to resume here, starting afresh")
    try:
        profile = journalled(run, journal, resume=resume, fresh=fresh)
    except KeyboardInterrupt:
        if not journal.exists():  # stopped before the first measurement
            raise
        progress.finish()
        again = shlex.join(a for a in sys.argv[1:] if a != "--fresh")
        click.echo(
            f"stopped; what was measured is kept in {journal}\n"
            f"go on with: selector {again}{'' if resume else ' --resume'}",
            err=True,
        )
        raise SystemExit(130) from None
    write_json(file, profile)
    journal.unlink(missing_ok=True)
    progress.finish()
    click.echo(profile.model_dump_json(indent=1) if as_json else profile_text(profile))
    click.echo(f"\nprofile: {file}      next: selector recommend {shlex.quote(str(file))}", err=True)


#: A measurement that is set up, the name of its target, its drafters, and what prints its plan.
_SetUp = tuple[Any, str, Mapping[str, DrafterInfo], Callable[[], str]]


def _engine_run(
    model: Path | None, out: Path | None, workload: Workload, options: dict[str, Any], progress: ProgressLine
) -> _SetUp:
    """A measurement in this process."""
    from selector.cli.summary import plan_text
    from selector.measure import Measurement, Settings

    engine = _engine(model, options, progress)
    settings = Settings(
        budget_seconds=options["budget"] or 300.0, k_max=options["max_k"], loads=options["loads"] or (1, 2, 4, 8),
        seed=options["seed"], prompts_per_class=options["prompts_per_class"], confirm=not options["no_confirm"],
        command=command_line(),
    )  # fmt: skip
    run = Measurement(engine, workload, settings, progress)
    return run, engine.target.name, engine.drafters, lambda: plan_text(run.plan(), run, workload)


def _servers_run(
    model: Path | None, out: Path | None, workload: Workload, options: dict[str, Any], progress: ProgressLine
) -> _SetUp:
    """A measurement of servers; their logs lie beside the profile."""
    from selector.cli.served_plan import served_plan_text
    from selector.measure.served import ServedMeasurement, ServedSettings

    logs = (out or Path("selector")).parent / f"{(out or Path('selector')).name.removesuffix('.profile.json')}.logs"
    servers: Servers
    if options["engine_name"] == "vllm":
        servers = vllm_servers(model, options, progress, logs)
    else:
        servers = endpoint_servers(model, options, progress.say)
    settings = ServedSettings(
        budget_seconds=options["budget"] or 1200.0, k_max=options["max_k"], loads=options["loads"] or (1, 4),
        seed=options["seed"], prompts_per_class=options["prompts_per_class"], confirm=not options["no_confirm"],
        methods=options["methods"] or None, command=command_line(),
    )  # fmt: skip
    run = ServedMeasurement(servers, workload, settings, progress)
    return run, servers.target.name, servers.drafters, lambda: served_plan_text(run)


def _engine(model: Path | None, options: dict[str, Any], progress: ProgressLine) -> Engine:
    if options["engine_name"] == "fake":
        from selector.engines.fake import FakeEngine

        if model is not None or options["drafters"]:
            raise click.UsageError("--engine fake is scripted: it takes neither MODEL nor --drafter")
        return FakeEngine(seed=options["seed"])
    dtype = options["dtype"] or "float32"
    if dtype not in ("float32", "bfloat16"):
        raise click.UsageError(f"--dtype {dtype}: the reference engine takes float32 or bfloat16")
    return reference_engine(
        model, options["drafters"], progress.say, dtype=dtype, device=options["device"], threads=options["threads"]
    )
