"""What a calibration writes, as text: the GPU file, and the page of the report that its figures stand in."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from hwmodels.errors import ConfigError
from hwmodels.folders import GPUS, list_gpus
from hwmodels.refusals import printable
from hwmodels.spec import FIELDS
from sim.calibration.outcome import ErrorGroup, Fitted, Outcome

DIGEST_CHARACTERS = 12
LONGEST_COMMAND, LONGEST_LABEL = 300, 80
CALIBRATED = ", calibrated"
FIGURES = {
    "predicted": "Predicted against measured time, and the errors of both halves",
    "shapes": "Errors by shape",
    "configurations": "Errors by kernel configuration",
    "sensitivity": "What 10 % of each constant does",
    "identifiability": "Which constants the data tell apart",
    "folds": "Each constant with every fold left out",
}
"""Figures of the report, by the stem of their file, with their titles."""
QUANTITIES = {
    "time_us": "time",
    "sm_cycles": "SM cycles",
    "sm_mhz": "SM clock",
    "dram_read_bytes": "DRAM bytes read",
    "l2_read_bytes": "L2 bytes read",
}


# The GPU file.
def gpu_toml(outcome: Outcome, path: Path) -> str:
    """A GPU file to stand at `path`: inherits from the GPU given, and holds what was fitted or read anew.

    Raises ConfigError where `path` is the file it would inherit from.
    """
    keys = {one.key: (one.after, "fitted", _source(outcome, one)) for one in outcome.constants}
    keys |= {
        one.key: (one.value, "microbenchmark", f"{outcome.command}: {one.file}, {one.said}")
        for one in outcome.readings
        if not one.agrees
    }
    label = outcome.label.removesuffix(CALIBRATED)[: LONGEST_LABEL - len(CALIBRATED)] + CALIBRATED
    lines = [
        "# Written by tilewalk calibrate. What is not here is inherited.",
        "",
        f"label = {_quoted(label)}",
        f"inherits = {_quoted(inherited(outcome.inherits, path))}",
    ]
    section = ""
    for key in FIELDS:  # in the order of every GPU file
        if key in keys:
            value, kind, source = keys[key]
            head, _, name = key.rpartition(".")
            lines += ["", f"[{head}]"] if head != section else []
            section = head
            lines.append(f'{name} = {{ value = {value:.6g}, kind = "{kind}", source = {_quoted(source)} }}')
    return "\n".join(lines) + "\n"


def inherited(gpu: str, path: Path) -> str:
    """What a file at `path` writes to inherit from `gpu`, a shipped name or a file."""
    own = GPUS / f"{gpu}.toml" if gpu in list_gpus() else gpu
    if os.path.realpath(own) == os.path.realpath(path):
        raise ConfigError(f"output = {path}: must be another file than the GPU's own, which it inherits from")
    if gpu in list_gpus():
        return gpu
    relative = Path(os.path.relpath(os.path.realpath(gpu), os.path.dirname(os.path.realpath(path)))).as_posix()
    return relative if "/" in relative else f"./{relative}"


def _source(outcome: Outcome, one: Fitted) -> str:
    stage = next(stage for stage in outcome.stages if stage.stage == one.stage)
    unseen = "" if stage.out_of_fold_pct is None else f", {stage.out_of_fold_pct:.2f} % on shapes of a fold left out"
    spread = f"; over {len(one.folds)} folds {min(one.folds):.4g} to {max(one.folds):.4g}" if one.folds else ""
    return (
        f"{outcome.command[:LONGEST_COMMAND]}: data sha256 {outcome.digest[:DIGEST_CHARACTERS]}; even-hash shapes, "
        f"{one.n_rows} rows; mean error of {' and '.join(stage.compares)} {stage.after_pct:.2f} %{unseen}{spread}"
    )


def _quoted(text: str) -> str:
    """A TOML basic string; JSON escapes the same way."""
    return json.dumps(printable(text), ensure_ascii=False)


# The page.
def markdown(outcome: Outcome, figures: Iterable[str]) -> str:
    """The report as a page of Markdown; `figures` are the stems of those that lie beside it."""
    there = set(figures)

    def figure(*stems: str) -> list[str]:
        return [f"![{FIGURES[stem]}]({stem}.png)" for stem in stems if stem in there]

    parts = [
        f"# Calibration of {outcome.label}",
        _how(outcome),
        "## Constants",
        *_constants(outcome),
        "## Errors",
        _ERRORS,
        *_errors(outcome),
        *figure("predicted", "shapes", "configurations"),
        "## How sure",
        *_sure(outcome),
        *figure("sensitivity", "identifiability", "folds"),
        "## What was left as it is",
        _table(["constant", "why"], list(outcome.left.items())),
    ]
    if outcome.readings:
        parts += ["## Read from microbenchmarks", *_readings(outcome)]
    if outcome.unused:
        rows = sorted(outcome.unused.items(), key=lambda pair: -pair[1])
        parts += ["## Rows not used", _table(["rows", "why"], [(str(n), why) for why, n in rows])]
    return "\n\n".join(parts) + "\n"


_ERRORS = """Mean absolute error of all kernels used, each at the clock that the model gives it, with the constants
before and after. "Fitted" are shapes of even hash, on which the constants were fitted, "not fitted" those of odd."""


def _how(outcome: Outcome) -> str:
    stages = "\n".join(
        f"- {stage.stage}: {' and '.join(stage.compares)}, {stage.n_rows:,} rows of {stage.n_shapes:,} shapes: "
        f"{stage.before_pct:.2f} % before, {stage.after_pct:.2f} % after"
        + (f", {stage.out_of_fold_pct:.2f} % on shapes left out" if stage.out_of_fold_pct is not None else "")
        for stage in outcome.stages
    )
    return (
        f"`{outcome.command}`: {', '.join(outcome.files)} (SHA-256 {outcome.digest[:DIGEST_CHARACTERS]}), "
        f"{outcome.simulations:,} simulations in {outcome.seconds / 60:.1f} minutes.\n\n{outcome.drawn}\n\n"
        f"Stages, in order, with the mean error of what each compares (counters at the measured clock):\n\n{stages}"
    )


def constants_table(outcome: Outcome) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of the fitted constants, for terminal and page."""
    rows = [
        [
            one.key,
            one.unit,
            f"{one.before:.4g}",
            f"{one.after:.4g}{' (at a bound)' if one.at_bound else ''}",
            f"{min(one.folds):.4g} to {max(one.folds):.4g}" if one.folds else "-",
            f"{one.n_rows:,}",
        ]
        for one in outcome.constants
    ]
    return ["constant", "unit", "before", "after", "over the folds", "rows"], rows


