"""A sweep as a file: workloads, hardware, kernel configurations, where the table goes and what is drawn of it.

    gpus = ["h200_sxm", "mine.toml"]
    scan = ["hbm.bandwidth_gb_per_s=*1:*2:*0.25"]

    [[llm]]
    model = "llama3-8b"
    phase = "decode"
    batch = [1, 8, 64]

    [[picture]]
    file = "bandwidth.png"
    x = "hbm.bandwidth_gb_per_s_factor"
    y = "time_s"
    series = "batch"

Every list is an axis. docs/sweeps.md has all keys.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from hwmodels.catalog import load_gpu
from hwmodels.errors import ConfigError
from hwmodels.folders import list_gpus
from hwmodels.levers import variant
from hwmodels.refusals import nearest, refusal, shown
from sim.call import LEAST_MHZ, MOST_MHZ, Options
from sim.cases import GemmCase, LlmCase
from sim.llm import How
from sim.machine import MECHANISMS
from sim.program import LAUNCH_MODES
from sim.schedule.attention import BACKENDS
from sim.schedule.choose import TILES
from sim.schedule.config import FAMILIES, KernelConfig
from sim.schedule.fields import check_fields
from sim.sweep.points import Grid, Hardware, Parts, Product, RefusedCase, Sweep, Workload, workloads
from sim.sweep.table import FIGURES, labels
from sim.sweep.values import FLAG, TEXT, Kind, check_keys, number, one_of, placed, tables_of, value_of, values_of, whole
from sim.whatif import Axis, axis
from workloads.attention import CACHE_DTYPES, MAX_BATCH, MAX_TOKENS
from workloads.dtypes import BYTES, COMBINATIONS
from workloads.execution import BALANCES, DTYPES, FUSIONS, MATMUL_DTYPES, PROGRAMS, Execution
from workloads.gemm import DATA, EPILOGUES, L2_STATES, LAYOUTS, MAX_DIMENSION, MAX_LEADING, Gemm
from workloads.gemm import MAX_BATCH as MOST_PRODUCTS
from workloads.llm import MAX_NEW_TOKENS, PHASES, Llm
from workloads.models.catalog import load_model
from workloads.packing import FORMATS
from workloads.training import CHECKPOINTING, MAX_ACCUMULATED, OPTIMIZERS, Training

LARGEST_FILE_BYTES = 10_000_000
SIZES = ("m", "n", "k")
MOST_TRIED = 10_000
"""Combinations of which one has to be a workload."""
CLOCK = number(LEAST_MHZ, MOST_MHZ, " MHz")
GEMM: dict[str, Kind] = {
    **dict.fromkeys(SIZES, whole(1, MAX_DIMENSION)),
    "batch": whole(1, MOST_PRODUCTS),
    "dtype": one_of(COMBINATIONS),
    "acc_dtype": one_of(BYTES),
    "out_dtype": one_of(BYTES),
    "layout": one_of(LAYOUTS),
    **dict.fromkeys(("lda", "ldb", "ldc"), whole(1, MAX_LEADING)),
    "epilogue": one_of(EPILOGUES),
    "l2": one_of(L2_STATES),
    "weights_format": one_of(FORMATS),
    "weight_group": whole(1, MAX_DIMENSION),
    "family": one_of(FAMILIES),
    "clock_mhz": CLOCK,
    "sustained": FLAG,
    "data": one_of(DATA),
    "full": FLAG,
}
LLM: dict[str, Kind] = {
    "model": TEXT,
    "phase": one_of(PHASES),
    "batch": whole(1, MAX_BATCH),
    "tokens": whole(1, MAX_TOKENS),
    "context": whole(1, MAX_TOKENS),
    "new_tokens": whole(1, MAX_NEW_TOKENS),
    "program": one_of(PROGRAMS),
    "fusion": one_of(FUSIONS),
    "dtype": one_of(DTYPES),
    "kv_dtype": one_of(CACHE_DTYPES),
    "page": whole(1, MAX_TOKENS),
    "weights": one_of(FORMATS),
    "weight_group": whole(1, MAX_DIMENSION),
    "compress_head": FLAG,
    "matmul_dtype": one_of(MATMUL_DTYPES),
    "lora_rank": whole(1, MAX_DIMENSION),
    "lora_adapters": whole(1, MAX_BATCH),
    "low_rank": whole(1, MAX_DIMENSION),
    "balance": one_of(BALANCES),
    "checkpointing": one_of(CHECKPOINTING),
    "optimizer": one_of(OPTIMIZERS),
    "accumulated": whole(1, MAX_ACCUMULATED),
    "launch": one_of(LAUNCH_MODES),
    "attention": one_of(BACKENDS),
    "tile": one_of(TILES),
    "cold": FLAG,
    "stream_weights": FLAG,
    "clock_mhz": CLOCK,
    "sustained": FLAG,
}
KERNEL = tuple(each.name for each in fields(KernelConfig) if each.name != "name")
USUAL_KERNEL = KernelConfig("multistage", 64, 64, 64, 3, 4)
TOP = ("title", "output", "gpus", "sets", "variants", "scan", "gemm", "llm", "kernel", "picture")
PICTURE = ("file", "title", "x", "y", "series", "log")
LOG = ("x", "y", "xy")
DRAWN = tuple(name for name, kind in FIGURES.items() if kind is not str)
TABLES = (".csv", ".parquet")


@dataclass(frozen=True)
class Picture:
    """A line chart of the table: columns, axes that are logarithmic, and the file that it goes to."""

    path: Path
    x: str
    y: str
    series: str | None = None
    log: str = ""
    title: str = ""


@dataclass(frozen=True)
class Study:
    """What a file describes. Paths in it are relative to its folder."""

    sweep: Sweep
    title: str
    output: Path
    pictures: tuple[Picture, ...]


def read_study(path: Path) -> Study:
    """The study in a TOML file; no point of it is made yet.

    Raises ConfigError, with file, key and what is allowed, for anything that is wrong with it."""
    found = _toml(path)
    where, folder = str(path), path.parent
    check_keys(where, found, TOP)
    hardware = _hardware(where, found, folder)
    products = [Product(each, hardware, _kernels(where, found)) for each in _workloads(where, found, folder)]
    pictures = tuple(_pictures(where, found, folder))
    named = {name for each in pictures for name in (each.x, each.series) if name is not None}
    output = folder / value_of(where, "output", found.get("output", f"{path.stem}.csv"), TEXT)
    check_output(f"{where}: output", output)
    sweep = Sweep(tuple(products), tuple(sorted(named)))
    for number_, each in enumerate(pictures, 1):
        _check_columns(f"{where}: picture[{number_}]", each, sweep)
    return Study(sweep, value_of(where, "title", found.get("title", path.stem), TEXT), output, pictures)


def check_output(where: str, path: Path) -> None:
    """Raise ConfigError for a table in a format that is not written."""
    if path.suffix.lower() not in TABLES:
        raise refusal(where, f"{shown(path.name)}: must end in {' or '.join(TABLES)}")


def _toml(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > LARGEST_FILE_BYTES:
            raise refusal(str(path), f"is larger than {LARGEST_FILE_BYTES:,} bytes")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise refusal(str(path), f"cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise refusal(str(path), "is no UTF-8 text") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise refusal(str(path), f"is no TOML: {error}{_repeated(text)}") from None


def _repeated(text: str) -> str:
    """What to write where a table is there several times, and not each time as [[table]]."""
    heads = re.findall(r"^\s*(\[\[?)\s*(gemm|llm|kernel|picture)\s*\]", text, re.MULTILINE)
    counts = Counter(name for _, name in heads)
    single = next((name for bracket, name in heads if bracket == "[" and counts[name] > 1), None)
    return f"; [{single}] stands for one alone, must be [[{single}]] for each of several" if single else ""


# Hardware.
def _hardware(where: str, found: Mapping[str, Any], folder: Path) -> Grid[Hardware]:
    """gpus x variants x scan, each with `sets` first."""
    gpus = [_gpu(name, folder) for name in values_of(where, "gpus", found.get("gpus", "h200_sxm"), TEXT)]
    always = _sets(where, "sets", found.get("sets", []))
    given = found.get("variants", [[]])
    if not isinstance(given, list) or not given:
        raise refusal(where, "variants: must be a list of lists of sets")
    variants = [_sets(where, f"variants[{i}]", each) for i, each in enumerate(given, 1)]
    axes = [_axis(where, text) for text in _texts(where, "scan", found.get("scan", []))]
    names = [each.name for each in axes]
    if len(set(names)) < len(names):
        raise refusal(where, "scan: the same value twice")
    for gpu in gpus:
        for varied in variants:
            _check_gpu(where, gpu, (*always, *varied))
    for each in axes:
        _check_axis(where, gpus[0], each)

    def made(gpu: str, varied: tuple[str, ...], *scanned: str) -> Hardware:
        return Hardware(gpu, (*always, *varied, *scanned))

    return Grid(made, (gpus, variants, *([each.sets(value) for value in each.values] for each in axes)))


def _gpu(name: str, folder: Path) -> str:
    return name if name in list_gpus() or not _is_path(name) else os.path.normpath(folder / name)


def _is_path(name: str) -> bool:
    return "/" in name or name.endswith((".toml", ".json"))


def _check_gpu(where: str, gpu: str, sets: tuple[str, ...]) -> None:
    try:
        variant(load_gpu(gpu), sets)
    except ConfigError as error:
        raise placed(where, error) from None


def _check_axis(where: str, gpu: str, scanned: Axis) -> None:
    """Raise ConfigError where the GPU can have not one of the values."""
    refusals = []
    for value in scanned.values:
        try:
            variant(load_gpu(gpu), (scanned.sets(value),))
        except ConfigError as error:
            refusals.append(error)
        else:
            return
    raise placed(where, refusals[0])


def _texts(where: str, key: str, given: Any) -> list[str]:
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise refusal(where, f"{key}: must be a list of texts")
    return given


def _sets(where: str, key: str, given: Any) -> tuple[str, ...]:
    return tuple(_texts(where, key, given))


def _axis(where: str, text: str) -> Axis:
    try:
        return axis(text)
    except ConfigError as error:
        raise placed(where, error) from None


# Workloads.
def _workloads(where: str, found: Mapping[str, Any], folder: Path) -> Iterator[Grid[Workload]]:
    """Each [[gemm]], then each [[llm]]."""
    products, models = (tables_of(where, key, found.get(key, [])) for key in ("gemm", "llm"))
    if not products and not models:
        raise refusal(where, "holds no workload: needs [[gemm]] or [[llm]]")
    for i, table in enumerate(products, 1):
        yield _checked(f"{where}: gemm[{i}]", _gemm(f"{where}: gemm[{i}]", table))
    for i, table in enumerate(models, 1):
        place = f"{where}: llm[{i}]"
        if found.get("kernel"):
            raise refusal(place, "must not be given with [[kernel]]; the kernels of a model are chosen")
        yield _checked(place, _llm(place, table, folder))


def _checked(where: str, grid: Grid[Workload]) -> Grid[Workload]:
    """Raise ConfigError where not one combination of the values is a workload."""
    tried = list[RefusedCase]()
    for each in itertools.islice(grid, MOST_TRIED):
        if not isinstance(each, RefusedCase):
            return grid
        tried.append(each)
    raise refusal(where, tried[0].reason)


def _given(where: str, table: Mapping[str, Any], kinds: Mapping[str, Kind]) -> dict[str, tuple[Any, ...]]:
    """The values of each key that there is a kind of."""
    given = {key: values_of(where, key, value, kinds[key]) for key, value in table.items() if key in kinds}
    if "clock_mhz" in given and True in given.get("sustained", ()):
        raise refusal(where, "clock_mhz: must not be given with sustained, a held clock is not what power leaves")
    return given


def _gemm(where: str, table: Mapping[str, Any]) -> Grid[Workload]:
    check_keys(where, table, (*GEMM, "sizes", "without"))
    without = frozenset(values_of(where, "without", table["without"], one_of(MECHANISMS))) if "without" in table else ()
    given = _given(where, table, GEMM)
    if "sizes" in table:
        twice = next((key for key in SIZES if key in given), None)
        if twice:
            raise refusal(where, f"{twice}: must not be given with sizes")
        return workloads({"sizes": _sizes(where, table["sizes"]), **given}, partial(_gemm_case, frozenset(without)))
    absent = next((key for key in SIZES if key not in given), None)
    if absent:
        raise refusal(where, f"{absent}: missing, must be {GEMM[absent].allowed}, or give sizes = [[m, n, k], ...]")
    return workloads(given, partial(_gemm_case, frozenset(without)))


def _sizes(where: str, given: Any) -> list[tuple[int, ...]]:
    """[[m, n, k], ...]."""
    if not isinstance(given, list) or not given or not all(isinstance(each, list) and len(each) == 3 for each in given):
        raise refusal(where, "sizes: must be a list of [m, n, k]")
    for each in given:
        for key, value in zip(SIZES, each, strict=True):
            value_of(where, f"sizes: {key}", value, GEMM[key])
    return [tuple(each) for each in given]


def _gemm_case(without: frozenset[str], sizes: tuple[int, ...] | None = None, **given: Any) -> GemmCase:
    family = given.pop("family", None)
    options = Options(without=without, **_taken(given, Options))
    if sizes is not None:
        given |= zip(SIZES, sizes, strict=True)
    return GemmCase(Gemm(**given), options, family)


def _llm(where: str, table: Mapping[str, Any], folder: Path) -> Grid[Workload]:
    check_keys(where, table, LLM)
    given = _given(where, table, LLM)
    if "model" not in given:
        raise refusal(where, "model: missing, must be a built-in model or a config.json")
    models = {}
    for name in given["model"]:
        try:
            models[name] = load_model(folder / name if _is_path(name) else name)
        except ConfigError as error:
            raise refusal(where, f"model: {error}") from None
    return workloads(given, partial(_llm_case, models))


def _llm_case(models: Mapping[str, Any], model: str, **given: Any) -> LlmCase:
    options, how = Options(**_taken(given, Options)), How(**_taken(given, How))
    execution, training = Execution(**_taken(given, Execution)), Training(**_taken(given, Training))
    return LlmCase(Llm(models[model], execution=execution, training=training, **given), options, how)


def _taken(given: dict[str, Any], of: type[Any]) -> dict[str, Any]:
    """Those of the values that are fields of `of`, taken out."""
    names = [each.name for each in fields(of) if each.name in given]
    return {name: given.pop(name) for name in names}


# Kernels.
def _kernels(where: str, found: Mapping[str, Any]) -> Grid[Any]:
    """Each [[kernel]], an empty one for a chosen kernel; lists in them are axes."""
    made = list[Parts | None]()
    for i, table in enumerate(tables_of(where, "kernel", found.get("kernel", [])), 1):
        place = f"{where}: kernel[{i}]"
        check_keys(place, table, KERNEL)
        axes = tuple(values_of(place, key, value, _of_kernel(key)) for key, value in table.items())
        made += Grid(partial(_parts, tuple(table)), axes)
    return Grid(lambda config: config, (made or [None],))


def _parts(names: tuple[str, ...], *values: Any) -> Parts | None:
    return Parts(tuple(zip(names, values, strict=True))) if names else None


def _of_kernel(key: str) -> Kind:
    """What a field of a configuration may hold, as `sim.schedule.fields` checks it."""
    if key == "family":
        return one_of(FAMILIES)
    if key == "split_k":
        return whole(1, MAX_DIMENSION)
    if key == "stream_k":
        return FLAG

    def refusal_of(value: Any) -> str:
        changed: dict[str, Any] = {key: value}
        try:
            check_fields(replace(USUAL_KERNEL, **changed))
        except ConfigError as error:
            return str(error)
        return ""

    allowed = refusal_of(math.nan).partition("must be ")[2].partition(" (")[0].replace("True or False", FLAG.allowed)
    return Kind(allowed, lambda value: not refusal_of(value), counts=not refusal_of(1))


# Pictures.
def _pictures(where: str, found: Mapping[str, Any], folder: Path) -> Iterator[Picture]:
    for i, table in enumerate(tables_of(where, "picture", found.get("picture", [])), 1):
        place = f"{where}: picture[{i}]"
        check_keys(place, table, PICTURE)
        for key in ("file", "x", "y"):
            if key not in table:
                raise refusal(place, f"{key}: missing, must be text")
        given = {key: value_of(place, key, value, TEXT) for key, value in table.items()}
        value_of(place, "y", given["y"], one_of(DRAWN))
        if "log" in given:
            value_of(place, "log", given["log"], one_of(LOG))
        yield Picture(folder / given.pop("file"), **given)


def _check_columns(where: str, picture: Picture, sweep: Sweep) -> None:
    """Raise ConfigError for a column that no point has."""
    known = {name for product in sweep.products for name in labels(next(iter(product)))}
    known |= {
        name for product in sweep.products for config in product.configs for name in dict(getattr(config, "fields", ()))
    }
    for key in ("x", "series"):
        name = getattr(picture, key)
        if name is not None and name not in known:
            raise refusal(where, f"{key} = {shown(name)}: no such column{nearest(name, known)}")
