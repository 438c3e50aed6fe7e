"""From a row's inputs to the quantities its table holds, through one call of the simulator a row.

What `time` means differs by table. gemm: all launches of the call (main kernel, split-K reduction, memset), no gaps.
tile_sweep: the one kernel, over twelve input pairs in turn. counters: the main kernel alone, caches flushed before,
with what Nsight Compute adds. graph_gemm: from one call to the next in a replayed graph, several weights in turn.
event_gemm: one call on an idle GPU and waiting for it, the same buffers each time. Nothing here can read a measured
value: it is handed `Inputs`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hwmodels.errors import ConfigError
from sim.schedule.config import KernelConfig
from sim.validation.columns import TILE_FIELDS
from sim.validation.tables import Inputs
from workloads.gemm import Gemm

if TYPE_CHECKING:
    from hwmodels.spec import Gpu
    from sim.result import KernelResult, Result

EPILOGUES = {"mm": "none", "addmm": "bias", "addmm_gelu": "bias_gelu"}
OUT_DTYPES = {"int8": "int32", "fp8_e4m3": "bf16", "fp8_e5m2": "bf16"}
"""Result types the tables were measured with, where they differ from the operands'."""

NSIGHT_OVERHEAD_US = 1.2
"""Time that Nsight Compute adds to one launch, us; microbenchmark: median of counters.csv time_us minus gemm.csv
kernel_us over the 89 pairs of the same cuBLAS kernel and shape below 10 us on an H200 (1.23; 1.18 over Triton's 33
kernels of 1024^3). A property of the tool, so no GPU's table holds it."""

SWEEP_PAIRS = 12
"""Input pairs a tile sweep reads in turn."""
GRAPH_WEIGHTS = 6
"""Weights that a graph_gemm row reads in turn, beside one input: as two of its three collectors have it; the third has
up to five (aiconfigurator's collection scripts)."""
SPILL_BYTES = 4
"""Bytes of one spilled register."""

UNNAMED = ("graph_gemm",)
"""Tables that do not say which kernel ran."""

BURST_BEFORE, LONG_BURST_BEFORE, LONG_BURST_FLOPS = 8, 5, 3e12
"""Launches back to back before the median one of a gemm.csv row: the two dropped and half of the others, of a burst of
14, or of 8 for GEMMs of more FLOPs than the third (PROTOCOL.md: median of 8 to 14 launches after two are dropped)."""
SWEEP_BEFORE, PAUSED_FLOPS = 6, 1e12
"""Half of a tile_sweep.csv row's burst of 12. From these FLOPs on, which 8192^3 alone has, launches are 40 ms apart:
none is back to back (PROTOCOL.md, what to know about the clock)."""
GRAPH_BEFORE = 9
"""Times that a graph_gemm row went through its weights before the middle of the timed ones: three calls, three replays,
half of six timed replays (aiconfigurator's `benchmark_with_power`)."""
EVENT_BEFORE = 12
"""Half of the 25 launches of an event_gemm row (NeuSight's collection script)."""


@dataclass(frozen=True)
class Case:
    """One question to the simulator: the workload and, unless the tile is to be chosen, the kernel configuration.

    Two rows that ask the same question have equal cases, and it is asked once.
    """

    inputs: Inputs
    gemm: Gemm
    config: KernelConfig | None
    family: str | None = None
    tile: str = "auto"
    """How to choose where `config` is None, as in `simulate`."""


@dataclass(frozen=True)
class Predicted:
    """The simulator's counterpart of `tables.Measured`, same names and units."""

    time_us: float
    sm_cycles: float
    sm_mhz: float
    dram_read_bytes: float
    dram_write_bytes: float
    l2_read_bytes: float
    sm_received_bytes: float
    l2_hit_pct: float
    tensor_active_pct: float
    limiter: str
    """What limits the main kernel (`sim.limiter`)."""


Predict = Callable[[Case], "Result"]
Progress = Callable[[int, int], None]


def gemm_of(inputs: Inputs, l2: str | None = None) -> Gemm:
    """The workload of a row; raises ConfigError where no GEMM has these sizes or types."""
    return Gemm(
        inputs.m,
        inputs.n,
        inputs.k,
        batch=inputs.batch,
        dtype=inputs.dtype,
        out_dtype=OUT_DTYPES.get(inputs.dtype),
        layout=inputs.layout,
        epilogue=EPILOGUES[inputs.op],
        l2=l2 or inputs.l2,
    )


