"""What `tilewalk gemm` and `tilewalk explain` can be told, once for both, and what of it other commands on a product
share; all still as the words that were typed.

How options are declared, for all commands.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, get_type_hints

import typer

from hwmodels.folders import list_gpus
from sim.program import LAUNCH_MODES
from sim.schedule.config import FAMILIES
from viz.commands.values import refused
from workloads.dtypes import BYTES, COMBINATIONS
from workloads.gemm import DATA, EPILOGUES, L2_STATES, LAYOUTS, OPERAND_PLACES, RESULT_PLACES
from workloads.packing import FORMATS

Word = str | None

MOST_IN_USAGE = 4
"""Choices that are short enough to stand where the value would."""


def one_of(text: str, names: Iterable[str]) -> Any:
    """An option whose value is one of `names`, as far as its own check goes; the shell completes them."""
    known = list(names)
    few = len(known) <= MOST_IN_USAGE
    shown = "" if few else f": {', '.join(known)}"
    return typer.Option(
        help=f"{text}{shown}.", metavar="|".join(known) if few else "NAME", autocompletion=completing(known)
    )


def completing(known: Iterable[str]) -> Callable[[str], list[str]]:
    """What typer calls when the shell asks for completions."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in known if name.startswith(incomplete)]

    return complete


def option(text: str, metavar: str | None = None, *flags: str) -> Any:
    """Any other option, or a flag where `metavar` is None."""
    return typer.Option(*flags, help=f"{text}.", metavar=metavar)


def repeated(text: str, metavar: str, *flags: str) -> Any:
    """An option that may be given several times, for another name each time."""
    return typer.Option(*flags, help=f"{text}.", metavar=metavar, callback=_each_once)


def _each_once(param: typer.CallbackParam, given: list[str] | None) -> list[str] | None:
    """Raise `ConfigError` for a name (before any "=") that comes twice, unless as a factor of the value set before."""
    scaled: dict[str, bool] = {}
    for text in given or ():
        name, _, right = (part.strip() for part in text.partition("="))
        is_factor = right.startswith("*")
        if name in scaled and (scaled[name] or not is_factor):
            raise refused(param.opts[0], text, "given once for each name")
        scaled[name] = is_factor
    return given


def size(metavar: str, text: str) -> Any:
    """One of the three sizes."""
    return typer.Argument(metavar=metavar, help=text, show_default=False)


GPU = one_of("GPU, or a TOML file of your own", list_gpus())
SET = repeated("A value of the GPU, KEY=VALUE or KEY=*FACTOR; may be repeated", "KEY=VALUE", "--set")


@dataclass(frozen=True)
class ProductOptions:
    """The words that say what product is simulated, on what GPU and how, named as in `Gemm` and `sim.call.Options`."""

    m: Annotated[str, size("M", "Rows of A and C.")]
    n: Annotated[str, size("N", "Columns of B and C.")]
    k: Annotated[str, size("K", "Columns of A, rows of B.")]
    gpu: Annotated[str, GPU] = "h200_sxm"
    dtype: Annotated[str, one_of("Type of A and B", COMBINATIONS)] = "bf16"
    acc_dtype: Annotated[Word, one_of("Type that products are summed in", ("fp64", "fp32", "fp16", "int32"))] = None
    out_dtype: Annotated[Word, one_of("Type of C", BYTES)] = None
    batch: Annotated[str, option("Products of these sizes", "B")] = "1"
    layout: Annotated[str, one_of("How A, then B, is stored; n: as it is, B [k, n]; t: B [n, k]", LAYOUTS)] = "tn"
    lda: Annotated[Word, option("Leading dimension of A in elements", "LD")] = None
    ldb: Annotated[Word, option("Leading dimension of B in elements", "LD")] = None
    ldc: Annotated[Word, option("Leading dimension of C in elements", "LD")] = None
    epilogue: Annotated[str, one_of("What follows the product", EPILOGUES)] = "none"
    l2: Annotated[str, one_of("Whether A and B are in L2 at the start", L2_STATES)] = "cold"
    weights_format: Annotated[str, one_of("How B lies in memory", FORMATS)] = "dense"
    weight_group: Annotated[Word, option("Elements along k that share a scale (int8, int4); else all", "G")] = None
    data: Annotated[str, one_of("What A and B hold: normal numbers, zeros, or {-1, 0, 1}", DATA)] = "random"
    clock: Annotated[Word, option("Hold the SM clock here", "MHZ")] = None
    sustained: Annotated[bool, option("At the clock that the board's power leaves", None, "--sustained")] = False
    sets: Annotated[list[str] | None, SET] = None
    without: Annotated[
        list[str] | None, repeated("Switch one mechanism of the model off; may be repeated", "MECHANISM")
    ] = None
    full: Annotated[bool, option("Replay every wave, however many repeat", None, "--full")] = False


@dataclass(frozen=True)
class GemmOptions(ProductOptions):
    """The words of one command line, named as in `Gemm`, `KernelConfig` and `simulate` where they mean the same."""

    inputs: Annotated[str, one_of("Where A starts", OPERAND_PLACES)] = "hbm"
    weights: Annotated[str, one_of("Where B starts", OPERAND_PLACES)] = "hbm"
    result: Annotated[str, one_of("Where C must end", RESULT_PLACES)] = "hbm"
    stream_weights: Annotated[
        bool, option("Bring B in piece by piece, with double buffering", None, "--stream-weights")
    ] = False
    launch: Annotated[str, one_of("How kernels are launched", LAUNCH_MODES)] = "stream"
    family: Annotated[Word, one_of("Kernel family", FAMILIES)] = None
    tile: Annotated[Word, option("Tile of a CTA in elements, or auto: simulate the whole menu", "BMxBNxBK")] = None
    stages: Annotated[Word, option("Slots of the load pipeline", "S")] = None
    warps: Annotated[Word, option("Warps of a CTA", "W")] = None
    cluster: Annotated[Word, option("CTAs of a cluster along m and n", "CMxCN")] = None
    group: Annotated[Word, option("Tiles along m that consecutive CTAs walk together", "G")] = None
    split: Annotated[Word, option("Slices of k, summed by a second kernel", "S")] = None
    stream_k: Annotated[
        bool, option("Deal the last tiles' k-iterations out evenly among CTAs: persistent kernels", None, "--stream-k")
    ] = False
    kernel_name: Annotated[Word, option("Take the configuration from a real kernel's name", "NAME")] = None
    figure: Annotated[Word, option("Draw journey, timeline and roofline into a .png, .svg or .pdf file", "FILE")] = None
    trace: Annotated[Word, option("Write a trace for Perfetto or Chrome", "FILE")] = None
    save: Annotated[Word, option("Save the result for sim.load", "FILE")] = None
    json: Annotated[bool, option("Print one JSON object and nothing else", None, "--json")] = False
    quiet: Annotated[bool, option("Print the time alone", None, "--quiet", "-q")] = False


def taking_all(
    run: Callable[[Any], None], options: type[Any] = GemmOptions, without: str | None = None
) -> Callable[..., None]:
    """A function with every field of the dataclass `options` (except `without`) as a parameter, as typer reads it, that
    calls `run`."""

    def command(**words: Any) -> None:
        run(options(**words))

    hints = get_type_hints(options, include_extras=True)
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.default is MISSING else field.default,
                annotation=hints[field.name],
            )
            for field in fields(options)
            if field.name != without
        ]
    )
    command.__annotations__ = hints
    command.__doc__ = run.__doc__
    return command
