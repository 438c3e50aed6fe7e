"""`tilewalk tiles` for many GEMMs: those of a table, or of a language model."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hwmodels.catalog import load_gpu
from hwmodels.errors import ConfigError
from viz.commands import outputs
from viz.commands.llm_options import StepOptions
from viz.commands.llm_request import request as llm_request
from viz.commands.llm_words import in_options
from viz.commands.progress import COMPILING, Status, engine_needs_compiling, in_background, telling
from viz.commands.request import contradiction, workload
from viz.commands.tiles_options import INFERENCE_OR_TRAINING, TilesOptions
from viz.commands.tiles_request import family_of, simulated_as, threads_of
from viz.commands.values import choice, integer, optional_integer, refused
from workloads.gemm import MAX_BATCH, MAX_DIMENSION

if TYPE_CHECKING:
    from hwmodels.spec import Gpu
    from sim.call import Options
    from sim.tile_sets import Wanted
    from viz.tiles.sets import Many
    from workloads.gemm import Gemm

MOST_IN_SET, MOST_GEMMS, MOST_BATCHES = 100, 2_000, 64
NEEDED, OPTIONAL, COUNT = ("m", "n", "k"), ("batch", "dtype", "layout", "epilogue"), "count"
ONE_PRODUCT = ("m", "explain", "pareto", "figure", "export", "every")
"""Options that tell of one product."""
OF_THE_MODEL = (
    "acc_dtype", "out_dtype", "layout", "lda", "ldb", "ldc", "epilogue", "weights_format", "weight_group",
)  # fmt: skip
"""Options that the model itself answers."""
MODEL_ONLY = ("phase", "tokens", "context")


def tile_sets(options: TilesOptions) -> None:
    """Print the best tile of each GEMM, and the set that serves all. Raises `ConfigError`."""
    refuse_contradictions(options)
    files = outputs.checked({"csv": options.csv})
    outputs.check_inputs(files, {"gpu": options.gpu, "shapes": options.shapes})
    most = optional_integer("--at-most", options.at_most, MOST_IN_SET)
    gpu, simulated = load_gpu(options.gpu, options.sets or ()), simulated_as(options)
    what, wanted = _of_model(options) if options.model is not None else _of_table(options)
    with telling() as status:
        many = in_background(lambda: _found(what, wanted, gpu, simulated, options, most, status))
        for path in files.values():
            from viz.tiles.sets import write_csv

            write_csv(many, path)
    from viz.commands.console import console
    from viz.tiles.sets import print_many, to_json

    if options.json:
        typer.echo(json.dumps(to_json(many)))
    else:
        print_many(many, console())


def refuse_contradictions(options: TilesOptions) -> None:
    """Raise `ConfigError` where one option leaves another no say."""
    source = "--model" if options.model is not None else "--shapes"
    if options.model is not None and options.shapes is not None:
        raise contradiction("--model", "shapes", "either says what GEMMs there are")
    for name in (*ONE_PRODUCT, *(OF_THE_MODEL if options.model is not None else MODEL_ONLY)):
        if getattr(options, name) != getattr(TilesOptions, name, None):
            shown = {"m": "M N K", "every": "--all"}.get(name, f"--{name.replace('_', '-')}")
            raise ConfigError(f"{source} with {shown}: must be one or the other (command line)")


def _found(
    what: str, wanted: tuple[Wanted, ...], gpu: Gpu, simulated: Options, options: TilesOptions, most: int | None,
    status: Status,
) -> Many:  # fmt: skip
    status.text = COMPILING if engine_needs_compiling() else "searching GEMMs"
    from sim.tile_sets import CANDIDATES, at_most, best_of_each
    from viz.tiles.sets import Many

    def tell(done: int, total: int) -> None:
        status.text, status.done, status.total = "searching GEMMs", done, total

    threads = threads_of(options)
    n, family = CANDIDATES if most is not None else 1, family_of(options)
    served = best_of_each(wanted, gpu, simulated, candidates=n, family=family, threads=threads, progress=tell)
    status.text, status.total = "choosing a set", None
    chosen = at_most(most, served, gpu, simulated, threads) if most is not None else None
    return Many(what, gpu, served, chosen)


# A model's.
def _of_model(options: TilesOptions) -> tuple[str, tuple[Wanted, ...]]:
    """The distinct GEMMs of one step at each batch size. Raises `ConfigError`."""
    phase = choice("--phase", options.phase, INFERENCE_OR_TRAINING) or INFERENCE_OR_TRAINING[0]
    batches = options.batch.split(",")
    if len(batches) > MOST_BATCHES:
        raise refused("--batch", options.batch, f"at most {MOST_BATCHES} sizes")
    if len({integer("--batch", batch, MAX_BATCH) for batch in batches}) < len(batches):
        raise refused("--batch", options.batch, "different sizes")
    from sim.tile_sets import Wanted, gemms_of

    steps, label = [], ""
    for batch in batches:
        step = StepOptions(
            model=options.model or "", gpu=options.gpu, phase=phase, batch=batch, tokens=options.tokens,
            context=options.context, dtype=options.dtype, sets=options.sets,
        )  # fmt: skip
        with in_options(step):
            asked = llm_request(step)
            steps.append(asked.llm.step())
        label = asked.llm.model.name
    found = gemms_of(steps)
    if options.l2 != TilesOptions.l2:
        found = tuple(Wanted(dataclasses.replace(e.gemm, l2=options.l2), e.count, e.names) for e in found)
    many = "batches" if len(batches) > 1 else "batch"
    return f"{label}, {phase}, {many} {', '.join(batches)}", found


# A table's.
def _of_table(options: TilesOptions) -> tuple[str, tuple[Wanted, ...]]:
    """The GEMMs of a CSV file. Raises `ConfigError`, naming the line, for what is none."""
    from sim.tile_sets import Wanted

    text = options.shapes or ""
    counts: dict[Gemm, int] = {}
    for line, row in _rows(text):
        try:
            gemm, count = _gemm(options, row)
        except ConfigError as error:
            raise ConfigError(f"--shapes {text[:60]}, line {line}: {error}") from None
        counts[gemm] = counts.get(gemm, 0) + count
        if len(counts) > MOST_GEMMS:
            raise ConfigError(f"--shapes {text[:60]}: must have at most {MOST_GEMMS:,} different GEMMs")
    if not counts:
        raise ConfigError(f"--shapes {text[:60]}: has no rows below its heading")
    return Path(text).name, tuple(Wanted(gemm, count) for gemm, count in counts.items())


def _rows(text: str) -> Iterator[tuple[int, dict[str, str]]]:
    """(line, {column: word}) of each row that is not blank."""
    known = (*NEEDED, *OPTIONAL, COUNT)
    try:
        with Path(text).open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream)
            heads = [head.strip().lower() for head in next(reader, [])]
            wrong = next((head for head in heads if head not in known or heads.count(head) > 1), None)
            missing = next((name for name in NEEDED if name not in heads), None)
            if wrong is not None or missing:
                what = f"column {missing!r} is missing" if wrong is None else f"column {wrong[:40]!r}"
                raise ConfigError(
                    f"--shapes {text[:60]}, line 1: {what}; columns are {', '.join(NEEDED)} and, if wanted, "
                    f"{', '.join((*OPTIONAL, COUNT))}, each once"
                )
            for row in reader:
                cells = [cell.strip() for cell in row]
                if any(cells):
                    if len(cells) != len(heads):
                        raise ConfigError(
                            f"--shapes {text[:60]}, line {reader.line_num}: {len(cells)} cells, must be {len(heads)}"
                        )
                    yield reader.line_num, {name: cell for name, cell in zip(heads, cells, strict=True) if cell}
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise refused("--shapes", text, f"a table that can be read ({reason})") from None


def _gemm(options: TilesOptions, row: dict[str, str]) -> tuple[Gemm, int]:
    """The GEMM of a row, with what it does not say from the command line, and how often it is run."""
    missing = next((name for name in NEEDED if name not in row), None)
    if missing:
        raise ConfigError(f"{missing}: missing, must be an integer from 1 to {MAX_DIMENSION}")
    words = {name: row[name] for name in (*NEEDED, *OPTIONAL) if name in row}
    count = integer(COUNT, row.get(COUNT, "1"), MAX_BATCH**2)
    return workload(dataclasses.replace(options, **words)), count  # type: ignore[arg-type]
