"""Decides from a profile: which strategy for which class at which load, and when none at all."""

from selector.recommend.decide import recommend
from selector.recommend.table import render
from selector.recommend.traffic import parse_traffic

__all__ = ["parse_traffic", "recommend", "render"]
