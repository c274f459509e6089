"""Which n-gram lookup windows are worth keeping: Optuna searches, replay of the recordings scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from selector.adapters.ngram import replay_ngram
from selector.engines.base import Generation
from selector.strategy import Strategy
from selector.walks import pooled_tau, walk

MAX_LOOKUP_MIN, MAX_LOOKUP_MAX = 5, 8
TRIALS, KEEP = 18, 3
#: Tried first: the engine's default, the common choices, and the eager extreme.
SEEDS = ((5, 5), (2, 4), (1, 3), (3, 5))
#: Price of one verified draft in target steps, only to compare windows with each other.
DRAFT_PRICE = 0.04

Scores = dict[tuple[int, int], dict[str, float]]


def search_windows(
    recordings: Mapping[str, Sequence[Generation]], k_max: int, seed: int, on_trial: Callable[[], None]
) -> list[Strategy]:
    """The windows to profile: the best for the mean over classes, and each class's own best, at most `KEEP`.

    `recordings`: per class. A window's score for a class is tau at its best k less the price of what was proposed.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    scores: Scores = {}

    def objective(trial: optuna.Trial) -> float:
        low = trial.suggest_int("lookup_min", 1, MAX_LOOKUP_MIN)
        window = (low, low + trial.suggest_int("extra", 0, MAX_LOOKUP_MAX - MAX_LOOKUP_MIN))
        if window not in scores:
            scores[window] = {name: score(rs, window, k_max) for name, rs in recordings.items()}
        on_trial()
        return sum(scores[window].values()) / len(recordings)

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=8))
    for low, high in SEEDS:
        study.enqueue_trial({"lookup_min": low, "extra": high - low})
    study.optimize(objective, n_trials=TRIALS)
    return [
        Strategy(method="ngram", lookup_min=low, lookup_max=high, num_speculative_tokens=k_max)
        for low, high in _keep(scores)
    ]


def score(recordings: Sequence[Generation], window: tuple[int, int], k_max: int) -> float:
    """Best over k of tokens per priced step, pooled over recordings."""
    replays = [replay_ngram(r.prompt_ids, r.output_ids, *window, k_max) for r in recordings]
    best = 1.0
    for k in range(1, k_max + 1):
        walks = [walk(accepted, k, proposed) for accepted, proposed in replays if accepted]
        steps = sum(w.steps for w in walks)
        if steps:
            price = 1 + DRAFT_PRICE * sum(w.drafted for w in walks) / steps
            best = max(best, pooled_tau(walks) / price)
    return best


def _keep(scores: Scores) -> list[tuple[int, int]]:
    """The best on average, then what the classes gain most by having to themselves."""
    kept = [max(scores, key=lambda w: (sum(scores[w].values()), w))]
    classes = list(scores[kept[0]])
    while len(kept) < KEEP:
        gains = {
            w: sum(max(0.0, s[c] - max(scores[other][c] for other in kept)) for c in classes)
            for w, s in scores.items()
            if w not in kept
        }
        if not gains or max(gains.values()) <= 0.005 * len(classes):
            break
        kept.append(max(gains, key=lambda w: (gains[w], w)))
    return kept
