"""Reads a policy from wherever the caller has it, trusting none of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import IO, Any

from selector.errors import PolicyError
from selector.policy import POLICY_SCHEMA, Policy, load_policy, parse_policy

#: A policy with a classifier has a few hundred kB; a larger file is something else.
MAX_POLICY_BYTES = 64 * 1024 * 1024

PolicySource = str | PathLike[str] | IO[str] | IO[bytes] | Mapping[str, Any]


def read_policy(source: PolicySource) -> Policy:
    """A checked policy from a path, an open file (text or binary) or plain data; raises `PolicyError`."""
    if isinstance(source, Mapping):
        return _from_data(dict(source), "policy")
    if isinstance(source, (str, PathLike)):
        return _from_path(Path(source))
    return _from_stream(source)


def _from_path(file: Path) -> Policy:
    try:
        size = file.stat().st_size
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise PolicyError(f"{file}: cannot be read ({getattr(error, 'strerror', error)})") from error
    if size > MAX_POLICY_BYTES:
        raise PolicyError(f"{file}: {size} bytes, a policy has at most {MAX_POLICY_BYTES}")
    return load_policy(file)


def _from_stream(stream: IO[str] | IO[bytes]) -> Policy:
    if not callable(getattr(stream, "read", None)):
        raise PolicyError(f"a policy is read from a path, an open file or a dict, not from {type(stream).__name__}")
    source = str(getattr(stream, "name", "policy"))
    try:
        text = stream.read(MAX_POLICY_BYTES + 1)
        if len(text) > MAX_POLICY_BYTES:
            raise PolicyError(f"{source}: a policy has at most {MAX_POLICY_BYTES} bytes")
        data = json.loads(text)
    except OSError as error:
        raise PolicyError(f"{source}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise PolicyError(f"{source}: not JSON ({error})") from error
    return _from_data(data, source)


def _from_data(data: Any, source: str) -> Policy:
    """The checks that `read_json` makes for a path."""
    if not isinstance(data, dict) or not isinstance(data.get("schema_version"), int):
        raise PolicyError(f"{source}: no schema_version in it: not a policy this program wrote")
    if data["schema_version"] > POLICY_SCHEMA:
        raise PolicyError(
            f"{source}: schema {data['schema_version']} is newer than schema {POLICY_SCHEMA}, "
            "the newest this version reads: upgrade"
        )
    return parse_policy(data, source)
