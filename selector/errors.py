"""What can go wrong, in words a caller can act on."""

from __future__ import annotations


class SelectorError(Exception):
    """Base of every error this package raises on purpose; the message says what to do next."""


class WorkloadError(SelectorError):
    """A workload file cannot be read as one; the message names file and line."""


class RecipeError(SelectorError):
    """A strategy recipe or a strategy's settings are wrong; the message names the key."""


class DrafterMismatch(SelectorError):
    """A drafter does not fit the target (vocabulary, tokenizer, sizes, d2t)."""


class ProfileError(SelectorError):
    """A profile file is unreadable, of a newer schema, or inconsistent."""


class PolicyError(SelectorError):
    """A policy file is unreadable, of a newer schema, or inconsistent."""


class ExportError(SelectorError):
    """The engine would refuse or silently ignore what was asked to be written."""


class CountersError(SelectorError):
    """A serving engine's counters contradict each other, or a reported figure cannot be read without them."""


class NotMeasured(SelectorError):
    """The number asked for was not measured and will not be invented."""


class NoFeasibleStrategy(SelectorError):
    """The search ran and nothing satisfies the limits; the message names the binding one."""


class MeasurementFailed(SelectorError):
    """No arm, or not the plain arm, could be measured."""


class FetchError(SelectorError):
    """The embedded model could not be fetched or its hash differs."""


class LaunchError(SelectorError):
    """How a served engine is to be started was given wrongly or cannot be found out; the message names the option."""


class ServerFailed(SelectorError):
    """A served engine did not start, died, or could not be stopped; the message has the engine's own reason."""


class MissingExtra(SelectorError):
    """An optional dependency is not installed; the message names the extra."""

    def __init__(self, module: str, extra: str) -> None:
        self.module, self.extra = module, extra
        super().__init__(f"{module} is not installed: pip install 'decoding-strategy-selector[{extra}]'")