def l2_state(inputs: Inputs, gpu: Gpu) -> str:
    """ "cold" or "warm" as the table was measured.

    Rows that are measured over several buffers in turn, or over the same ones again, find in L2 what fits it between
    two uses: least-recently-used replacement keeps nothing of a rotation larger than what L2 holds of distinct lines,
    and all of one that fits. The smallest shape of the tile sweep (1024^3, 50 MB on a 60 MiB L2) is cold by this rule,
    and its times differ from those behind flushed caches by no more than Nsight's own overhead.
    """
    rotation = ROTATIONS.get(inputs.kind)
    if rotation is None:
        return inputs.l2
    capacity_bytes = gpu.l2.capacity_mib * 2**20 / gpu.l2.partitions
    return "warm" if rotation(gemm_of(inputs)) <= capacity_bytes else "cold"


ROTATIONS: dict[str, Callable[[Gemm], int]] = {
    "tile_sweep": lambda gemm: SWEEP_PAIRS * (gemm.a_bytes + gemm.b_bytes),
    "graph_gemm": lambda gemm: gemm.a_bytes + GRAPH_WEIGHTS * gemm.b_bytes + gemm.c_bytes,
    "event_gemm": lambda gemm: gemm.compulsory_bytes,
}
"""Kind of table -> bytes touched from one use of a buffer to the next."""


def tile_config(inputs: Inputs, gpu: Gpu) -> KernelConfig:
    """A Triton row's kernel: cp.async ring, wgmma where the GPU has it and the tile is 64 rows or more."""
    mma = "wgmma" if gpu.tensor.wgmma and (inputs.block_m or 0) >= 64 else "mma_sync"
    spills = inputs.spills or 0
    block_m, block_n, block_k, stages, warps, group = (_given(inputs, name) for name in TILE_FIELDS)
    return KernelConfig(
        family="multistage",
        block_m=block_m,
        block_n=block_n,
        block_k=block_k,
        stages=stages,
        warps=warps,
        group=group,
        loads="cp_async" if gpu.tensor.cp_async else "ldg",
        mma="fma" if inputs.dtype == "fp32" else mma,
        registers_per_thread=inputs.regs,
        spill_bytes_per_thread=spills * SPILL_BYTES,
        smem_bytes=inputs.smem,
        name=inputs.kernel,
    )


def _given(inputs: Inputs, name: str) -> int:
    value = getattr(inputs, name)
    if value is None:
        raise ConfigError(f"{name} is blank: a triton row must have it")
    return int(value)


def case_of(inputs: Inputs, gpu: Gpu, tile: str | None) -> Case:
    """The question a row asks. With a `tile` to choose, the kernel's name and tile are dropped before all else; rows
    whose kernel nobody wrote down have it chosen anyway, by the bound unless said otherwise. "auto" is the whole menu
    of a Triton row; of a library's, kernels that it was seen to launch for similar shapes, not for the row's own."""
    triton = inputs.library == "triton"
    tile = tile or ("bound" if inputs.kind in UNNAMED else None)
    if tile is not None:
        inputs = _without_kernel(inputs)
        library = tile == "auto" and not triton and inputs.kind not in UNNAMED
        chosen = "library_but_itself" if library else tile
        return Case(inputs, gemm_of(inputs, l2_state(inputs, gpu)), None, "multistage" if triton else None, chosen)
    gemm = gemm_of(inputs, l2_state(inputs, gpu))
    return Case(inputs, gemm, tile_config(inputs, gpu) if triton else named_config(inputs, gemm))


def named_config(inputs: Inputs, gemm: Gemm) -> KernelConfig:
    """A library kernel's configuration from its name and launch; raises ConfigError for a name not known."""
    from sim.schedule.names import parse_kernel_name

    config = parse_kernel_name(inputs.kernel, gemm, grid=_launch_text(inputs.grid), block=_launch_text(inputs.block))
    others = inputs.other_kernels.split("|") if inputs.other_kernels else []
    in_place = config.split_k > 1 and bool(others) and all("Memset" in other for other in others)
    return dataclasses.replace(config, split_in_place=True) if in_place else config


def _launch_text(sizes: tuple[int, int, int] | None) -> str | None:
    return None if sizes is None else "x".join(str(size) for size in sizes)


def _without_kernel(inputs: Inputs) -> Inputs:
    """The row's question alone: shape, types, layout, operation, L2 state and library."""
    return Inputs(
        kind=inputs.kind,
        m=inputs.m,
        n=inputs.n,
        k=inputs.k,
        dtype=inputs.dtype,
        op=inputs.op,
        layout=inputs.layout,
        l2=inputs.l2,
        library=inputs.library,
        batch=inputs.batch,
    )


def simulator(gpu: Gpu, without: Collection[str] = ()) -> Predict:
    """The real `predict`: one call of `sim.run.simulate` for a case, or a second where its launches are long enough for
    the clock to fall. A kernel is chosen once: libraries do not look at the clock. `without` as in `simulate`."""
    from sim.run import simulate

    def predict(case: Case) -> Result:
        result = simulate(case.gemm, gpu, config=case.config, family=case.family, tile=case.tile, without=without)
        if _launches_before(case) * result.time_s * 1e3 <= gpu.activity.sustain_ms:
            return result
        config = case.config or chosen_config(result)
        return simulate(case.gemm, gpu, config=config, sustained=True, without=without)

    return predict


