"""Deterministic tests without a display."""

import os

os.environ["MPLBACKEND"] = "Agg"  # before anything imports matplotlib; subprocesses inherit it

from hypothesis import settings

settings.register_profile("deterministic", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("deterministic")
