"""Replay the measured tables that are shipped, and write what the project says of its own error.

Usage: python docs/make_validation.py

Writes docs/validation.md and sim/validation/expected_errors.toml, which `tilewalk gemm` quotes. About five minutes on
two cores; run it after any change to the engine or to a GPU's constants.
"""

from __future__ import annotations

from pathlib import Path

from hwmodels import load_gpu, measured_path
from sim.validation import markdown, validate
from sim.validation.expected import write_expected_errors

GPU = "h200_sxm"
TABLES = ("gemm", "tile_sweep", "counters")
PAGE = Path(__file__).parent / "validation.md"


def main() -> None:
    """Replay, then write both files."""
    gpu = load_gpu(GPU)
    reports = [validate(gpu, measured_path(GPU, table)) for table in TABLES]
    PAGE.write_text(markdown(reports), encoding="utf-8")
    write_expected_errors(reports)


if __name__ == "__main__":
    main()
