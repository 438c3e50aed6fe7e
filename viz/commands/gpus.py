"""`tilewalk gpus`, `tilewalk gpus show` and `tilewalk gpus compare`."""

from __future__ import annotations

import json

import typer

from hwmodels.catalog import differences, list_gpus, load_gpu, rows
from viz import gpu_tables
from viz.commands.console import console
from viz.differences import print_differences


def list_all() -> None:
    """One line for each shipped GPU."""
    gpu_tables.print_gpus([load_gpu(name) for name in list_gpus()], console())


def show(name: str, sets: list[str]) -> None:
    """Every value of one GPU. Raises `ConfigError` for a GPU or value that is refused."""
    gpu_tables.print_gpu(rows(load_gpu(name, sets)), console())


def compare(first: str, second: str, as_json: bool) -> None:
    """Every value in which two GPUs differ. Raises `ConfigError` for a GPU that is refused."""
    found = differences(load_gpu(first), load_gpu(second))
    if not as_json:
        print_differences((first, second), found, console())
        return
    values = [{**row._asdict(), **{name: list(getattr(row, name)) for name in PAIRS}} for row in found]
    typer.echo(json.dumps({"gpus": [first, second], "differences": values}))


PAIRS = ("values", "kinds", "sources")
