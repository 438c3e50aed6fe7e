"""The typer application: what commands there are and what they take. Each is imported when it is run."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hwmodels.folders import list_gpus
from sim.studies.catalog import STUDIES
from viz.commands.failures import Commands, SizedCommand
from viz.commands.llm_options import KernelsOptions, LlmOptions
from viz.commands.llm_options import models as model_names
from viz.commands.options import GPU, SET, GemmOptions, completing, option, repeated, taking_all
from viz.commands.tiles_options import TilesOptions

HELP = "Simulate how data moves through a GPU: a matrix multiplication, or a whole language model."

app = typer.Typer(
    name="tilewalk",
    cls=Commands,
    help=HELP,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
gpus = typer.Typer(name="gpus", help="List the GPUs that are shipped, show one, or compare two.", rich_markup_mode=None)
app.add_typer(gpus)


def _gpu_argument(name: str) -> Any:
    return typer.Argument(
        metavar=name, help="A shipped GPU, or a TOML file of your own.", autocompletion=completing(list_gpus())
    )


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"tilewalk {version('tilewalk')}")
        except PackageNotFoundError:
            typer.echo("tilewalk (not installed)")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def tilewalk(
    ctx: typer.Context,
    _: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True, show_default=False)
    ] = False,
) -> None:
    """What `tilewalk` does without a command: help."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def _gemm(options: GemmOptions) -> None:
    """Simulate C[m, n] = A[m, k] B[k, n] and print one screen: time, traffic, limiter, what would help."""
    from viz.commands.gemm import gemm

    gemm(options)


def _explain(options: GemmOptions) -> None:
    """Follow one tile of C[m, n] = A[m, k] B[k, n] through the hierarchy, in plain words with this run's times."""
    from viz.commands.gemm import explain

    explain(options)


def _llm(options: LlmOptions) -> None:
    """Simulate a language model on a GPU and print one screen: time, tokens a second, where the time goes, memory."""
    from viz.commands.llm import llm

    llm(options)


def _kernels(options: KernelsOptions) -> None:
    """List the kernels that a step of a language model launches: shape, kernel, tile, time, limiter."""
    from viz.commands.llm import kernels

    kernels(options)


def _tiles(options: TilesOptions) -> None:
    """Rank the kernel configurations of C[m, n] = A[m, k] B[k, n]: tiles, stages, clusters, splits of k."""
    from viz.commands.tiles import tiles

    tiles(options)


app.command("gemm", cls=SizedCommand)(taking_all(_gemm))
app.command("explain", cls=SizedCommand)(taking_all(_explain))
app.command("tiles", cls=SizedCommand)(taking_all(_tiles, TilesOptions))
app.command("llm")(taking_all(_llm, LlmOptions))
app.command("kernels")(taking_all(_kernels, KernelsOptions))


@app.command()
def models(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="A built-in model, or a Hugging Face config.json; without, all are listed.",
            show_default=False,
            autocompletion=model_names,
        ),
    ] = None,
    json: Annotated[bool, option("Print JSON and nothing else", None, "--json")] = False,
) -> None:
    """List the built-in language models, or show one: its shapes, parameters, bytes of its cache."""
    from viz.commands.models import models

    models(name, json)


PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command(context_settings=PASSED_ON)
def whatif(
    ctx: typer.Context,
    gpu: Annotated[str, GPU] = "h200_sxm",
    sets: Annotated[
        list[str] | None,
        repeated("Change this, KEY=VALUE, KEY=*FACTOR or LEVER=*FACTOR; may be repeated", "KEY=VALUE", "--set"),
    ] = None,
    scans: Annotated[
        list[str] | None,
        repeated("Try values, KEY=LOW:HIGH:STEP, KEY=A,B,C or LEVER=*A,*B; twice for a grid", "KEY=VALUES", "--scan"),
    ] = None,
    sensitivity: Annotated[bool, option("Change every lever by 10 % and double it", None, "--sensitivity")] = False,
    levers: Annotated[
        list[str] | None, repeated("Of a sensitivity, these levers or values alone; may be repeated", "NAME", "--lever")
    ] = None,
    retune: Annotated[bool, typer.Option("--retune/--no-retune", help="Choose kernels anew for each variant.")] = True,
    price: Annotated[str | None, option("Price of the GPU, for the cost of a million tokens", "PER_HOUR")] = None,
    save: Annotated[str | None, option("Write the variant as a GPU file", "FILE.toml")] = None,
    figure: Annotated[str | None, option("Draw it into a .png, .svg or .pdf file", "FILE")] = None,
    csv: Annotated[str | None, option("Write the tables as CSV, in one", "FILE")] = None,
    json: Annotated[bool, option("Print one JSON object and nothing else", None, "--json")] = False,
) -> None:
    """Simulate a workload on changed hardware: options of this command, then a workload: M N K and what tilewalk gemm
    takes, or --model NAME and what tilewalk llm takes. A product gets the best kernel of the families that a library
    would use, which need not be the best of tilewalk tiles."""
    from viz.commands.whatif import WhatIf, whatif

    asked = WhatIf(gpu, sets or (), scans or (), sensitivity, levers or (), retune, price, save, figure, csv, json)
    whatif(asked, ctx.args)


@app.command("compare", context_settings=PASSED_ON)
def compare_gpus(
    ctx: typer.Context,
    gpus: Annotated[str, option("GPUs, or TOML files of your own", "A,B,...")],
    json: Annotated[bool, option("Print one JSON object and nothing else", None, "--json")] = False,
) -> None:
    """Simulate a workload on several GPUs: M N K and what tilewalk gemm takes, or --model NAME and what tilewalk llm
    takes."""
    from viz.commands.whatif import compare

    compare(gpus, ctx.args, json=json)


