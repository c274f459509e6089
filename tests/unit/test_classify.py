"""The text classifier: same numbers as scikit-learn, honest cross-validation, any text."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selector import train_classifier
from selector.classify import BUCKETS, MAX_CHARS, TextClassifier, cut, feature_counts
from selector.errors import MissingExtra
from selector.policy import Classifier
from selector.train_classifier import HEAD_CHARS, fit, scaled, term_frequencies, train

TEXTS = [
    f"{head} {n} {tail}"
    for n in range(6)
    for head, tail in (
        ("translate this into", "please"),
        ("def function(x):", "return x"),
        ("how many apples are", "7 + 8"),
    )
]
LABELS = ["translate", "code", "math"] * 6


@pytest.mark.parametrize("labels", [LABELS, ["code" if t == "code" else "other" for t in LABELS]])
def test_rounded_numbers_agree_with_sklearn(labels: list[str]) -> None:
    numbers = train(TEXTS, labels, seed=0)
    assert numbers is not None
    again = Classifier.model_validate_json(numbers.model_dump_json())
    classes = sorted(set(labels))
    tf, heads = term_frequencies(TEXTS), term_frequencies([t[:HEAD_CHARS] for t in TEXTS])
    idf, model = fit(tf, heads, np.array([classes.index(t) for t in labels]))
    unseen = [*TEXTS, "something else", "", "x = 1"]
    expected = model.predict_proba(scaled(term_frequencies(unseen), idf))
    got = [TextClassifier(again).probabilities(text) for text in unseen]
    assert np.abs(np.array(got) - expected).max() < 1e-4


def test_training_is_reproducible_and_reports_its_cross_validation() -> None:
    numbers = train(TEXTS, LABELS, seed=3)
    assert numbers == train(TEXTS, LABELS, seed=3)
    assert numbers is not None
    assert numbers.classes == ("code", "math", "translate")
    assert sum(map(sum, numbers.confusion)) == numbers.trained_on == len(TEXTS)
    right = sum(numbers.confusion[i][i] for i in range(3))
    assert numbers.cross_validated_accuracy == pytest.approx(right / len(TEXTS), abs=1e-4)
    assert 0.3 <= numbers.min_confidence <= 1
    assert len(json.dumps(numbers.model_dump())) < 600_000


def test_copies_of_a_prompt_count_once() -> None:
    once, twice = train(TEXTS, LABELS, seed=0), train(TEXTS * 2, LABELS * 2, seed=0)
    assert once == twice


def test_noise_is_not_called_accurate() -> None:
    rng = np.random.default_rng(0)
    labels = [str(v) for v in rng.permutation(LABELS)]
    numbers = train(TEXTS, labels, seed=0)
    assert numbers is not None
    assert numbers.cross_validated_accuracy < 0.8
    assert numbers.min_confidence > 0.3


def test_one_class_needs_no_classifier() -> None:
    assert train(["a", "b"], ["chat", "chat"], seed=0) is None
    assert train([], [], seed=0) is None


@pytest.mark.parametrize("sizes", [(1, 1), (1, 6), (2, 3), (4, 1, 1)])
def test_tiny_classes_train(sizes: tuple[int, ...]) -> None:
    texts = [f"class {c} text {i} word{c}" for c, n in enumerate(sizes) for i in range(n)]
    labels = [f"task{c}" for c, n in enumerate(sizes) for _ in range(n)]
    numbers = train(texts, labels, seed=0)
    assert numbers is not None
    assert numbers.trained_on == sum(sizes)
    assert TextClassifier(numbers).predict(texts[0])[0] in numbers.classes


def test_a_missing_scikit_learn_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_classifier, "LogisticRegression", None)
    with pytest.raises(MissingExtra, match=r"scikit-learn is not installed.*\[tune\]"):
        train(TEXTS, LABELS, seed=0)


def test_long_texts_keep_both_ends() -> None:
    text = "a" * 5000 + "b" * 5000
    assert cut(text, 10) == "aaaaa\nbbbbb"
    assert cut("short", 10) == "short"


@given(st.text(st.characters(), max_size=3000))
@settings(max_examples=100, deadline=None)
def test_any_text_has_finite_features(text: str) -> None:
    present, tf = feature_counts(text, BUCKETS, MAX_CHARS)
    assert len(present) == len(tf) == len(set(present.tolist()))
    assert np.isfinite(tf).all()
    assert (tf >= 1).all()


def test_features_do_not_depend_on_the_process() -> None:
    # crc32, not hash(): the numbers in a policy file must mean the same on every machine
    present, _ = feature_counts("Sort the list", BUCKETS, MAX_CHARS)
    assert present[:3].tolist() == [4, 204, 259]
