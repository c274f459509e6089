"""Finds the data folders `strategies/` and `profiles/`, in a checkout and in an installed wheel."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from selector.errors import SelectorError

_PACKAGE = Path(__file__).resolve().parent


def data_dir(name: Literal["strategies", "profiles"]) -> Path:
    """Path of a shipped data folder.

    A wheel carries it inside the package, a checkout (also an editable install) beside it. Raises
    `SelectorError` when neither is there.
    """
    for folder in (_PACKAGE / "data" / name, _PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise SelectorError(f"the shipped folder {name!r} is missing from this installation: reinstall the package")
