"""What may be fitted: the model's constants, each with bounds from physics, its stage, and the kernels that feel it.

A constant is fitted where its value is a guess so far (kind "fitted" or "assumed"); one that a microbenchmark or a
datasheet gave, or a user stated, is left alone. To add a constant, add its line to `CONSTANTS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hwmodels.errors import ConfigError
from hwmodels.rules import value_at
from sim.schedule.config import KernelConfig
from sim.schedule.plan import is_persistent

if TYPE_CHECKING:
    from hwmodels.spec import Gpu

STAGES = ("traffic", "cycles", "clock")
"""In order: bytes first, then cycles at the measured clock and times, then the clock."""
GUESSES = ("fitted", "assumed")
"""Kinds of value that a fit may replace."""


@dataclass(frozen=True)
class Constant:
    """One constant that may be fitted. `low` and `high` in the unit of its key, with `why` they are the bounds."""

    key: str
    stage: str
    low: float
    high: float
    uses: Callable[[KernelConfig], bool]
    """Whether a kernel can feel it at all: only such kernels are simulated anew when it moves."""
    rows: str
    """The rows that identify it, in words."""
    why: str


def _any(config: KernelConfig) -> bool:
    return True


def _ring(config: KernelConfig) -> bool:
    return not is_persistent(config)


def _ring_async(config: KernelConfig) -> bool:
    return _ring(config) and config.loads != "ldg"


def _split(config: KernelConfig) -> bool:
    return config.split_k > 1


EVERY, RING, TMA, SPLIT = "every kernel", "kernels with a cp.async ring", "warp-specialised kernels", "split-K kernels"

CONSTANTS = (
    Constant(
        "l2.jitter_cycles", "traffic", 16, 1000, _any, f"L2 bytes of {EVERY}",
        "from SMs nearer and farther from a slice to a second trip to L2",
    ),
    Constant(
        "coalescing.window_cycles", "traffic", 1, 300, _any, f"L2 bytes of {EVERY} whose CTAs share operands",
        "from a cycle to the whole of an L2 read's time",
    ),
    Constant(
        "multistage.turn_fraction", "traffic", 0.02, 0.9, _ring, f"L2 bytes of {RING}, several an SM",
        "CTAs of an SM that hardly part, to one that may wait for nobody while another waits twice",
    ),
    Constant(
        "l2.write_weight", "cycles", 0.5, 4, _any, f"{EVERY} that writes much of what it reads",
        "half a read (no data returned) to a read, a write and a copy to the other partition",
    ),
    Constant(
        "l2.far_latency_cycles", "cycles", 20, 600, _any, f"{EVERY} with few bytes in flight",
        "from next door to twice the latency of the near partition",
    ),
    Constant(
        "l2.gpc_port_bytes_per_clk", "cycles", 200, 4000, _any, f"{EVERY} bound by L2",
        "16 SMs at an eighth to twice the 123 B/clk of one SM's port",
    ),
    Constant(
        "hbm.row_open_bytes", "cycles", 4, 400, _any, f"{EVERY} bound by HBM",
        "from rows opened behind other transfers to pieces of 256 B reaching 40 % of the bandwidth",
    ),
    Constant(
        "hbm.spread_ns", "cycles", 2, 100, _any, f"{EVERY} waiting for HBM",
        "from hardly any queue to half of HBM's own latency a doubling",
    ),
    Constant(
        "kernel.floor_us", "cycles", 0.2, 3, _any, f"{EVERY} under 10 us",
        "an empty kernel takes 0.5 us or more on every GPU measured, a launch less than 4",
    ),
    Constant(
        "kernel.turnround_cycles", "cycles", 50, 2000, _ring, f"{RING}, of several waves",
        "from the latency of one store to that of three trips to memory",
    ),
    Constant(
        "multistage.barrier_cycles", "cycles", 15, 250, _ring, f"{RING} and many k-iterations",
        "a bar.sync alone takes 35 cycles, a commit, wait and barrier of 12 warps under 100 (overheads.csv)",
    ),
    Constant(
        "multistage.drain_cycles", "cycles", 10, 250, _ring, f"{RING} and many k-iterations",
        "latency of the last MMA: 16 to 33 cycles by mma.sync, 72 by wgmma, with room for older cores",
    ),
    Constant(
        "multistage.load_cycles", "cycles", 15, 500, _ring_async, f"{RING} of two stages",
        "a copy's way beyond a plain load's: at least the store to shared memory, at most a second trip to L2",
    ),
    Constant(
        "multistage.cta_start_cycles", "cycles", 30, 3000, _ring, f"{RING} and short k",
        "address arithmetic before the first load: tens of instructions to a cold instruction cache",
    ),
    Constant(
        "multistage.epilogue_cycles", "cycles", 50, 4000, _ring, f"{RING} and short k",
        "from two barriers to several trips through shared memory and L2",
    ),
    Constant(
        "multistage.issue_bytes_per_clk", "cycles", 30, 1000, _ring_async, f"{RING} and large tiles",
        "16 B a lane: from one warp's 512 B every 17 cycles to those of two warps every cycle",
    ),
    Constant(
        "multistage.narrow_row_weight", "cycles", 1, 4, _ring, f"{RING} whose rows are under 128 B",
        "no conflict, to the four-fold one of 32-byte rows",
    ),
    Constant(
        "persistent.start_cycles", "cycles", 100, 5000, is_persistent, f"{TMA} of one tile a CTA",
        "from one L2 latency to fetching descriptors, initialising barriers and joining a cluster, all cold",
    ),
    Constant(
        "persistent.load_cycles", "cycles", 15, 500, is_persistent, f"{TMA} and short k",
        "the TMA's own part of a copy: less than a second trip to L2",
    ),
    Constant(
        "persistent.epilogue_cycles", "cycles", 50, 2700, is_persistent, f"{TMA} of few tiles a CTA and short k",
        "once a CTA, beyond its last tile's stores: from two barriers to four trips to memory (their acknowledgement, "
        "the cluster's barrier, an exit)",
    ),
    Constant(
        "persistent.iteration_cycles", "cycles", 30, 500, is_persistent, f"{TMA} with small tiles and long k",
        "from one mbarrier's round trip to producer and consumer waiting for each other twice",
    ),
    Constant(
        "persistent.drain_cycles", "cycles", 1, 100, is_persistent, f"{TMA} that fill the tensor cores",
        "nothing, where consumers relieve each other, to the way from an MMA's end to the next one's start",
    ),
    Constant(
        "persistent.reorder_fraction", "cycles", 0.02, 1.5, is_persistent, f"{TMA} that wait for HBM",
        "from memory that serves in turn (a fit's steps are factors and never reach 0) to one where those out of luck "
        "wait for all later requests and for the DRAM rows that these open",
    ),
    Constant(
        "persistent.memset_us", "cycles", 0.3, 3, is_persistent, f"{TMA} of more than two tiles a CTA",
        "an empty kernel, to a launch by the host",
    ),
    Constant(
        "split_k.reduce_floor_us", "cycles", 0.5, 5, _split, f"{SPLIT}, small results",
        "an empty kernel and one trip to memory, to a launch by the host",
    ),
    Constant(
        "split_k.reduce_gb_per_s", "cycles", 200, 20_000, _split, f"{SPLIT}, large results",
        "from the slowest memory listed to twice the H200's L2",
    ),
    Constant(
        "activity.active_mhz", "clock", 600, 3000, _any, "counters of kernels over 20 us",
        "base clock of the slowest GPU listed to a boost clock that none reaches",
    ),
    Constant(
        "activity.tensor_mhz", "clock", 5, 590, _any, "counters of kernels over 20 us, of different tensor activity",
        "below the least clock of an idle kernel, so that a busy one keeps some",
    ),
    Constant(
        "activity.late_us", "clock", 2, 300, _any, "counters of kernels of 20 to 100 us",
        "from a few windows to most of a large product",
    ),
)  # fmt: skip

LEFT = {
    "activity.sustain_ms": "a threshold in time, which no step of a fit can feel: read off bursts of growing length",
    "power.react_ms": "of the second after a rest: python -m sim.calibration.power fits it to sustained_load.csv",
    "power.mean_ms": "the same",
    "tensor.sparse_positions_cycles": "read off kernels for sparse weights, which no table that is fitted to holds",
    "l2.hot_line_cycles": "read off the same",
    "cuda_core.convert_int4_instructions": "read off kernels for int4 weights, which no table that is fitted to holds",
}
"""Constants marked fitted that are not fitted here, and why."""
OWN_PROGRAMS = {
    "attention": "python -m sim.calibration.attention",
    "streaming": "python -m sim.calibration.streams",
}
"""Sections whose constants have a fit of their own, on other tables, and the command that runs it."""


def candidates(gpu: Gpu, kernels: list[KernelConfig]) -> tuple[list[Constant], dict[str, str]]:
    """The constants to fit on these kernels, in the order of stages; and {key: why not} of the others.

    Raises ConfigError for a GPU that leaves nothing to fit.
    """
    chosen, left = [], {}
    for constant in CONSTANTS:
        kind = gpu.provenance[constant.key].kind
        if kind not in GUESSES:
            left[constant.key] = f"known: its kind is {kind}"
        elif not any(map(constant.uses, kernels)):
            left[constant.key] = f"no row feels it: it needs {constant.rows}"
        else:
            chosen.append(constant)
    if not chosen and all(reason.startswith("known") for reason in left.values()):
        raise ConfigError(
            f"gpu = {gpu.name}: no constant is of kind {' or '.join(GUESSES)}, so there is nothing to fit"
        )
    return sorted(chosen, key=lambda constant: STAGES.index(constant.stage)), left


def within(constant: Constant, value: float) -> float:
    """The value to four digits, as it will be written, moved inside the bounds."""
    return min(max(float(f"{value:.4g}"), constant.low), constant.high)


def values_of(gpu: Gpu, constants: tuple[Constant, ...]) -> dict[str, float]:
    """What the GPU holds now under each key."""
    return {constant.key: float(value_at(gpu, constant.key)) for constant in constants}


def with_values(gpu: Gpu, values: dict[str, float]) -> Gpu:
    """The GPU with these constants in place of its own; provenance stays as it was."""
    sections: dict[str, dict[str, float]] = {}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        sections.setdefault(section, {})[name] = value
    return gpu.model_copy(
        update={name: getattr(gpu, name).model_copy(update=changes) for name, changes in sections.items()}
    )