@app.command()
def study(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="A case study; without, all are listed.",
            show_default=False,
            autocompletion=completing(STUDIES),
        ),
    ] = None,
    gpu: Annotated[str, GPU] = "h200_sxm",
    sets: Annotated[list[str] | None, SET] = None,
    figure: Annotated[str | None, option("Draw its chart into a .png, .svg or .pdf file", "FILE")] = None,
    json: Annotated[bool, option("Print one JSON object and nothing else", None, "--json")] = False,
) -> None:
    """Run a case study: simulate what it compares, print tables and what follows from them."""
    from viz.commands.study import study

    study(name, gpu, sets or [], figure=figure, json=json)


@app.command()
def sweep(
    file: Annotated[str, typer.Argument(metavar="STUDY.toml", help="What is varied (docs/sweeps.md).")],
    output: Annotated[
        str | None, option("Table to write, .csv or .parquet; by default as the file says", "FILE", "-o", "--output")
    ] = None,
    threads: Annotated[str | None, option("Threads, or workers of --dask local; one a core", "N")] = None,
    dask: Annotated[
        str | None, option("Workers of a Dask cluster: its scheduler, tcp://HOST:PORT, or local", "ADDRESS")
    ] = None,
    cache: Annotated[bool, typer.Option("--cache/--no-cache", help="Take known points from the cache.")] = True,
    yes: Annotated[bool, option("Run more than 100,000 points", None, "--yes")] = False,
    json: Annotated[bool, option("Print one JSON object and nothing else", None, "--json")] = False,
) -> None:
    """Simulate every point of a study file into one table, and draw it. Interrupted, the same command goes on."""
    from viz.commands.sweep import SweepOptions, sweep

    sweep(file, SweepOptions(output, threads, dask, cache, yes, json))


@gpus.callback(invoke_without_command=True)
def list_all(ctx: typer.Context) -> None:
    """List the GPUs that are shipped, show one, or compare two."""
    if ctx.invoked_subcommand is None:
        from viz.commands.gpus import list_all

        list_all()


@gpus.command()
def show(
    name: Annotated[str, _gpu_argument("NAME")],
    sets: Annotated[list[str] | None, SET] = None,
) -> None:
    """Every value of one GPU with unit, kind and source."""
    from viz.commands.gpus import show

    show(name, sets or [])


@gpus.command()
def compare(
    first: Annotated[str, _gpu_argument("A")],
    second: Annotated[str, _gpu_argument("B")],
    json: Annotated[bool, option("Print one JSON object and nothing else", None, "--json")] = False,
) -> None:
    """Every value in which two GPUs differ: both, unit, ratio of B to A, kinds of source."""
    from viz.commands.gpus import compare

    compare(first, second, json)


@app.command()
def validate(
    measurements: Annotated[
        str | None,
        option("Table of measured kernels: gemm, tile_sweep or counters; without, those shipped", "FILE.csv"),
    ] = None,
    gpu: Annotated[str, GPU] = "h200_sxm",
    sets: Annotated[list[str] | None, SET] = None,
    tile: Annotated[str | None, option("auto: ignore the measured kernel, and choose", "auto")] = None,
    limit: Annotated[str | None, option("Take so many rows, in proportion to their groups", "N")] = None,
    markdown: Annotated[str | None, option("Write the report as a page of Markdown", "FILE")] = None,
    json: Annotated[bool, option("Print one JSON object and nothing else", None, "--json")] = False,
) -> None:
    """Replay a table of measured kernels and print the error of each group, beside a fitted roofline's."""
    from viz.commands.validate import validate

    validate(measurements, gpu, sets or [], tile=tile, limit=limit, markdown=markdown, json=json)


@app.command()
def measure(
    folder: Annotated[
        str,
        option("Folder for the tables; what it holds already is kept", "DIR", "-o", "--output"),
    ] = "measured",
    only: Annotated[str | None, option("Measure these tables alone, as gemm,counters", "NAMES")] = None,
    quick: Annotated[bool, option("A few cases of each table, in some minutes", None, "--quick")] = False,
    listing: Annotated[bool, option("List the tables and measure nothing", None, "--list")] = False,
) -> None:
    """Measure this machine's NVIDIA GPU: microbenchmarks, GEMMs, tiles, counters, power. Needs PyTorch."""
    from viz.commands.measure import list_tables, measure

    if listing:
        list_tables(only)
    else:
        measure(folder, only, quick)


@app.command()
def calibrate(
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TABLES...",
            help="Tables of kernels and microbenchmarks, or folders of them; without, those shipped for the GPU.",
            show_default=False,
        ),
    ] = None,
    gpu: Annotated[str, GPU] = "h200_sxm",
    output: Annotated[
        str | None,
        option("GPU file to write; by default the GPU's name and _calibrated.toml", "OUT.toml", "-o", "--output"),
    ] = None,
    report: Annotated[str | None, option("Folder of the report; by default beside the GPU file", "DIR")] = None,
    every_row: Annotated[bool, option("Use every row, not a drawn part", None, "--all")] = False,
    folds: Annotated[str, option("Folds of shapes that are left out in turn", "N")] = "5",
    quiet: Annotated[bool, option("Print the GPU file's name alone", None, "--quiet", "-q")] = False,
    json: Annotated[bool, option("Print one JSON object and nothing else", None, "--json")] = False,
) -> None:
    """Fit the model's constants to tables of measured kernels; write a GPU file that holds them, and a report."""
    from viz.commands.calibrate import calibrate

    calibrate(tables or [], gpu, output=output, report=report, every_row=every_row, folds=folds, quiet=quiet, json=json)
