"""`tilewalk gpus` and `tilewalk gpus show`."""

from __future__ import annotations

from hwmodels.catalog import list_gpus, load_gpu, rows
from viz import terminal
from viz.commands.console import console


def list_all() -> None:
    """One line for each shipped GPU."""
    terminal.print_gpus([load_gpu(name) for name in list_gpus()], console())


def show(name: str, sets: list[str]) -> None:
    """Every value of one GPU. Raises `ConfigError` for a GPU or value that is refused."""
    terminal.print_gpu(rows(load_gpu(name, sets)), console())
