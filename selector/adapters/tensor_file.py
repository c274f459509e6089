"""A safetensors file by its header, read without torch, and whether the numbers in it are numbers."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from selector.errors import DrafterMismatch

AGAIN = "copy or export the checkpoint again"
_MAX_HEADER_BYTES = 100 * 2**20
#: Bits of one number; of a type that is not here the size is taken at the header's word.
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64,
}  # fmt: skip
#: NaN and Inf are the numbers whose exponent bits are all set; read as integers, since numpy has no bfloat16.
_EXPONENTS = {
    "F64": ("<u8", 0x7FF0000000000000), "F32": ("<u4", 0x7F800000), "F16": ("<u2", 0x7C00), "BF16": ("<u2", 0x7F80),
}  # fmt: skip
_AT_ONCE = 2**20


@dataclass(frozen=True)
class TensorEntry:
    """Where one tensor lies: file, type name, shape, first byte and size."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int

    def holds_nan_or_inf(self) -> bool:
        """Whether any of its numbers is one; False for types other than 16 to 64 bit floats."""
        if self.dtype not in _EXPONENTS:
            return False
        kind, bits = _EXPONENTS[self.dtype]
        with self.file.open("rb") as f:
            f.seek(self.start)
            for at in range(0, math.prod(self.shape), _AT_ONCE):
                part = np.fromfile(f, kind, min(_AT_ONCE, math.prod(self.shape) - at))
                if ((part & bits) == bits).any():
                    return True
        return False


def read_header(file: Path) -> dict[str, TensorEntry]:
    """Every tensor by name: eight bytes of length, then a JSON header of names, types, shapes and offsets."""
    try:
        with file.open("rb") as f:
            prefix = f.read(8)
            size = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
            if not 2 <= size <= _MAX_HEADER_BYTES:
                raise DrafterMismatch(f"{file}: not a safetensors file (a git-lfs pointer, or cut off?); {AGAIN}")
            header = json.loads(f.read(size))
    except OSError as error:
        raise DrafterMismatch(f"{file}: cannot be read ({error.strerror}); {AGAIN}") from error
    except (ValueError, RecursionError) as error:
        raise DrafterMismatch(f"{file}: the safetensors header is broken ({error}); {AGAIN}") from error
    if not isinstance(header, dict):
        raise DrafterMismatch(f"{file}: the safetensors header is broken (not a JSON object); {AGAIN}")
    found = {name: _entry(file, 8 + size, name, told) for name, told in header.items() if name != "__metadata__"}
    _refuse_gaps(file, 8 + size, found)
    return found


def _entry(file: Path, base: int, name: str, told: Any) -> TensorEntry:
    try:
        dtype, shape, (start, end) = told["dtype"], tuple(told["shape"]), told["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise DrafterMismatch(
            f"{file}: the safetensors header is broken (tensor {name}: {error!r}); {AGAIN}"
        ) from error
    whole = all(type(n) is int and n >= 0 for n in (start, end, *shape))
    if (
        not whole
        or not isinstance(dtype, str)
        or (dtype in _BITS and math.prod(shape) * _BITS[dtype] // 8 != end - start)
    ):
        raise DrafterMismatch(
            f"{file}: tensor {name} of type {dtype!r} and shape {shape!r} does not fill "
            f"bytes {start!r} to {end!r}; {AGAIN}"
        )
    return TensorEntry(file, dtype, shape, base + start, end - start)


def _refuse_gaps(file: Path, base: int, found: dict[str, TensorEntry]) -> None:
    """As the safetensors library does at load: the tensors lie one behind the other and fill the file."""
    at, size = base, file.stat().st_size
    for name, tensor in sorted(found.items(), key=lambda item: (item[1].start, item[1].nbytes)):
        if tensor.start != at:
            raise DrafterMismatch(
                f"{file}: tensor {name} begins at byte {tensor.start:,}, the one before it ends at {at:,}; {AGAIN}"
            )
        at += tensor.nbytes
    if at > size:
        raise DrafterMismatch(f"{file}: cut off: {size:,} bytes of {at:,}; copy it again")
    if at < size:
        raise DrafterMismatch(f"{file}: {size - at:,} bytes behind the last tensor belong to none; {AGAIN}")
