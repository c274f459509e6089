"""Traffic: which share of the requests each class has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from selector.errors import NotMeasured, WorkloadError
from selector.profile import Profile


def parse_traffic(text: str, profile: Profile) -> dict[str, float]:
    """Read `chat=0.6,code=0.4`; names are class or task names of the profile (a class name may hold commas).

    Raises `NotMeasured` for an unknown name, `WorkloadError` for anything else that is not NAME=SHARE.
    """
    known = sorted({c.name for c in profile.classes} | {c.task for c in profile.classes}, key=len, reverse=True)
    shares: dict[str, float] = {}
    rest = text.strip()
    while rest:
        name = next((n for n in known if rest.startswith(f"{n}=")), None)
        if name is None:
            raise NotMeasured(
                f"--traffic: no class or task {rest.partition('=')[0]!r} in this profile;"
                f" it has {', '.join(sorted(known))}"
            )
        number, _, rest = rest[len(name) + 1 :].partition(",")
        rest = rest.strip()
        if name in shares:
            raise WorkloadError(f"--traffic: {name!r} is given twice")
        try:
            shares[name] = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
        except ValueError as error:
            raise WorkloadError(f"--traffic: {name}={number!r} is not a number") from error
    if not shares:
        raise WorkloadError("--traffic is empty: give NAME=SHARE, e.g. chat=0.6,code=0.4")
    return shares


def traffic_shares(
    profile: Profile, classes: Sequence[str], traffic: Mapping[str, float] | None
) -> tuple[dict[str, float], str]:
    """Share per class (sums to 1), and a sentence saying where the shares come from.

    Without `traffic`: as in the workload. A task name that is no class is split among the task's classes by requests.
    """
    infos = {c.name: c for c in profile.classes if c.name in classes}
    counts = {n: float(i.prompts_available if i.requests is None else i.requests) for n, i in infos.items()}
    if traffic is None:
        return _normalised(counts), "traffic shares as in the workload (change them with --traffic)"
    shares = dict.fromkeys(classes, 0.0)
    for name, share in traffic.items():
        if not 0 <= share < float("inf"):
            raise WorkloadError(f"traffic share of {name!r} is {share}: shares are positive")
        members = [name] if name in infos else [c for c, info in infos.items() if info.task == name]
        if not members:
            raise NotMeasured(f"traffic names {name!r}, which was not measured; measured: {', '.join(classes)}")
        inner = _normalised({m: counts[m] for m in members})
        for m in members:
            shares[m] += share * inner[m]
    absent = [c for c in classes if shares[c] == 0]
    stated = f"; no traffic assumed for {', '.join(absent)}" if absent else ""
    return _normalised(shares), f"traffic shares as given, scaled to 100%{stated}"


def _normalised(shares: Mapping[str, float]) -> dict[str, float]:
    total = sum(shares.values())
    if not 0 < total < math.inf:
        raise WorkloadError(f"the traffic shares add up to {total:g}")
    return {c: s / total for c, s in shares.items()}
