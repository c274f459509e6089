"""The text classifier of a policy, trained on the workload that was measured."""

from __future__ import annotations

import contextlib
from pathlib import Path

from selector.errors import SelectorError
from selector.policy import Classifier
from selector.profile import Profile
from selector.workload import load_workload, texts


def train_classifier(profile: Profile, workload: str | Path | None, seed: int) -> tuple[Classifier | None, str | None]:
    """The text classifier trained on the profile's own workload, or why there is none."""
    from selector.train_classifier import train  # scikit-learn is the [tune] extra's

    place = workload if workload is not None else (None if profile.workload == "default" else profile.workload)
    try:
        found = load_workload(place)
    except SelectorError as error:
        return None, f"no text classifier: {error}; pass --workload"
    if profile.temperature_bands is not None:
        with contextlib.suppress(SelectorError):  # then it is another workload, as said below
            found = found.banded(profile.temperature_bands)
    if found.digest != profile.workload_sha256:
        return (
            None,
            f"no text classifier: {found.source} is not the workload that was measured; pass --workload",
        )
    return train(texts(found.requests), [r.task for r in found.requests], seed), None
