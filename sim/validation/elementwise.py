"""Tables of single kernels bound by memory, each launched again and again: elementwise, norms, softmax, copies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from hwmodels.spec import Gpu
from sim.call import Options
from sim.streaming import ALONE_AGAIN, stream_kernels
from sim.validation.columns import L2_STATES, parse_choice, parse_count
from sim.validation.timed import TimedTable, held_out
from workloads.stream import DTYPES, OPS, Stream

KINDS = {
    **dict.fromkeys(("softmax", "log_softmax"), "softmax"),
    **dict.fromkeys(("layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm"), "norms"),
    **dict.fromkeys(("copy", "transpose", "embedding"), "copies"),
}
"""Operations that are scored together; any other is "elementwise"."""
SMALL_BYTES = 4e6
"""Compulsory bytes up to which most of a kernel's time is launch and latency."""


STRIDED = "_strided"


class Repeated(NamedTuple):
    """An operation launched in a burst, on other data each time ("cold") or on the same."""

    work: Stream
    l2: str = "cold"


def question(row: Mapping[str, Any]) -> Repeated:
    """What a row asks. `strided`: "yes" where the inputs are halves of wider rows, as also a name's ending says."""
    op = row["op"].removesuffix(STRIDED)
    contiguous = op == "copy" and row["rows"] == 1  # one row of a half; a copy into a cache writes apart
    work = Stream(
        op,
        row["rows"],
        row["width"],
        row.get("dtype", "bf16"),
        out_dtype=row.get("out_dtype"),
        strided=(row.get("strided", "no") == "yes" or op != row["op"]) and not contiguous,
    )
    return Repeated(work, row.get("l2", "cold"))


def predict(asked: Repeated, gpu: Gpu) -> dict[str, float]:
    """Microseconds of all its launches, without gaps."""
    resident = {**ALONE_AGAIN, "x": float(asked.l2 == "warm")}
    kernels = stream_kernels(asked.work, gpu, Options(), resident=resident)
    return {"time_us": 1e6 * sum(kernel.time_s for kernel in kernels)}


def groups(asked: Repeated, column: str) -> tuple[str, ...]:
    """Kind, kind on shapes not fitted, small ones, and the operation with its types."""
    work = asked.work
    kind = KINDS.get(work.op, "elementwise")
    names = [f"{kind}, shapes not fitted"] if held_out(shape(asked)) else []
    small = [f"up to {SMALL_BYTES / 1e6:g} MB"] if work.compulsory_bytes <= SMALL_BYTES else []
    types = work.dtype if work.out_dtype is None else f"{work.dtype} to {work.out_dtype}"
    return (*names, kind, *small, f"{work.op}{' strided' * work.strided} {types} {asked.l2}")


def shape(asked: Repeated) -> str:
    """Operation and shape: types and L2 states of one stay together."""
    return f"{asked.work.op} {asked.work.rows}x{asked.work.width}"


def _work(asked: Repeated, column: str) -> tuple[float, float]:
    return float(asked.work.flops), float(asked.work.compulsory_bytes)


TABLE = TimedTable(
    kind="elementwise",
    signature=("op", "rows", "width"),
    inputs={"op": parse_choice((*OPS, *(f"{op}{STRIDED}" for op in OPS))), "rows": parse_count, "width": parse_count},
    optional={
        "dtype": parse_choice(DTYPES),
        "out_dtype": parse_choice(DTYPES),
        "strided": parse_choice(("yes", "no")),
        "l2": parse_choice(L2_STATES),
    },
    measured=("time_us",),
    question=question,
    predict=predict,
    groups=groups,
    work=_work,
    shape=shape,
)
