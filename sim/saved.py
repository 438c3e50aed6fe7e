"""A `Result` as one file: an npz archive of a JSON header and the arrays of each kernel, without pickles.

Entries: `header`, UTF-8 bytes of {"format", "schema", "result"}; `windows_I` and, where traced, `spans_I` of kernel I.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
import numpy.typing as npt

from hwmodels.errors import ConfigError
from hwmodels.refusals import shown
from sim.result import SCHEMA, SPAN_DTYPE, WINDOW_FIELDS, HostSpan, KernelResult, Result, Windows
from workloads.gemm import Gemm

FORMAT = "tilewalk result"
GPU_PARTS = {"name": str, "label": str, "values": dict}
GPU_VALUE = {"value", "unit", "kind", "source"}
GEMM_FIELDS = tuple(field.name for field in dataclasses.fields(Gemm))
GEMM_NUMBERS = ("m", "n", "k", "batch")
AnyPath = str | os.PathLike[str]
Arrays = Mapping[str, npt.NDArray[Any]]
Built = TypeVar("Built")


def save(result: Result, path: AnyPath) -> None:
    """Write `result` to `path`, whole or not at all. Raises ConfigError where the file cannot be written."""
    if not isinstance(result, Result):
        raise ConfigError(f"result = {shown(result)}: must be a Result, to be saved")
    arrays: dict[str, npt.NDArray[Any]] = {"header": np.frombuffer(_header(result).encode(), np.uint8)}
    for i, kernel in enumerate(result.kernels):
        arrays[f"windows_{i}"] = kernel.windows.values
        if kernel.spans is not None:
            arrays[f"spans_{i}"] = kernel.spans
    with _replacing(path) as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def load(path: AnyPath) -> Result:
    """Read a saved result. Raises ConfigError for a file that is none, is damaged, or has another schema."""
    with _opened(path) as file:
        try:
            return _read(file, path)
        except ConfigError:
            raise
        except Exception:  # zip's, zlib's, numpy's and JSON's readers each have their own ways with damaged files
            raise _refuse(path, "not a saved result, or damaged") from None


def _opened(path: AnyPath) -> BinaryIO:
    _check_path(path)
    try:
        if not Path(path).is_file():
            raise _refuse(path, "cannot be read: must be a file that Result.save wrote")
        return open(path, "rb")
    except OSError as error:
        raise _refuse(path, f"cannot be read: {error.strerror or error}") from None


def _header(result: Result) -> str:
    """All of `result` but its arrays. A NaN, or a value that JSON cannot hold, is an error of the program."""
    values = _fields(result)
    values["kernels"] = [
        {**_fields(kernel), "windows": kernel.windows.width_fs, "spans": kernel.spans is not None}
        for kernel in result.kernels
    ]
    values["host_spans"] = [_fields(span) for span in result.host_spans]
    return json.dumps({"format": FORMAT, "schema": SCHEMA, "result": values}, allow_nan=False)


def _fields(item: Any) -> dict[str, Any]:
    return {field.name: getattr(item, field.name) for field in dataclasses.fields(item)}


def _read(file: BinaryIO, path: AnyPath) -> Result:
    with np.load(file, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    header = json.loads(arrays["header"].tobytes(), parse_constant=_no_number)
    if header["format"] != FORMAT:
        raise _refuse(path, f"not a saved result: format = {header['format']!r}, must be {FORMAT!r}")
    if header["schema"] != SCHEMA:
        raise _refuse(path, f"schema = {header['schema']!r}, must be {SCHEMA}: saved by another release of tilewalk")
    values = header["result"]
    values["kernels"] = tuple(_kernel(kernel, i, arrays) for i, kernel in enumerate(values["kernels"]))
    if not values["kernels"]:
        raise TypeError("no kernels")
    values["host_spans"] = tuple(_built(HostSpan, span) for span in values["host_spans"])
    found = _built(Result, {**values, "evidence": tuple(values["evidence"]), "advice": tuple(values["advice"])})
    return _checked_result(found)


def _kernel(values: dict[str, Any], i: int, arrays: Arrays) -> KernelResult:
    table = _checked(arrays[f"windows_{i}"], np.dtype("f8"), (len(WINDOW_FIELDS),))
    windows = _built(Windows, {"width_fs": values["windows"], "values": table})
    spans = _checked(arrays[f"spans_{i}"], SPAN_DTYPE, ()) if values["spans"] else None
    return _built(KernelResult, {**values, "windows": windows, "spans": spans})


def _checked(array: npt.NDArray[Any], dtype: np.dtype[Any], row_shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """`array`, if it is a list of rows of this kind; TypeError otherwise."""
    if array.dtype != dtype or array.ndim != 1 + len(row_shape) or array.shape[1:] != row_shape:
        raise TypeError(f"array of {array.dtype} with shape {array.shape}")
    return array


def _built(cls: type[Built], values: dict[str, Any]) -> Built:
    """An instance of a dataclass whose fields are all there, of the annotated types and in range; else TypeError."""
    for name, kind in typing.get_type_hints(cls).items():
        if name not in values or not _fits(values[name], kind):
            raise TypeError(f"{cls.__name__}.{name}: not a {kind}")
        if isinstance(values[name], (int, float)) and values[name] < 0:
            raise TypeError(f"{cls.__name__}.{name}: below 0")
    return cls(**values)


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value, and all that it contains, is of an annotated kind; whole numbers are floats too."""
    if kind is Any:
        return True
    if kind is float:
        return type(value) in (int, float) and math.isfinite(value)
    if kind is int:
        return type(value) is int
    if isinstance(kind, types.UnionType):
        return any(_fits(value, member) for member in typing.get_args(kind))
    parts, origin = typing.get_args(kind), typing.get_origin(kind) or kind
    if not isinstance(value, origin):
        return False
    if origin is dict:
        return all(_fits(key, parts[0]) and _fits(item, parts[1]) for key, item in value.items())
    return origin is not tuple or all(_fits(item, parts[0]) for item in value)


