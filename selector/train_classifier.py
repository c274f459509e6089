"""Trains the request classifier with scikit-learn and writes it down as plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from selector.classify import BUCKETS, MAX_CHARS, feature_counts
from selector.errors import MissingExtra
from selector.policy import Classifier

try:
    from scipy import sparse  # type: ignore[import-untyped]  # scipy ships no types
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # comes with scikit-learn
except ModuleNotFoundError:
    sparse = LogisticRegression = threadpool_limits = None

FOLDS = 5
#: Inverse regularisation; chosen by cross-validation on the shipped workloads, flat from 10 to 100.
INVERSE_PENALTY = 10.0
#: Of the requests that the classifier may decide, fewer than this share may be wrong (cross-validated).
MAX_ERROR = 0.02
LOWEST_MIN_CONFIDENCE = 0.3
#: Every prompt is also shown cut to its first words, so that short requests are not judged by their length.
HEAD_CHARS = 90
_DIGITS = 6

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]


def train(texts: Sequence[str], labels: Sequence[str], seed: int) -> Classifier | None:
    """Fit a classifier on labelled request texts; None when there is only one label (nothing to tell apart).

    `min_confidence` and the confusion table (rows true, columns predicted, both in the order of `classes`)
    come from cross-validation. Repeated texts of one label count once, else copies would sit in two folds.
    Raises `MissingExtra` without scikit-learn.
    """
    if LogisticRegression is None:
        raise MissingExtra("scikit-learn", "tune")
    pairs = list(dict.fromkeys(zip(texts, labels, strict=True)))
    classes = sorted({label for _, label in pairs})
    if len(classes) < 2:
        return None
    y = np.array([classes.index(label) for _, label in pairs], np.intp)
    tf = term_frequencies([text for text, _ in pairs])
    heads = term_frequencies([text[:HEAD_CHARS] for text, _ in pairs])
    guessed, confidence = _cross_validate(tf, heads, y, len(classes), seed)
    idf, model = fit(tf, heads, y)
    confusion = np.zeros((len(classes), len(classes)), int)
    np.add.at(confusion, (y, guessed), 1)
    weights, bias = _as_rows(model)
    return Classifier(
        classes=tuple(classes),
        buckets=BUCKETS,
        max_chars=MAX_CHARS,
        idf=_rounded(idf),
        weights=tuple(_rounded(row) for row in weights),
        bias=_rounded(bias),
        min_confidence=_least_confidence(confidence, guessed == y),
        cross_validated_accuracy=round(float(np.mean(guessed == y)), 4),
        trained_on=len(pairs),
        confusion=tuple(tuple(int(n) for n in row) for row in confusion),
    )


def term_frequencies(texts: Sequence[str]) -> Any:
    """Rows of `feature_counts`, one per text, as a scipy CSR matrix."""
    rows = [feature_counts(text, BUCKETS, MAX_CHARS) for text in texts]
    ends = np.cumsum([0] + [len(present) for present, _ in rows])
    present = np.concatenate([p for p, _ in rows])
    return sparse.csr_matrix((np.concatenate([v for _, v in rows]), present, ends), shape=(len(texts), BUCKETS))


def fit(tf: Any, heads: Any, y: Ints) -> tuple[Floats, Any]:
    """(idf, fitted LogisticRegression) of one training set, whole texts and their heads."""
    tf, y = sparse.vstack([tf, heads]).tocsr(), np.concatenate([y, y])
    seen = np.asarray((tf > 0).sum(axis=0)).ravel()
    idf = np.log((1 + tf.shape[0]) / (1 + seen)) + 1
    model = LogisticRegression(C=INVERSE_PENALTY, class_weight="balanced", max_iter=1000)
    with threadpool_limits(1):  # problems this small lose time to thread hand-overs
        return idf, model.fit(scaled(tf, idf), y)


def scaled(tf: Any, idf: Floats) -> Any:
    """tf x idf with rows of length 1."""
    weighted = tf.multiply(idf).tocsr()
    norms = np.sqrt(np.asarray(weighted.multiply(weighted).sum(axis=1)).ravel())
    return sparse.diags(1 / np.where(norms > 0, norms, 1)) @ weighted


def _cross_validate(tf: Any, heads: Any, y: Ints, classes: int, seed: int) -> tuple[Ints, Floats]:
    """Out-of-fold guess and its confidence for every whole text; a text's head stays in its fold."""
    fold = _folds(y, seed)
    guessed, confidence = np.zeros(len(y), np.intp), np.zeros(len(y))
    for f in range(fold.max() + 1):
        held, kept = fold == f, fold != f
        known = np.unique(y[kept])
        if len(known) < 2:  # classes of one prompt: what is left cannot tell anything apart
            guessed[held], confidence[held] = known[0], 1 / classes
            continue
        idf, model = fit(tf[kept], heads[kept], y[kept])
        chances = model.predict_proba(scaled(tf[held], idf))
        guessed[held], confidence[held] = model.classes_[chances.argmax(axis=1)], chances.max(axis=1)
    return guessed, confidence


def _folds(y: Ints, seed: int) -> Ints:
    """Fold of every text, each class spread evenly; fewer folds when a class has fewer than five prompts.

    scikit-learn's StratifiedKFold warns about classes smaller than the number of folds; here they may be.
    """
    count = max(2, min(FOLDS, int(np.bincount(y)[np.unique(y)].min())))
    fold = np.zeros(len(y), np.intp)
    rng = np.random.default_rng(seed)
    for label in np.unique(y):
        members = rng.permutation(np.flatnonzero(y == label))
        fold[members] = (np.arange(len(members)) + label) % count  # + label: single prompts spread over folds
    return fold


def _least_confidence(confidence: Floats, right: npt.NDArray[np.bool_]) -> float:
    """The lowest threshold with fewer than `MAX_ERROR` of the accepted guesses wrong; 1 if none is."""
    for threshold in [LOWEST_MIN_CONFIDENCE, *sorted(c for c in confidence if c > LOWEST_MIN_CONFIDENCE)]:
        accepted = confidence >= threshold
        if accepted.any() and np.mean(~right[accepted]) < MAX_ERROR:
            return round(float(threshold), 4)
    return 1.0


def _as_rows(model: Any) -> tuple[Floats, Floats]:
    """One row of weights per class; scikit-learn gives a single row for two classes."""
    weights, bias = model.coef_, model.intercept_
    if len(weights) == 1:
        return np.vstack([np.zeros_like(weights), weights]), np.array([0.0, bias[0]])
    return weights, bias


def _rounded(values: Floats) -> tuple[float, ...]:
    return tuple(float(f"{v:.{_DIGITS}g}") for v in values)
