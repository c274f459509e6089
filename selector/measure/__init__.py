"""Measures once what decides: acceptance, step cost, prefill cost, and a few real cells to check them."""

from selector.measure.plan import Plan
from selector.measure.progress import Progress, Silent
from selector.measure.run import Measurement, Settings, measure

__all__ = ["Measurement", "Plan", "Progress", "Settings", "Silent", "measure"]
