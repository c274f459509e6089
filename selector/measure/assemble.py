"""From journal entries to a profile."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, TypeVar

from selector.engines.base import Engine, Generation
from selector.measure.journal import Journal
from selector.profile import (
    ClassInfo,
    ConfirmedCell,
    Hardware,
    PrefillCost,
    Profile,
    Provenance,
    Recording,
    Replay,
    Run,
    Skipped,
    StepCost,
)
from selector.strategy import Strategy
from selector.walks import looping
from selector.workload import Workload

T = TypeVar("T")


def generation_entry(request_class: str, prompt_id: str, g: Generation) -> dict[str, Any]:
    """A recording as the journal keeps it, token ids included (they are needed to go on after a kill)."""
    return {"class": request_class, "id": prompt_id, "prompt": g.prompt_ids, "output": g.output_ids, "finish": g.finish}


def generation_of(entry: dict[str, Any]) -> Generation:
    """The recording back from the journal; its times were no measurement and are zero."""
    output = tuple(entry["output"])
    return Generation(tuple(entry["prompt"]), output, entry["finish"], len(output) - 1, 0, 0, 0.0, 0.0)


def build_profile(
    journal: Journal, engine: Engine, workload: Workload, *, k_max: int, loads: tuple[int, ...], provenance: Provenance
) -> Profile:
    """Everything measured so far as one profile."""
    recordings = recordings_of(journal)
    confirmed = _confirmed(journal)
    return Profile(
        hardware=Hardware.model_validate(journal["hardware"]),
        engine=engine.info,
        target=engine.target,
        drafters=dict(engine.drafters),
        workload=workload.source,
        workload_sha256=workload.digest,
        temperature_bands=workload.temperature_bands,
        classes=tuple(classes_of(workload, recordings)),
        k_max=k_max,
        loads=loads,
        recordings=tuple(recordings),
        replays=tuple(Replay.model_validate(e) for e in journal.under("replay")),
        step_costs=tuple(_timed(journal, "step", StepCost, "step_seconds")),
        prefill_costs=tuple(_timed(journal, "prefill", PrefillCost, "prefill_seconds")),
        confirmed=tuple(confirmed),
        aa_noise=aa_noise(confirmed),
        skipped=tuple(Skipped.model_validate(e) for e in journal.under("skipped")),
        provenance=provenance,
    )


def recordings_of(journal: Journal) -> list[Recording]:
    """The plain outputs, without their tokens."""
    return [
        Recording(
            id=e["id"],
            request_class=e["class"],
            prompt_tokens=len(e["prompt"]) if "prompt" in e else e["prompt_tokens"],
            output_tokens=len(e["output"]) if "output" in e else e["output_tokens"],
            finish=e["finish"],
            looping=looping(_without_stop(e)),
        )
        for e in journal.under("recording")
    ]


def _without_stop(entry: dict[str, Any]) -> list[int]:
    """The output's tokens before the stop token; none where a server returns no ids."""
    output: list[int] = entry.get("output", [])
    return output[:-1] if entry["finish"] == "stop" else output


def classes_of(workload: Workload, recordings: Sequence[Recording]) -> list[ClassInfo]:
    """The classes that something was recorded for."""
    requests = Counter(r.request_class for r in workload.requests)
    measured = Counter(r.request_class for r in recordings)
    return [
        ClassInfo(
            name=name, task=rs[0].task, temperature=rs[0].temperature, top_p=rs[0].top_p,
            prompts=measured[name], prompts_available=len(rs), requests=requests[name],
        )
        for name, rs in workload.by_class().items()
        if measured[name]
    ]  # fmt: skip


def _timed(journal: Journal, prefix: str, model: Callable[..., T], field: str) -> list[T]:
    """Entries of one cell hold one timing each; their times become one row.

    A timing with an anchor (a plain step of the same batch, or of one request, just before it) is scaled by
    median anchor / own anchor: the machine's slow minutes leave the ratio to plain decoding alone, which decides.
    """
    entries = list(journal.under(prefix))
    anchors: dict[int, list[float]] = defaultdict(list)
    for e in entries:
        if "anchor" in e:
            anchors[e.get("batch", 1)].append(e["anchor"])
    usual = {batch: median(times) for batch, times in anchors.items()}
    groups: dict[str, tuple[dict[str, Any], list[float]]] = {}
    for e in entries:
        cell = {k: v for k, v in e.items() if k not in ("seconds", "anchor")}
        scale = usual[e.get("batch", 1)] / e["anchor"] if "anchor" in e else 1.0
        groups.setdefault(repr(sorted(cell.items(), key=str)), (cell, []))[1].append(e["seconds"] * scale)
    return [model(**cell, **{field: tuple(times)}) for cell, times in groups.values()]


def _confirmed(journal: Journal) -> list[ConfirmedCell]:
    cells: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    strategies: dict[str, Strategy] = {}
    for e in journal.under("confirm"):
        strategy = Strategy.model_validate(e["strategy"])
        strategies[f"{strategy.family}/{strategy.k}"] = strategy
        cells[(e["class"], f"{strategy.family}/{strategy.k}", e["arm"])].append(e["run"])
    return [
        ConfirmedCell.model_validate({
            "request_class": name, "strategy": strategies[label].model_dump(), "load": 1, "arm": arm,
            "runs": [Run.model_validate(r).model_dump() for r in runs],
        })
        for (name, label, arm), runs in cells.items()
    ]  # fmt: skip


def aa_noise(cells: list[ConfirmedCell]) -> float:
    """Half-width of the band that the ratio of totals of two equal arms falls in, 95%; 0 without a second plain arm.

    The arms are paired run by run (class, prompt, repeat). With x = log ratio of a pair and w its share of the
    seconds, the log ratio of totals has variance sum (w x)^2 around zero, and the band is 1.96 of its root.
    """
    pairs = []
    for second in (c for c in cells if c.arm == "aa"):
        place = (second.request_class, second.load)
        same = (c for c in cells if c.arm == "main" and (c.request_class, c.load) == place)
        first = next((c for c in same if c.strategy == second.strategy), None)
        known = {(r.id, r.repeat): _seconds(r) for r in first.runs} if first else {}
        pairs += [(known[r.id, r.repeat], _seconds(r)) for r in second.runs if (r.id, r.repeat) in known]
    total = sum(a + b for a, b in pairs)
    return 1.96 * math.sqrt(sum(((a + b) / total * math.log(b / a)) ** 2 for a, b in pairs)) if pairs else 0.0


def _seconds(run: Run) -> float:
    return run.prefill_seconds + run.decode_seconds
