"""Looks at one output of a strategy and writes down what is wrong with it."""

from __future__ import annotations

import numpy as np

from selector.engines.base import Generation
from selector.equality import compare, near_tie_gap
from selector.verify.arms import Arm, impossible, step_starts
from selector.verify.ending import bonus_fault, ending_faults
from selector.verify.engine import ScoringEngine
from selector.verify.findings import Findings
from selector.verify.report import Setting
from selector.verify.steps import missteps
from selector.workload import Request

#: How full the nucleus must have been before a token outside it: rounding moves its edge by less.
EDGE, EDGE_BFLOAT16 = 1e-3, 0.05


class Judge:
    """Decodes with the strategy, and adds to its findings."""

    def __init__(self, engine: ScoringEngine, random: np.random.Generator) -> None:
        self.engine, self.random = engine, random
        self.edge = EDGE_BFLOAT16 if engine.info.dtype == "bfloat16" else EDGE

    def greedy(self, f: Findings, request: Request, plain: Generation, seed: int) -> None:
        """Token by token against `plain`, and step by step against a replay of the output itself."""
        found, live = compare(self.engine, request, plain, f.strategy, seed=seed)
        f.compared.append(found)
        if (at := found.position) is not None:
            if found.gap is None:
                f.notes.add("different length", request, at, f"plain decoding gives {len(plain.output_ids)} tokens")
            else:
                f.notes.add(
                    "near-tie" if found.verdict == "near-tie" else "different token", request, at,
                    f"its logit is {found.gap:.2g} below the best", plain.output_ids[at], live.output_ids[at],
                )  # fmt: skip
        self._inspect(f, request, live)
        if live.accepted_per_step:
            replayed = self.engine.replay(live, f.strategy)
            f.note_steps(request, len(live.accepted_per_step), missteps(live, replayed, f.strategy.k))

    def sampled(self, f: Findings, request: Request, setting: Setting, seed: int) -> None:
        """Scored token by token for the tests; what is too improbable for chance is evidence by itself."""
        live = self.engine.generate(request, f.strategy, seed=seed)
        f.sampled_outputs += 1
        self._inspect(f, request, live)
        scores = self.engine.score(live, [f.strategy], temperature=setting.temperature, top_p=setting.top_p)
        f.arms.setdefault(setting, Arm()).add(scores, self.random, step_starts(live))
        slack = 2 * near_tie_gap(self.engine) / setting.temperature  # of a logit, and of what all logits sum up to
        f.rare.add(request, live.output_ids, scores, slack)
        f.repeats.add(request, setting, live.output_ids, scores)
        for position in impossible(scores, setting.top_p, self.edge):
            f.notes.add("impossible token", request, position, got=live.output_ids[position])

    def _inspect(self, f: Findings, request: Request, live: Generation) -> None:
        for kind, position in ending_faults(live, self.engine.stop_ids, request.max_tokens):
            f.notes.add(kind, request, position)
        if fault := bonus_fault(live):
            f.miscounted += 1
            f.notes.add(fault[0], request, detail=fault[1])
