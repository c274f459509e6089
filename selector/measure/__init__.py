"""Measures once what decides: acceptance, step cost, prefill cost, and a few real cells to check them."""

from importlib.util import find_spec

from selector.errors import MissingExtra
from selector.measure.plan import Plan
from selector.measure.progress import Progress, Silent
from selector.measure.run import Measurement, Settings, journalled, measure

if find_spec("optuna") is None:  # said before anything is loaded or measured, not after minutes
    raise MissingExtra("optuna", "tune")

__all__ = ["Measurement", "Plan", "Progress", "Settings", "Silent", "journalled", "measure"]