def chosen_config(result: Result) -> KernelConfig:
    """The configuration that a result was obtained with, to ask for it again."""
    fields = {field.name: result.main.config[field.name] for field in dataclasses.fields(KernelConfig)}
    return KernelConfig(**fields | {"registers_per_thread": None, "n_ctas": None})


def _launches_before(case: Case) -> int:
    """Launches of the same kernel back to back before the median one of a row: none where they lie apart (`rest_ms`);
    counters.csv has single launches. The waits of event_gemm between its launches are short beside its kernels."""
    if case.inputs.rest_ms:
        return 0
    if case.inputs.kind == "gemm":
        return LONG_BURST_BEFORE if case.gemm.flops > LONG_BURST_FLOPS else BURST_BEFORE
    if case.inputs.kind == "graph_gemm":
        return GRAPH_BEFORE * GRAPH_WEIGHTS
    if case.inputs.kind == "event_gemm":
        return EVENT_BEFORE
    return SWEEP_BEFORE if case.inputs.kind == "tile_sweep" and case.gemm.flops < PAUSED_FLOPS else 0


def predicted(case: Case, result: Result, gpu: Gpu) -> Predicted:
    """The table's quantities out of a result; see the module's head for what `time` covers."""
    main = result.main
    overhead_us = NSIGHT_OVERHEAD_US if case.inputs.kind == "counters" else 0.0
    cycles = main.sm_cycles + overhead_us * main.sm_mhz
    return Predicted(
        time_us=_time_us(case, result, gpu) + overhead_us,
        sm_cycles=cycles,
        sm_mhz=main.sm_mhz,
        dram_read_bytes=main.bytes["hbm"]["read"],
        dram_write_bytes=main.bytes["hbm"]["write"],
        l2_read_bytes=main.bytes["l2"]["read"],
        sm_received_bytes=main.bytes["sm"]["read"],
        l2_hit_pct=_l2_hit_pct(main),
        tensor_active_pct=100 * main.utilisation["tensor"] * (main.sm_cycles / cycles if cycles else 0.0),
        limiter=result.limiter,
    )


def _time_us(case: Case, result: Result, gpu: Gpu) -> float:
    """Of the main kernel or of all; a memset that the row has and the result has not is added. From launch to launch, a
    graph's step or a whole call on an idle GPU takes the place of a kernel's fixed part."""
    kind = case.inputs.kind
    if kind == "counters":
        return result.main.time_s * 1e6
    time_us = result.time_s * 1e6
    if kind == "graph_gemm":
        return time_us + len(result.kernels) * max(0.0, gpu.launch.graph_us - gpu.kernel.floor_us)
    if kind == "event_gemm":
        return time_us + max(0.0, gpu.launch.sync_us - gpu.kernel.floor_us)
    modelled = any("memset" in kernel.name.lower() for kernel in result.kernels)
    return time_us + (0 if modelled else case.inputs.other_kernels.count("Memset")) * gpu.persistent.memset_us


def _l2_hit_pct(main: KernelResult) -> float:
    """Lookups that did not start a fill of their own, as a share of all; merged ones wait for another's fill."""
    accesses = main.lookups["accesses"]
    return 100 * (main.lookups["hits"] + main.lookups["merged"]) / accesses if accesses else 0.0


def replay(
    rows: list[Inputs],
    gpu: Gpu,
    predict: Predict,
    *,
    tile: str | None = None,
    threads: int = 2,
    progress: Progress | None = None,
) -> list[Predicted | str]:
    """Predict each row, in the rows' order; a row that cannot be modelled gets the reason instead.

    The engine releases the interpreter lock, so `threads` rows run at once; the outcome does not depend on it. An
    interrupt drops what has not started.
    """
    cases = [case_or_reason(inputs, gpu, tile) for inputs in rows]
    pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="validate")
    try:
        asked = {case: pool.submit(_ask, predict, case, gpu) for case in dict.fromkeys(cases) if isinstance(case, Case)}
        outcome: list[Predicted | str] = []
        for case in cases:
            outcome.append(case if isinstance(case, str) else asked[case].result())
            if progress is not None:
                progress(len(outcome), len(rows))
        return outcome
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def case_or_reason(inputs: Inputs, gpu: Gpu, tile: str | None) -> Case | str:
    """`case_of`, or the reason why the row asks nothing that can be modelled."""
    try:
        return case_of(inputs, gpu, tile)
    except ConfigError as error:
        return str(error)


def _ask(predict: Predict, case: Case, gpu: Gpu) -> Predicted | str:
    """Runs in a worker; keeps the few figures a table has and lets the result go."""
    try:
        return predicted(case, predict(case), gpu)
    except ConfigError as error:
        return str(error)
