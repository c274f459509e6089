"""Training conversations by self-generation: the target writes user prompts, then answers them.

Started right behind the chat template's user header, an instruction-tuned model writes what users write to it; no
text of anyone else is needed. Half of the answers are greedy, half sampled at the temperature that will be served.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from selector.engines.reference.model import DecoderModel
from selector.engines.reference.record import record
from selector.engines.reference.stepper import Sampler
from selector.errors import SelectorError, WorkloadError
from selector.training.rows import MIN_ANSWER_TOKENS, prompt_fingerprint
from selector.workload import load_workload, texts

#: First words of a user turn, to spread the prompts over tasks; the empty one leaves all to the model.
OPENERS = (
    "", "Write", "How", "What", "Summarize", "Translate", "Explain", "Write a function that", "Rewrite", "Solve",
    "List", "Why", "Create", "Given the text below", "Describe", "def", "Fix the grammar of", "Compare", "Extract",
    "Calculate", "Tell me", "Can you", "Classify", "Convert",
)  # fmt: skip
PROMPT_TEMPERATURE, PROMPT_TOKENS = 0.8, 100
PROMPT_CHARACTERS = range(9, 900)
MOST_IDLE = 20
_MARK = "\x00here\x00"


@dataclass(frozen=True)
class DataOptions:
    """What `python -m selector.training data` says. `temperature` is that of the sampled half of the answers."""

    target: Path
    out: Path
    conversations: int = 1600
    answer_tokens: int = 200
    temperature: float = 0.6
    batch: int = 16
    seed: int = 0
    threads: int = 0
    resume: bool = False


class Author:
    """The target as author of both turns."""

    def __init__(self, options: DataOptions) -> None:
        self.options, self.model = options, DecoderModel(options.target, "float32", "cpu")
        self.tokenizer = AutoTokenizer.from_pretrained(options.target, local_files_only=True)
        stop = self.model.model.generation_config.eos_token_id or self.model.config.eos_token_id
        self.stop_ids = frozenset([stop] if isinstance(stop, int) else stop or ())
        if not self.tokenizer.chat_template:
            raise SelectorError(f"{options.target}: no chat template, so where a user's turn begins is not known")
        turn = [{"role": "user", "content": _MARK}]
        text = str(self.tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True))
        self.before, _, self.behind = text.partition(_MARK)

    def prompts(self, batch: int) -> list[str]:
        """User turns of batch number `batch`: the same whenever they are asked for."""
        size = self.options.batch
        openers = [OPENERS[(batch * size + i) % len(OPENERS)] for i in range(size)]
        outputs = self._decode([self.before + o for o in openers], PROMPT_TOKENS, [PROMPT_TEMPERATURE] * size, batch)
        return [(o + self._text(ids)).strip() for o, ids in zip(openers, outputs, strict=True)]

    def answers(self, prompts: list[str], batch: int) -> list[dict[str, Any]]:
        """Lines of the data file, one per prompt; every second answer is greedy."""
        rendered = [self.before + p + self.behind for p in prompts]
        temperatures = [self.options.temperature * (i % 2) for i in range(len(prompts))]
        outputs = self._decode(rendered, self.options.answer_tokens, temperatures, batch + 1_000_003)
        return [
            {"p": self._ids(text), "r": answer, "batch": batch, "fingerprint": prompt_fingerprint(prompt)}
            for prompt, text, answer in zip(prompts, rendered, outputs, strict=True)
        ]

    def _decode(self, texts: list[str], tokens: int, temperatures: list[float], seed: int) -> list[list[int]]:
        base = (self.options.seed * 7919 + seed) * 4096
        samplers = [
            Sampler(t, 1.0, torch.Generator().manual_seed(base + i)) if t > 0 else Sampler()
            for i, t in enumerate(temperatures)
        ]
        done = record(self.model, [self._ids(t) for t in texts], [tokens] * len(texts), samplers, self.stop_ids)
        return [list(g.output_ids) for g in done]

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _text(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode([i for i in ids if i not in self.stop_ids], skip_special_tokens=True))


def generate(options: DataOptions, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> int:
    """Append conversations to `out` until it holds enough; returns how many. Each batch is on disk before the next."""
    if options.threads:
        torch.set_num_threads(options.threads)
    if not options.out.parent.is_dir():
        raise WorkloadError(f"{options.out}: no folder {options.out.parent} to write it to")
    first, seen, count = _known(options)
    seen |= {prompt_fingerprint(t) for t in texts(load_workload().requests)}  # what is measured is never trained on
    author, start, had = Author(options), clock(), count
    with options.out.open("a", encoding="utf-8") as file:
        batch, idle = first, 0
        while count < options.conversations:
            fresh = list(_fresh(author.prompts(batch), seen))
            rows = [r for r in author.answers(fresh, batch) if len(r["r"]) >= MIN_ANSWER_TOKENS] if fresh else []
            idle = 0 if rows else idle + 1
            if idle == MOST_IDLE:
                raise SelectorError(
                    f"{options.target}: {MOST_IDLE} batches without a new conversation: it repeats itself"
                )
            file.writelines(json.dumps(row) + "\n" for row in rows)
            file.flush()
            os.fsync(file.fileno())
            count, batch = count + len(rows), batch + 1
            rate = (clock() - start) / max(1, count - had)
            left = rate * max(0, options.conversations - count)
            say(f"{count} of {options.conversations} conversations, about {left / 60:.0f} min left")
    return count


def _known(options: DataOptions) -> tuple[int, set[str], int]:
    """Number of the next batch, fingerprints of prompts there are, and how many conversations."""
    if not options.out.exists():
        return 0, set(), 0
    if not options.resume:
        raise WorkloadError(f"{options.out}: exists; go on with --resume, or name another file")
    whole, _, cut = options.out.read_bytes().rpartition(b"\n")
    rows = [_own_row(line, options.out) for line in whole.split(b"\n") if line]
    if cut:  # a kill in the middle of a line: the batch goes on without that conversation
        _own_row(whole.split(b"\n")[0] if rows else cut, options.out, cut=not rows)
        options.out.write_bytes(whole + b"\n" if rows else b"")
    if not rows:
        return 0, set(), 0
    return rows[-1]["batch"] + 1, {row["fingerprint"] for row in rows}, len(rows)


def _own_row(line: bytes, file: Path, *, cut: bool = False) -> dict[str, Any]:
    """A line that this command wrote; of another file nothing is touched. `cut`: its beginning is all there is."""
    ours = line.startswith(b'{"p": [') if cut else True
    row: Any = {}
    if not cut:
        try:
            row = json.loads(line)
        except ValueError:
            ours = False
        ours = ours and isinstance(row, dict) and {"p", "r", "batch", "fingerprint"} <= row.keys()
    if not ours:
        raise WorkloadError(f"{file}: not written by this command; name another file")
    return dict(row)


def _fresh(prompts: list[str], seen: set[str]) -> Iterator[str]:
    for prompt in prompts:
        mark = prompt_fingerprint(prompt)
        if len(prompt) in PROMPT_CHARACTERS and mark not in seen:
            seen.add(mark)
            yield prompt
