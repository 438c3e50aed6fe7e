"""What `tilewalk tiles` can be told; all still as the words that were typed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from sim.schedule.config import FAMILIES
from viz.commands.options import ProductOptions, Word, one_of, option

ALL = "all"
ANY_FAMILY = (*FAMILIES, ALL)


@dataclass(frozen=True)
class TilesOptions(ProductOptions):
    """The words of one command line."""

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
    csv: Annotated[Word, option("Write every configuration, simulated or left out, as a table", "FILE")] = None
    json: Annotated[bool, option("Print one JSON object and nothing else", None, "--json")] = False
