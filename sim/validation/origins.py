"""Which of a GPU's values no datasheet states, where they come from, and how the error hangs on the fitted ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hwmodels import load_gpu, rows
from hwmodels.spec import Gpu
from sim.calibration.constants import OWN_PROGRAMS
from sim.validation.ablation import COLUMNS
from sim.validation.run import validate

STEP = 1.25
"""Factor by which a constant is moved, up and down."""


def origins_section(gpu: Gpu) -> str:
    """A section for the docs: every value that is neither from a datasheet nor derived from one."""
    found = [row for row in rows(gpu) if row.kind not in ("datasheet", "derived")]
    lines = [f"| {row.key} | {row.value:g} | {row.unit} | {row.kind} | {row.source} |" for row in found]
    kinds = ", ".join(
        f"{sum(row.kind == kind for row in found)} {kind}" for kind in sorted({row.kind for row in found})
    )
    head = f"## Values of {gpu.name} that no datasheet states\n\n{kinds}."
    return "\n".join([head, "", "| value | | unit | kind | source |", "| --- | --- | --- | --- | --- |", *lines])


def sensitivity_section(gpu: Gpu, tables: Mapping[str, Path], limit: int) -> str:
    """A section for the docs: errors on `limit` rows of each table with each constant fitted to GEMMs less and more by
    `STEP`.

    Raises ConfigError as `validate` does.
    """
    names = [row.key for row in rows(gpu) if row.kind == "fitted" and row.key.partition(".")[0] not in OWN_PROGRAMS]
    cases = [("as fitted", "")] + [
        (f"{name} {sign} {STEP:g}", f"{name}=*{factor:g}")
        for name in names
        for sign, factor in (("/", 1 / STEP), ("x", STEP))
    ]
    lines = []
    for label, setting in cases:
        moved = load_gpu(gpu.name, [setting] if setting else [])
        overall = {kind: validate(moved, path, limit=limit).overall for kind, path in tables.items()}
        found = [overall[kind][score] for kind, score in COLUMNS.values()]
        scores = ["-" if value is None else f"{value:.2f}" for value in found]
        lines.append(f"| {label} | {' | '.join(scores)} |")
    head = f"## Fitted constants moved, on {gpu.name}\n\nErrors on {limit} rows of each table, nothing fitted again."
    columns = ["constant", *COLUMNS]
    return "\n".join([head, "", f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}", *lines])
