"""Whether a strategy's output is what plain decoding gives: `verify_lossless` answers, with evidence."""

from selector.verify.check import DEFAULT_ALPHA, DEFAULT_SETTINGS, LosslessCheck, verify_lossless
from selector.verify.prompts import choose
from selector.verify.report import LosslessReport, Setting, StrategyReport

__all__ = [
    "DEFAULT_ALPHA",
    "DEFAULT_SETTINGS",
    "LosslessCheck",
    "LosslessReport",
    "Setting",
    "StrategyReport",
    "choose",
    "verify_lossless",
]
