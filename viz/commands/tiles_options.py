"""What `tilewalk tiles` can be told; all still as the words that were typed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from sim.schedule.config import FAMILIES
from viz.commands.llm_options import models
from viz.commands.options import ProductOptions, Word, one_of, option, size

ALL = "all"
INFERENCE_OR_TRAINING = ("prefill", "decode", "training")
ANY_FAMILY = (*FAMILIES, ALL)


@dataclass(frozen=True)
class TilesOptions(ProductOptions):
    """The words of one command line."""

    m: Annotated[str, size("M", "Rows of A and C.")] = ""
    n: Annotated[str, size("N", "Columns of B and C.")] = ""
    k: Annotated[str, size("K", "Columns of A, rows of B.")] = ""
    family: Annotated[str, one_of("Kernels to choose from", ANY_FAMILY)] = ALL
    top: Annotated[str, option("So many of the best", "N")] = "10"
    every: Annotated[bool, option("Simulate every configuration, however high its bound", None, "--all")] = False
    threads: Annotated[Word, option("Simulate so many at a time; as many as there are cores where not given", "N")] = (
        None
    )
    explain: Annotated[
        tuple[str, str] | None, option("Say why one beats another: two ranks, or names as printed", "A B")
    ] = None
    pareto: Annotated[
        Word,
        option("Show which none beats in time and in smem, registers, l2 or energy; simulates all", "time,WHAT"),
    ] = None
    figure: Annotated[
        Word, option("Draw best times by tile, slices through the best, the front into a .png, .svg or .pdf", "FILE")
    ] = None
    export: Annotated[
        tuple[str, str] | None,
        option("Write the best for triton (.py) or cutlass (arguments of cutlass_profiler)", "TARGET FILE"),
    ] = None
    shapes: Annotated[
        Word,
        option(
            "Search many: a table with columns m, n, k and, if wanted, batch, dtype, layout, epilogue, count", "CSV"
        ),
    ] = None
    model: Annotated[
        Word,
        typer.Option(
            help="Search the products of a language model, built in or a config.json; --batch 1,8 for several sizes.",
            metavar="NAME",
            autocompletion=models,
        ),
    ] = None
    phase: Annotated[Word, one_of("What the model does; prefill where not given", INFERENCE_OR_TRAINING)] = None
    tokens: Annotated[Word, option("Tokens of each sequence that the model reads", "T")] = None
    context: Annotated[Word, option("Tokens of each sequence in the model's cache", "C")] = None
    at_most: Annotated[Word, option("Of many, choose so many configurations that serve all", "K")] = None
    csv: Annotated[Word, option("Write every configuration, simulated or left out, as a table", "FILE")] = None
    json: Annotated[bool, option("Print one JSON object and nothing else", None, "--json")] = False
