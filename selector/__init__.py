"""Choose a speculative decoding strategy from measurements, export it, and route by it."""

from selector.errors import SelectorError
from selector.router import Decision, Router

__version__ = "0.1.0"
__all__ = ["Decision", "Router", "SelectorError", "__version__"]
