"""Deterministic tests without a display."""

import os

os.environ["MPLBACKEND"] = "Agg"  # before anything imports matplotlib; subprocesses inherit it
os.environ.pop("COLUMNS", None)  # pytest-xdist states a width; without a terminal the command has its own

from hypothesis import settings

settings.register_profile("deterministic", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("deterministic")
