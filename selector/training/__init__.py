"""Trains drafters for a target from the target's own outputs: `python -m selector.training --help`."""
