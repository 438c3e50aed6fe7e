"""`tilewalk whatif`: a workload on a GPU and on variants of it; `tilewalk compare`: on several GPUs."""

from __future__ import annotations

import json as json_module
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hwmodels.errors import ConfigError
from viz.commands import outputs
from viz.commands.cases import Asked, asked
from viz.commands.progress import COMPILING, Status, engine_needs_compiling, in_background, telling
from viz.commands.values import number, refused

if TYPE_CHECKING:
    from sim.studies.study import Study

LOWEST_PRICE, HIGHEST_PRICE = 0.001, 1_000_000
MOST_GPUS = 32


@dataclass(frozen=True)
class WhatIf:
    """What is varied, and what becomes of the answer; words as typed."""

    gpu: str
    sets: Sequence[str]
    scans: Sequence[str]
    sensitivity: bool
    levers: Sequence[str]
    retune: bool
    price: str | None
    save: str | None
    figure: str | None
    csv: str | None
    json: bool


def whatif(options: WhatIf, words: Sequence[str]) -> None:
    """Simulate what was asked for, write files, print. Raises `ConfigError`."""
    _refuse_contradictions(options)
    price = number("--price", options.price, LOWEST_PRICE, HIGHEST_PRICE)
    files = outputs.checked({"save": options.save, "figure": options.figure, "csv": options.csv})
    outputs.check_inputs(files, {"gpu": options.gpu})
    if "figure" in files:
        outputs.check_format(files["figure"])
    from hwmodels.levers import variant
    from hwmodels.variant_file import check_path, write_variant

    found = asked("whatif", words, options.gpu)
    _check_levers(options.levers)
    varied = variant(found.gpu, options.sets)
    if "save" in files:
        check_path("--save", files["save"], options.gpu)
    with telling() as status:
        study = in_background(lambda: _study(options, found, price, status))
        if "save" in files:
            write_variant(files["save"], options.gpu, found.gpu, varied)
        if "csv" in files:
            _write_csv(study, files["csv"])
        if "figure" in files:
            from viz.whatif import save_figure

            status.text = f"drawing {files['figure'].name}"
            save_figure(study, files["figure"])
    _print(study, found.notes, as_json=options.json)


def _refuse_contradictions(options: WhatIf) -> None:
    ways = {"--set": bool(options.sets), "--scan": bool(options.scans), "--sensitivity": options.sensitivity}
    given = [name for name, is_given in ways.items() if is_given]
    if len(given) != 1:
        which = " and ".join(given) if given else "none"
        raise ConfigError(f"{', '.join(ways)}: {which} given, must be one of them (command line)")
    for name, value, needs in (
        ("--save", options.save, "--set"),
        ("--price", options.price, "--set"),
        ("--lever", options.levers, "--sensitivity"),
    ):
        if value and given != [needs]:
            raise ConfigError(f"{name}: needs {needs} (command line)")
    if options.sensitivity and not options.retune:
        raise ConfigError("--no-retune with --sensitivity: small steps keep the kernels anyway (command line)")


def _check_levers(names: Sequence[str]) -> None:
    from hwmodels.levers import lever

    for name in names:
        try:
            lever(name)
        except ConfigError as error:
            raise ConfigError(f"--lever: {error} (command line)") from None


def _study(options: WhatIf, found: Asked, price: float | None, status: Status) -> Study:
    status.text = COMPILING if engine_needs_compiling() else "simulating"
    from sim.studies.variants import comparison_study, scan_study, sensitivity_study
    from sim.whatif import axis, compare, scan, sensitivity

    case, gpu, progress = found.case, found.gpu, _progress(status)
    if options.sensitivity:
        base, told = sensitivity(case, gpu, options.levers, progress=progress)
        return sensitivity_study(base, told, found.text, gpu.name)
    if options.scans:
        axes = [axis(text) for text in options.scans]
        return scan_study(scan(case, gpu, axes, retune=options.retune, progress=progress), found.text, gpu.name)
    compared = compare(case, gpu, options.sets, retune=options.retune)
    return comparison_study(compared, f"{found.text}: {', '.join(options.sets)}", price)


def _progress(status: Status) -> Callable[[int, int], None]:
    def progress(done: int, total: int) -> None:
        status.text, status.done, status.total = "simulating", done, total

    return progress


def compare(gpus: str, words: Sequence[str], *, json: bool) -> None:
    """A workload on several GPUs side by side. Raises `ConfigError`."""
    names = [name.strip() for name in gpus.split(",")]
    if not 2 <= len(names) <= MOST_GPUS or len(set(names)) < len(names):
        raise refused("--gpus", gpus, f"2 to {MOST_GPUS} different GPUs, a,b,c")
    if any(word.partition("=")[0] == "--gpu" for word in words):
        raise ConfigError("--gpu: must not be given, --gpus names all that are compared (command line)")
    wanted = [asked("compare", words, name) for name in names]
    with telling() as status:
        study = in_background(lambda: _compared(wanted, status))
    notes = tuple(f"{one.gpu.name}: {note}" for one in wanted for note in one.notes)
    _print(study, notes, as_json=json)


def _compared(wanted: Sequence[Asked], status: Status) -> Study:
    status.text = COMPILING if engine_needs_compiling() else "simulating"
    from sim.studies.variants import gpus_study
    from sim.whatif import attempts

    points = [(one.case, one.gpu, None) for one in wanted]
    found = attempts(points, _progress(status))
    return gpus_study([one.gpu for one in wanted], found, wanted[0].text)


def _write_csv(study: Study, path: Path) -> None:
    import csv

    from viz.files import replacing
    from viz.study import one_table

    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows(one_table(study.tables))


def _print(study: Study, notes: Sequence[str], *, as_json: bool) -> None:
    from viz.commands.console import console
    from viz.study import print_study, to_json

    if as_json:
        typer.echo(json_module.dumps(to_json(study) | {"notes": list(notes)}))
        return
    print_study(study, console())
    for note in notes:
        typer.echo(f"Note: {note}")