def errors_table(outcome: Outcome) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of the errors, both halves in a row, for terminal and page."""
    halves: dict[tuple[str, str, str], dict[bool, ErrorGroup]] = {}
    for group in outcome.groups:
        halves.setdefault((group.table, group.family, group.quantity), {})[group.fitted] = group
    rows = []
    for (table, family, quantity), pair in halves.items():
        cells = [table, family, QUANTITIES[quantity]]
        for fitted in (True, False):
            half = pair.get(fitted)
            cells += [f"{half.n}", f"{half.before_pct:.2f}", f"{half.after_pct:.2f}"] if half else ["0", "-", "-"]
        rows.append(cells)
    head = ["table", "kernels", "of", "fitted: rows", "before %", "after %", "not fitted: rows", "before %", "after %"]
    return head, rows


def _constants(outcome: Outcome) -> list[str]:
    if not outcome.constants:
        return ["None: the rows determine no constant (see below)."]
    return [_table(*constants_table(outcome))]


def _errors(outcome: Outcome) -> list[str]:
    return [_table(*errors_table(outcome))]


def warnings(outcome: Outcome) -> list[str]:
    """What to beware of, in words: fits that gain nothing, constants that are alike to the data or ended at a bound."""
    said = [
        f"On shapes left out, the {stage.stage} stage is no better than before ({stage.out_of_fold_pct:.2f} % against "
        f"{stage.before_pct:.2f} %): these rows give no reason to change its constants."
        for stage in outcome.stages
        if stage.out_of_fold_pct is not None and stage.out_of_fold_pct >= stage.before_pct
    ]
    said += [
        f"The data cannot tell {one} and {other} apart (correlation {r:+.2f}): they know "
        f"{'what the two have in common' if r < 0 else 'the difference of the two'}, not each."
        for one, other, r in outcome.identified.alike
    ]
    said += [
        f"{one.key} ended at a bound ({one.after:g} {one.unit}, allowed {one.low:g} to {one.high:g}): the model lacks "
        f"something that it stands in for, or the data hold nothing against it."
        for one in outcome.constants
        if one.at_bound
    ]
    return said


def _sure(outcome: Outcome) -> list[str]:
    if not outcome.constants:
        return ["Nothing was fitted."]
    head = ["constant", "bounds", "10 % of it changes its rows by", "loss +10 %", "loss -10 %", "deviation", "folds"]
    rows = [
        [
            one.key,
            f"{one.low:g} to {one.high:g}",
            f"{one.effect_pct:+.2f} %",
            f"{one.loss_up_pct:+.2f} %",
            f"{one.loss_down_pct:+.2f} %",
            f"{one.deviation_pct:.1f} %",
            f"{100 * one.spread / one.after:.1f} %" if one.folds else "-",
        ]
        for one in outcome.constants
    ]
    said = warnings(outcome)
    if not outcome.identified.alike:
        said.append("No two constants are alike to the data (all correlations of estimates under 0.9).")
    condition = (
        f"Condition number of the slopes, each constant's brought to length 1: {outcome.identified.condition:.1f} "
        "(1: every constant has kernels of its own)."
    )
    note = (
        "What 10 % changes is a mean over rows. The loss is that of the constant's stage. The deviation follows from "
        "the curvature of the loss and from errors that differ from row to row by chance; what the model does not know "
        "is not chance, so trust the folds more: their standard deviation is beside it."
    )
    return [_table(head, rows), note, *said, condition]


def _readings(outcome: Outcome) -> list[str]:
    rows = [
        [
            one.key,
            f"{one.before:.4g}",
            f"{one.value:.4g}",
            "as in the GPU's file" if one.agrees else "taken",
            f"{one.file}: {one.said}",
        ]
        for one in outcome.readings
    ]
    return [_table(["value", "GPU's file", "tables", "", "how"], rows)]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [list(head), ["---"] * len(head), *map(list, rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
