"""Measures engines that serve: few launches, each visited for acceptance, step cost and real requests."""

from importlib.util import find_spec

from selector.errors import MissingExtra

if find_spec("httpx") is None:  # said before anything is started
    raise MissingExtra("httpx", "tune")

from selector.measure.served.run import ServedMeasurement, measure_served
from selector.measure.served.settings import ServedSettings

__all__ = ["ServedMeasurement", "ServedSettings", "measure_served"]
