"""Tables that CUDA programs of this folder print: each is built once with nvcc and run part by part."""

from __future__ import annotations

import csv
import io
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from sim.measure.machine import capability
from sim.measure.table import Case, Outcome, Row, Table

HERE = Path(__file__).parent
COLUMNS = ("bench", "param1", "param2", "value", "unit")
POWER_COLUMNS = (
    "bench", "params", "seconds", "joules", "mean_watt", "sm_mhz", "rate", "unit", "sampled_watt", "celsius",
)  # fmt: skip
POWER_WINDOW_S = "1.3"
TIMEOUT_S = 900


@dataclass(frozen=True)
class Part:
    """One run: the program (a .cu or .py of this folder), its arguments, a bench that it prints, whether a quick run
    has it, and about how long it takes."""

    program: str
    arguments: tuple[str, ...]
    bench: str
    quick: bool
    takes_s: float


MICRO = (
    Part("micro.cu", ("prop",), "prop", True, 1),
    Part("micro.cu", ("latency",), "latency_ca", False, 20),
    Part("micro.cu", ("bandwidth",), "read_bw", True, 5),
    Part("micro.cu", ("shared",), "smem_ld32", True, 1),
    Part("micro.cu", ("tensor",), "mma_sync_m16n8k16_bf16", True, 1),
    Part("micro.cu", ("launch",), "launch_stream_back_to_back", True, 1),
    Part("micro.cu", ("link",), "h2d_pinned", False, 5),
)
OVERHEADS = (
    Part("overheads.cu", ("turnround",), "cta_turnround", True, 1),
    Part("overheads.cu", ("barriers",), "barrier", True, 1),
    Part("overheads.cu", ("rings",), "ring_iteration", True, 1),
    Part("narrow.cu", (), "register_copy", True, 2),
)
TOPOLOGY = (
    Part("topology.cu", ("place",), "place", True, 1),
    Part("topology.cu", ("partition",), "second_reader_latency", False, 5),
    Part("topology.cu", ("home",), "atomic_latency", False, 3),
    Part("topology.cu", ("tile",), "tile_latency", False, 20),
)
PORTS = (Part("ports.cu", (), "l2_port", True, 5),)
RING = (Part("ring.cu", (), "ring_stage", True, 5),)
POWER = tuple(
    Part("power.cu", (POWER_WINDOW_S, bench), bench, bench in ("idle_context", "fp32_fma"), n_windows * 4.0)
    for bench, n_windows in {
        "idle_no_context": 1, "idle_context": 1, "issue": 3, "fp32_fma": 2, "shared_read": 3, "l1_read": 3,
        "l2_read": 3, "l2_write": 2, "hbm_read": 5, "hbm_write": 3, "mma_sync_bf16": 4, "mma_fp64": 3, "wgmma_bf16": 5,
        "wgmma_e4m3": 3,
    }.items()
)  # fmt: skip


def table(
    name: str, about: str, parts: Sequence[Part], columns: Sequence[str] = COLUMNS, split: bool = False,
    needs: tuple[str, ...] = ("nvcc", "hopper"),
) -> Table:  # fmt: skip
    """The table that `parts` print. `split`: a row of several values becomes several rows."""
    measure = partial(_measure, {part.bench: part for part in parts}, tuple(columns), split)
    case_s = sum(part.takes_s for part in parts) / len(parts)
    return Table(name, about, tuple(columns), needs, partial(_cases, parts), measure, 1, case_s)


def _cases(parts: Sequence[Part], quick: bool) -> list[Case]:
    return [{"bench": part.bench} for part in parts if part.quick or not quick]


def _measure(parts: dict[str, Part], columns: tuple[str, ...], split: bool, batch: Sequence[Case]) -> list[Outcome]:
    return [_rows(parts[case["bench"]], columns, split) for case in batch]


def _rows(part: Part, columns: tuple[str, ...], split: bool) -> list[Row]:
    """Run the part. Raises RuntimeError with what it said last where it fails."""
    command = [str(built(part.program)), *part.arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{part.program} ended with code {done.returncode}: {done.stderr.strip()[-200:]}")
    rows = list(parsed(done.stdout, columns))
    return [each for row in rows for each in separated(row)] if split else rows


@cache
def built(program: str) -> Path:
    """The compiled program, in a folder that lasts as long as this process. Raises RuntimeError with nvcc's errors."""
    target = Path(_folder().name) / Path(program).stem
    major, minor = capability()
    code = f"{major}{minor}" + ("a" if major >= 9 else "")  # with the instructions of that architecture alone
    command = ["nvcc", "-gencode", f"arch=compute_{code},code=sm_{code}", "-O3", "-std=c++17", "-o", str(target)]
    done = subprocess.run([*command, str(HERE / program), "-ldl"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"nvcc refused {program}: {done.stderr.strip()[-200:]}")
    return target


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="tilewalk-")


def parsed(text: str, columns: Sequence[str]) -> list[Row]:
    """Lines of a program's output. Raises RuntimeError where one has another number of fields."""
    rows = []
    for cells in csv.reader(io.StringIO(text)):
        if cells[: len(columns)] == list(columns):
            continue  # its header
        if len(cells) != len(columns):
            raise RuntimeError(f"a line has {len(cells)} fields and not {len(columns)}: {','.join(cells)[:100]}")
        rows.append(dict(zip(columns, cells, strict=True)))
    return rows


def separated(row: Row) -> list[Row]:
    """A row whose value is a list, as one row for each: named as `param2` lists them, or line=0, line=1 ..."""
    values = row["value"].rstrip(";").split(";")
    names = row["param2"].split(";")
    if len(values) == 1:
        return [row]
    if len(names) != len(values):
        names = [f"line={i}" for i in range(len(values))]
    return [row | {"param2": name, "value": value} for name, value in zip(names, values, strict=True)]


TABLES = (
    table(
        "microbench",
        "latency and bandwidth by level, footprint and SMs, shared memory, tensor cores, launches, host link",
        MICRO,
        needs=("nvcc",),
    ),
    table(
        "overheads",
        "turn-round between CTAs, barriers, a ring's iteration, copies through registers",
        OVERHEADS,
    ),
    table("topology", "where CTAs and clusters land, near and far L2, loads of a tile", TOPOLOGY, split=True),
    table("ports", "bytes a cycle of one SM, a TPC, a GPC, all; against bytes in flight; mean, least and most", PORTS),
    table("ring", "when CTAs of a grid start, and when the stages of their TMA rings are asked for and arrive", RING),
    table(
        "power",
        "board energy over steady windows of one kind of work each, twice; sampled_watt lags",
        POWER,
        POWER_COLUMNS,
        needs=("nvcc", "hopper", "nvml"),
    ),
)
