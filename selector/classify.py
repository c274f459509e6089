"""Guesses the task of a request from its text: hashed words and shape, one dot product, numpy only."""

from __future__ import annotations

import math
from collections.abc import Iterator
from zlib import crc32

import numpy as np
import numpy.typing as npt

from selector.errors import PolicyError
from selector.policy import Classifier

BUCKETS = 4096
MAX_CHARS = 1024
#: A policy asking for more than this is damaged or hostile; real ones have a few thousand.
MAX_BUCKETS = 1 << 20

_DIGITS = b"0123456789"
_SYMBOLS = b"{}()[]<>=;:_/\\|&*+-#$%^~@`\"'"
#: Each shape word counts this often: six of them would drown among hundreds of words.
_SHAPE_COUNT = 3
#: 1 + log(count); counts from 512 on weigh the same. Entry 0 is never asked for.
_LOG_TF = 1.0 + np.log(np.maximum(np.arange(513), 1))
_BIGRAM_FACTOR = np.uint32(0x9E3779B1)


def _word_table() -> bytes:
    """Byte map for splitting: digits become 0 (a number is a shape), ASCII punctuation becomes a space."""
    table = bytearray(range(256))
    for code in range(128):
        char = chr(code)
        if char.isdigit():
            table[code] = ord("0")
        elif not (char.isalpha() or char == "_"):
            table[code] = ord(" ")
    return bytes(table)


_TABLE = _word_table()


def cut(text: str, max_chars: int) -> str:
    """The first and last half of what may be read: instructions stand at the ends, documents between."""
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    return text[:half] + "\n" + text[len(text) - half :]


def _shape(text: str, raw: bytes) -> Iterator[bytes]:
    """Cheap looks at the text as pseudo words; the NUL keeps them apart from real ones."""
    size = len(raw)
    yield b"\0size%d" % size.bit_length()
    yield b"\0lines%d" % text.count("\n").bit_length()
    yield b"\0fence%d" % ("```" in text)
    yield b"\0digits%d" % min(9, 40 * (size - len(raw.translate(None, _DIGITS))) // size)
    yield b"\0symbols%d" % min(9, 30 * (size - len(raw.translate(None, _SYMBOLS))) // size)
    yield b"\0foreign%d" % min(9, 20 * (size - len(text)) // size)


def feature_counts(text: str, buckets: int, max_chars: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
    """Buckets present in the text and `1 + log(count)` of each; words, pairs of neighbours, shape."""
    text = cut(text, max_chars)
    raw = text.lower().encode("utf-8", "replace")  # "replace": a lone surrogate from bad JSON must not raise
    if not raw:
        return np.zeros(0, np.intp), np.zeros(0)
    words = np.array(list(map(crc32, raw.translate(_TABLE).split())), np.uint32)
    shape = np.array(list(map(crc32, _shape(text, raw))), np.uint32)
    pairs = words[:-1] * _BIGRAM_FACTOR ^ words[1:]
    hashed = np.concatenate((words, pairs, *[shape] * _SHAPE_COUNT)) % np.uint32(buckets)
    counts = np.bincount(hashed.astype(np.intp), minlength=buckets)
    present = counts.astype(np.bool_).nonzero()[0]  # several times faster than on integers
    return present, _LOG_TF.take(counts.take(present), mode="clip")


class TextClassifier:
    """A policy's `Classifier` made ready to run. Raises `PolicyError` when its tables do not fit together."""

    def __init__(self, numbers: Classifier) -> None:
        _check_shapes(numbers)
        self.classes = numbers.classes
        self.min_confidence = numbers.min_confidence
        self._buckets, self._max_chars = numbers.buckets, numbers.max_chars
        idf = np.array(numbers.idf, np.float64)
        self._idf = idf
        # idf is folded in; one row per bucket, so that a request reads whole rows of the few buckets it has
        self._rows = np.ascontiguousarray((np.array(numbers.weights, np.float64) * idf).T)
        self._bias = np.array(numbers.bias, np.float64)

    def probabilities(self, text: str) -> list[float]:
        """Softmax of the linear scores, in the order of `classes`."""
        present, tf = feature_counts(text, self._buckets, self._max_chars)
        scores = self._bias
        if len(present):
            weighted = tf * self._idf.take(present)
            norm = math.sqrt(weighted.dot(weighted))
            if norm > 0:
                scores = scores + tf.dot(self._rows.take(present, axis=0)) / norm
        values = scores.tolist()
        top = max(values)
        powers = [math.exp(v - top) for v in values]
        total = sum(powers)
        return [p / total for p in powers]

    def predict(self, text: str) -> tuple[str, float]:
        """The likeliest task and its probability."""
        chances = self.probabilities(text)
        best = max(chances)
        return self.classes[chances.index(best)], best


def _check_shapes(numbers: Classifier) -> None:
    n, buckets = len(numbers.classes), numbers.buckets
    if not 1 <= buckets <= MAX_BUCKETS:
        raise PolicyError(f"classifier.buckets is {buckets}, allowed are 1..{MAX_BUCKETS}")
    if numbers.max_chars < 2:
        raise PolicyError(f"classifier.max_chars is {numbers.max_chars}, at least 2 are needed")
    if n < 2 or len(set(numbers.classes)) != n:
        raise PolicyError(f"classifier.classes needs two or more different names, has {list(numbers.classes)}")
    lengths = {
        "idf": (len(numbers.idf), buckets),
        "bias": (len(numbers.bias), n),
        "weights": (len(numbers.weights), n),
    }
    lengths |= {f"weights.{i}": (len(row), buckets) for i, row in enumerate(numbers.weights)}
    for key, (got, wanted) in lengths.items():
        if got != wanted:
            raise PolicyError(f"classifier.{key} holds {got} numbers, {wanted} are needed")