def _checked_result(result: Result) -> Result:
    """`result`, if its tables say what they must; TypeError otherwise."""
    if min(result.time_s, result.end_to_end_s, *(kernel.windows.width_fs for kernel in result.kernels)) <= 0:
        raise TypeError("a time of 0")
    if not all(isinstance(result.gpu.get(key), kind) for key, kind in GPU_PARTS.items()):
        raise TypeError("gpu")
    if not all(isinstance(value, dict) and value.keys() >= GPU_VALUE for value in result.gpu["values"].values()):
        raise TypeError("gpu values")
    numbers = (*GEMM_NUMBERS, "flops", "compulsory_bytes", "arithmetic_intensity")
    if not all(key in result.workload for key in GEMM_FIELDS) or not all(
        _fits(result.workload.get(key), float) and result.workload[key] > 0 for key in numbers
    ):
        raise TypeError("workload")
    kinds = (("change", str), ("time_s", float), ("speedup", float))
    if not all(_fits(advice.get(key), kind) for advice in result.advice for key, kind in kinds):
        raise TypeError("advice")
    return result


def _no_number(text: str) -> typing.NoReturn:
    raise TypeError(f"{text} is no number")


@contextmanager
def _replacing(path: AnyPath) -> Iterator[BinaryIO]:
    """A file beside `path` that takes its place when the block ends well and is removed otherwise."""
    target = _target(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
        os.replace(temporary, target)
    except OSError as error:
        raise _refuse(path, f"cannot be written: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            temporary.unlink()


def _target(path: AnyPath) -> Path:
    """The file that `path` names, links followed."""
    _check_path(path)
    try:
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_file():
            raise _refuse(path, "cannot be written: must be a file, not a folder or device")
    except OSError as error:
        raise _refuse(path, f"cannot be written: {error.strerror or error}") from None
    return target


def _check_path(path: object) -> None:
    if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
        raise ConfigError(f"result file {shown(path)}: must be text or a path")
    if "\0" in os.fspath(path):
        raise _refuse(path, "a file name has no zero characters")


def _refuse(path: AnyPath, why: str) -> ConfigError:
    return ConfigError(f"result file {str(path)!r}: {why}")
