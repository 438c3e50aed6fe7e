"""`tilewalk models`: list the built-in models, or show one with what follows from its shapes."""

from __future__ import annotations

import json as json_module
from typing import TYPE_CHECKING, Any

import typer

from viz import words
from viz.commands.console import console
from viz.gpu_tables import value_text
from viz.terminal import grid, grids, show
from workloads.models.catalog import list_models, load_model
from workloads.models.counts import active_parameters, describe, kv_bytes_per_token, parameters

if TYPE_CHECKING:
    from rich.table import Table

    from workloads.models.model import Model


def models(name: str | None, json: bool) -> None:
    """All models, or the one of that name or file. Raises `ConfigError`."""
    if name is None:
        _list(json)
    elif json:
        typer.echo(json_module.dumps(describe(load_model(name))))
    else:
        show(console(), _fields(load_model(name)))


def _list(json: bool) -> None:
    found = [load_model(name) for name in list_models()]
    if json:
        typer.echo(json_module.dumps([describe(model) for model in found]))
        return
    made = console()
    heads = [("name", "left"), *((head, "right") for head in HEADS)]
    show(made, *grids(heads, [[model.name, *_cells(model)] for model in found], made.width))


HEADS = ("parameters", "layers", "width", "heads", "KV heads", "feed-forward", "context", "KV bytes a token")


def _cells(model: Model) -> list[str]:
    """What tells models apart."""
    experts = f"{model.n_experts} × " if model.n_experts else ""
    cache = kv_bytes_per_token(model)
    return [
        words.count_text(parameters(model).total),
        f"{model.n_layers}",
        f"{model.d_model:,}",
        f"{model.heads}",
        f"{model.kv_heads}",
        f"{experts}{model.d_ff:,}",
        f"{model.max_context:,}",
        f"{cache:,}" if cache else "–",
    ]


def _fields(model: Model) -> Table:
    """Every field, and the counts."""
    table = grid(("field", "left"))
    table.add_column("value", overflow="fold")
    for key, value in _flat(describe(model)).items():
        table.add_row(key, value)
    total, active = parameters(model).total, active_parameters(model)
    if total != active:
        table.add_row("in words", f"{words.count_text(total)} parameters, {words.count_text(active)} for a token")
    return table


def _flat(fields: dict[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in fields.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = _text(value)
    return found


def _text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value))
    return value_text(value)
