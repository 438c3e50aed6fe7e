"""What a GPU is, as frozen and validated data. Every field carries its allowed range; its key's suffix is its unit.

`quantity` declares a fact about the hardware, which a GPU file must state. `constant` declares a constant of the
model, which a file may leave out: it is then carried over from the GPU on which it was fitted (see `catalog`).
To add a field, add its line here and its value to a TOML file. Ranges say what is physically sane with room for
what-if questions, not what exists.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from hwmodels.rules import first_broken, value_at
from hwmodels.units import unit_of

KINDS = ("datasheet", "microbenchmark", "derived", "assumed", "fitted", "user")
"""How a value came to be; `user` marks bare values of a user's file and overrides."""


class Provenance(NamedTuple):
    """Where one value comes from."""

    unit: str
    kind: str
    source: str


def quantity(low: float, high: float, text: str) -> Any:
    """A number the hardware has, from `low` to `high` inclusive."""
    return Field(ge=low, le=high, description=text)


def rate(high: float, text: str) -> Any:
    """A throughput up to `high`; 0 says that the GPU lacks the unit."""
    return quantity(0, high, text)


def constant(low: float, high: float, text: str) -> Any:
    """A number of the model, from `low` to `high` inclusive; carried over where a file does not give it."""
    return Field(ge=low, le=high, description=text, json_schema_extra={"constant": True})


def yes_no(text: str) -> Any:
    """A feature that the hardware has or lacks."""
    return Field(description=text)


def word(pattern: str, text: str) -> Any:
    """A short name that matches `pattern`."""
    return Field(pattern=pattern, description=text)


class Section(BaseModel):
    """One section of a GPU file: frozen, no unknown keys, no NaN or infinity, no silent conversion of types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)


class Sm(Section):
    """Streaming multiprocessors: how many, how they are grouped, what one can hold."""

    count: int = quantity(1, 4096, "SMs that run CTAs")
    sms_per_tpc: int = quantity(1, 16, "SMs of a texture processing cluster")
    tpcs_per_gpc: int = quantity(1, 64, "TPCs of a full graphics processing cluster; products disable some")
    singleton_tpcs: int = constant(0, 64, "TPCs of the first GPC that take no part in clusters larger than themselves")
    max_warps: int = quantity(1, 256, "warps resident on an SM")
    max_ctas: int = quantity(1, 256, "CTAs resident on an SM")
    max_threads_per_cta: int = quantity(1, 8192, "threads of one CTA")
    schedulers: int = quantity(1, 32, "warp schedulers of an SM")
    warp_size: int = quantity(1, 128, "threads of a warp")


class Registers(Section):
    """The register file, in 32-bit registers."""

    per_sm: int = quantity(1024, 2**24, "registers of an SM")
    max_per_thread: int = quantity(16, 4096, "registers a thread may use")
    allocation_per_warp: int = quantity(1, 2**16, "granularity in which a warp's registers are allotted")


class Smem(Section):
    """Shared memory of an SM."""

    kib_per_sm: float = quantity(1, 2**20, "shared memory that CTAs of an SM share")
    max_kib_per_cta: float = quantity(1, 2**20, "shared memory one CTA may ask for")
    reserved_bytes_per_cta: int = quantity(0, 2**20, "taken by the system from every CTA's allotment")
    allocation_bytes: int = quantity(1, 2**20, "granularity in which it is allotted")
    bytes_per_clk: float = quantity(1, 2**16, "read or write bandwidth of an SM")
    latency_cycles: float = quantity(1, 10_000, "load to use, no bank conflict")
    banks: int = quantity(1, 1024, "banks, 4 bytes wide")


class Tensor(Section):
    """Tensor cores: dense FLOPs a cycle of one SM by operand type (0: the GPU lacks it), and how they are fed."""

    fp64_flops_per_clk_per_sm: float = rate(2**24, "fp64 operands")
    tf32_flops_per_clk_per_sm: float = rate(2**24, "tf32 operands, fp32 accumulators")
    fp16_flops_per_clk_per_sm: float = rate(2**24, "fp16 operands, fp32 accumulators")
    bf16_flops_per_clk_per_sm: float = rate(2**24, "bf16 operands, fp32 accumulators")
    fp8_flops_per_clk_per_sm: float = rate(2**24, "fp8 operands, fp32 accumulators")
    int8_flops_per_clk_per_sm: float = rate(2**24, "int8 operands, int32 accumulators")
    mma_sync_fraction: float = quantity(
        0.01, 1, "of these rates that mma.sync instructions reach, but of fp64, which has no other"
    )
    short_mma_fraction: float = quantity(
        0.01, 1, "of that, mma.sync instructions half as deep (m16n8k8 of 2-byte types)"
    )
    wgmma: bool = yes_no("has warpgroup instructions that read operands from shared memory")
    tmem_kib_per_sm: float = quantity(
        0, 2**20, "tensor memory of an SM, where tcgen05 instructions keep accumulators; 0: it has no such instructions"
    )
    cp_async: bool = yes_no("has asynchronous copies from global to shared memory")
    tma: bool = yes_no("has the tensor memory accelerator")
    sparse_24: bool = yes_no("skips the zeros of 2:4 sparse operands, twice as fast along k")
    sparse_positions_cycles: float = constant(
        0, 100_000, "before the first sparse wgmma of a k-iteration, while positions go to registers"
    )


class CudaCore(Section):
    """CUDA cores: FLOPs a cycle of one SM, a multiply-add counted as two."""

    fp64_flops_per_clk_per_sm: float = rate(2**20, "fp64 arithmetic")
    fp32_flops_per_clk_per_sm: float = rate(2**20, "fp32 arithmetic")
    fp16_flops_per_clk_per_sm: float = rate(2**20, "fp16 arithmetic, two values a register")
    convert_int4_instructions: float = constant(0, 1000, "to make a 16-bit number of an int4 weight and scale it")
    convert_int8_instructions: float = constant(0, 1000, "to make a 16-bit number of an int8 weight and scale it")
    convert_fp8_instructions: float = constant(0, 1000, "to make a 16-bit number of an fp8 key or value")


class L2(Section):
    """The L2 cache. Latencies are in cycles of the SMs; its bandwidth does not fall with their clock."""

    capacity_mib: float = quantity(2**-6, 2**20, "whole cache, copies in other partitions included")
    partitions: int = quantity(1, 2, "parts that hold copies of each other's lines")
    line_bytes: int = quantity(16, 4096, "bytes under one tag")
    sector_bytes: int = quantity(4, 4096, "bytes of the smallest transfer")
    bytes_per_clk: float = quantity(
        1, 2**24, "read bandwidth of the whole L2 at the boost clock; L2 keeps its clock when that of the SMs falls"
    )
    latency_cycles: float = quantity(1, 100_000, "load to use of a hit in the near partition, by pointer chase")
    sm_port_bytes_per_clk: float = quantity(0.25, 2**16, "read bandwidth of one SM from L2")
    sm_store_bytes_per_clk: float = constant(0.25, 2**16, "rate at which one SM writes to L2")
    far_latency_cycles: float = constant(0, 100_000, "added where a line comes from the other partition")
    gpc_port_bytes_per_clk: float = constant(0.25, 2**20, "rate at which L2 sends to all SMs of one GPC together")
    jitter_cycles: float = constant(0, 100_000, "width of what L2's answer, and again its way in, vary")
    write_weight: float = constant(0, 100, "L2 time of a byte written, a byte read being 1")
    hot_line_cycles: float = constant(
        0, 100_000, "to serve one line to all SMs that ask for it at once: this, times the root of the requests"
    )


class Hbm(Section):
    """The GPU's own memory, whatever its technology."""

    technology: str = word(r"^[A-Za-z0-9+. -]{1,24}$", "kind of memory, such as HBM3e or GDDR6")
    capacity_gb: float = quantity(0.001, 1e6, "memory of the board")
    bandwidth_gb_per_s: float = quantity(0.1, 1e6, "peak of the pins")
    read_fraction: float = quantity(0.01, 1, "of the peak that long reads reach")
    write_fraction: float = quantity(0.01, 1, "of the peak that long writes reach")
    copy_fraction: float = constant(0.01, 1, "of the peak that long copies reach, bytes read and written counted")
    latency_ns: float = quantity(1, 100_000, "added to the L2 latency when a line comes from memory")
    row_open_bytes: float = constant(0, 100_000, "bytes that could have moved in the time it takes to open a DRAM row")
    spread_ns: float = constant(0, 100_000, "added for each doubling of the lines of a chunk: its slowest line")


class Clock(Section):
    """SM clock as the vendor states it; what a kernel gets is in `activity`."""

    base_mhz: float = quantity(1, 20_000, "guaranteed clock")
    boost_mhz: float = quantity(1, 20_000, "highest clock: that of L2's bandwidth, and no kernel runs above it")


class Power(Section):
    """Power of the board, and what moving a byte and computing a FLOP cost. Prices are for random bits and normal
    numbers, at the top clock; those of the SMs' side, L2 included, fall with its square."""

    board_w: float = quantity(1, 100_000, "board power limit")
    sustained_fraction: float = constant(0.1, 1, "of board_w at which the board's control holds long load")
    react_ms: float = constant(
        1, 10_000, "that a burst lasts before the board's control acts, and that it takes to act"
    )
    mean_ms: float = constant(10, 100_000, "over which the control takes the mean of power that it holds")
    idle_w: float = constant(0, 10_000, "board at its lowest clock")
    clocks_w: float = constant(0, 10_000, "added by running clocks at the top clock; goes as its cube")
    active_w_per_sm: float = constant(0, 100, "added by an SM that runs CTAs, at the top clock; goes as its cube")
    smem_pj_per_byte: float = constant(0, 10_000, "shared memory, read or written")
    l2_read_pj_per_byte: float = constant(0, 10_000, "from L2 into an SM")
    l2_write_pj_per_byte: float = constant(0, 10_000, "from an SM into L2")
    hbm_read_pj_per_byte: float = constant(0, 10_000, "from memory into L2, whatever the clock")
    hbm_write_pj_per_byte: float = constant(0, 10_000, "from L2 into memory, whatever the clock")
    fp64_pj_per_flop: float = constant(0, 10_000, "fp64, tensor cores and CUDA cores")
    tf32_pj_per_flop: float = constant(0, 10_000, "tensor cores, tf32, their reads of shared memory apart")
    fp16_pj_per_flop: float = constant(0, 10_000, "tensor cores, fp16, their reads of shared memory apart")
    bf16_pj_per_flop: float = constant(0, 10_000, "tensor cores, bf16, their reads of shared memory apart")
    fp8_pj_per_flop: float = constant(0, 10_000, "tensor cores, fp8, their reads of shared memory apart")
    int8_pj_per_flop: float = constant(0, 10_000, "tensor cores, int8, their reads of shared memory apart")
    fp32_pj_per_flop: float = constant(0, 10_000, "multiply-adds of the CUDA cores, registers included")
    mma_sync_weight: float = constant(0.1, 10, "energy of a FLOP by mma.sync, operands in registers, over wgmma's")
    zeros_smem_fraction: float = constant(0, 1, "of the energy of random bits that zeros take")
    zeros_l2_fraction: float = constant(0, 1, "of the energy of random bits that zeros take")
    zeros_hbm_fraction: float = constant(0, 1, "of the energy of random bits that zeros take")
    zeros_tensor_fraction: float = constant(0, 1, "of a FLOP's energy on normal numbers that one on zeros takes")
    sparse_tensor_fraction: float = constant(0, 1, "of a FLOP's energy on normal numbers that one on {-1, 0, 1} takes")


class Pcie(Section):
    """The link to host memory and the copies over it."""

    generation: int = quantity(1, 8, "PCI Express generation")
    lanes: int = quantity(1, 32, "lanes")
    pinned_h2d_gb_per_s: float = quantity(0.001, 10_000, "long copy from page-locked host memory")
    pinned_d2h_gb_per_s: float = quantity(0.001, 10_000, "long copy to page-locked host memory")
    pageable_h2d_gb_per_s: float = quantity(0.001, 10_000, "long copy from ordinary host memory")
    pageable_d2h_gb_per_s: float = quantity(0.001, 10_000, "long copy to ordinary host memory")
    copy_latency_us: float = quantity(0, 100_000, "fixed cost of one copy")


class Launch(Section):
    """What starting a kernel costs."""

    stream_us: float = quantity(0, 100_000, "from one empty kernel to the next, launched one by one into a stream")
    graph_us: float = quantity(0, 100_000, "from one empty kernel to the next inside a graph")
    sync_us: float = quantity(0, 1e6, "one launch and waiting for its end")
    eager_us: float = constant(0, 100_000, "host time that an eager PyTorch program spends on one operation of a model")
    checkpoint_us: float = constant(0, 1e6, "host time of an eager program to enter a layer that it will run again")
    recompute_us: float = constant(0, 1e6, "host time of an eager program to run such a layer again, beside operations")


class Kernel(Section):
    """What every kernel pays."""

    floor_us: float = constant(0, 1000, "kernel time outside its CTAs: launch and drain of the grid")
    launch_ns: float = constant(0, 1000, "from the start of one CTA or cluster of a grid to that of the next")
    turnround_cycles: float = constant(0, 1e6, "from the end of a CTA to the first instruction of the next in its slot")


class Multistage(Section):
    """Kernels with one CTA an output tile and a cp.async ring."""

    barrier_cycles: float = constant(0, 100_000, "barrier of one k-iteration, with four warps")
    barrier_warp_cycles: float = constant(0, 10_000, "what each further warp adds to it")
    drain_cycles: float = constant(0, 100_000, "from the last MMA of a k-iteration to its result")
    serial_cycles: float = constant(0, 100_000, "other instructions of a k-iteration, where warps wait for each wgmma")
    turn_fraction: float = constant(0, 0.9, "part by which waits for what other CTAs of an SM hold vary")
    load_cycles: float = constant(0, 100_000, "latency of a cp.async beyond that of a plain load")
    cta_start_cycles: float = constant(0, 1e6, "from the first instruction of a CTA to its first load")
    epilogue_cycles: float = constant(0, 1e6, "fixed part of the epilogue")
    issue_bytes_per_clk: float = constant(0.01, 2**16, "rate at which one CTA issues its loads")
    l1_line_cycles: float = constant(0, 10_000, "time in which L1 finds one of the lines that a warp loads from")
    narrow_row_weight: float = constant(
        1, 100, "shared-memory time to write chunk rows narrower than all banks, whole rows being 1"
    )


class Persistent(Section):
    """Warp-specialised kernels that stay on their SM and walk over tiles."""

    start_cycles: float = constant(0, 1e6, "from kernel start to the first load")
    load_cycles: float = constant(0, 100_000, "latency of a TMA copy beyond that of a plain load")
    epilogue_cycles: float = constant(0, 1e6, "end of a CTA's last tile, beyond its stores")
    iteration_cycles: float = constant(0, 100_000, "least time between two stages' loads, and between their MMAs")
    drain_cycles: float = constant(0, 100_000, "from an iteration's last MMA to the next one's first, at least")
    reorder_fraction: float = constant(
        0, 2, "of the requests that come while a CTA's stage waits for memory, 0 to this part go first, at random"
    )
    off_pair_bytes: float = constant(
        0, 1024, "bytes a TMA box reads beyond its sectors for a row that does not start at a pair of sectors"
    )
    store_weight: float = constant(0, 100, "L2 time of a byte that TMA stores, one stored by threads being 1")
    memset_us: float = constant(0, 1000, "clearing the tile counter before a kernel of more than two tiles a CTA")


class Streaming(Section):
    """Kernels that move data and compute little. `*_thread_cycles`: what an element takes a thread of a lone CTA, waits
    for its own instructions included; `*_issue_cycles`: what it takes of an SM whose CTAs all compute."""

    trip_cycles: float = constant(0, 1e6, "of a round trip to L2, the part that passes at the SM's clock")
    cta_ns: float = constant(0, 1000, "from one CTA to the next of a grid of many short CTAs, over the whole GPU")
    code_us: float = constant(
        0, 1000, "fetching the instructions of a kernel that other kernels have driven out of the caches"
    )
    short_code_fraction: float = constant(0, 1, "of that, where the kernel is a short one")
    stream_copy_fraction: float = constant(0.01, 1, "of HBM's peak that long streams reach that read and write alike")
    l2_fraction: float = constant(
        0.01, 1, "of the rate at which L2 serves the loops of products, what plain loads reach"
    )
    dirty_fraction: float = constant(0, 1, "of L2's capacity that may hold bytes not yet written to memory")
    reread_fraction: float = constant(
        0.01, 1, "of L2's capacity, bytes of resident rows up to which all stay for a later pass"
    )
    l1_fraction: float = constant(0.01, 1, "of an SM's shared memory, L1 that keeps rows which its CTAs read again")
    reduction_cycles: float = constant(0, 1e6, "combining one value of all threads of a CTA")
    silu_thread_cycles: float = constant(0, 1e6, "x / (1 + exp(-x))")
    silu_issue_cycles: float = constant(0, 1e6, "x / (1 + exp(-x))")
    gelu_thread_cycles: float = constant(0, 1e6, "gelu by erf")
    gelu_issue_cycles: float = constant(0, 1e6, "gelu by erf")
    strided_thread_cycles: float = constant(0, 1e6, "element taken alone, its address computed from its number")
    strided_issue_cycles: float = constant(0, 1e6, "element taken alone, its address computed from its number")
    sector_request_bytes: float = constant(0, 1e6, "L2 time of a lone sector, in bytes of whole lines")
    layer_norm_thread_cycles: float = constant(0, 1e6, "both passes over an element, running mean and variance")
    layer_norm_issue_cycles: float = constant(0, 1e6, "both passes over an element, running mean and variance")
    rms_norm_issue_cycles: float = constant(0, 1e6, "both passes over an element, sum of squares")
    special_cycles: float = constant(0, 1e6, "exponential or division in softmax")
    softmax_thread_cycles: float = constant(0, 1e6, "element of a warp that holds its row, exponential and division")
    softmax_cycles: float = constant(0, 1e6, "element of softmax beside exponentials and division")
    softmax_scalar_cycles: float = constant(0, 1e6, "the same where a thread's elements are loaded one by one")
    softmax_trip_fraction: float = constant(
        0, 1, "of a round trip, for a load of a lane whose warp holds its row: others are under way"
    )
    softmax_exponential_fraction: float = constant(0, 1, "of softmax_thread_cycles that goes without the division")
    softmax_reread_fraction: float = constant(
        0, 1, "of softmax_cycles, element of a row that is read again from memory instead of shared memory"
    )
    gather_weight: float = constant(0, 100, "HBM time of a byte of rows picked by index, one of a long read being 1")
    adamw_issue_cycles: float = constant(0, 1e6, "element of the fused AdamW update")
    column_issue_cycles: float = constant(0, 1e6, "element of sums over rows")


class SplitK(Section):
    """The reduction kernel that adds the partial sums of a split-K GEMM."""

    reduce_floor_us: float = constant(0, 1000, "fixed part of its time")
    reduce_gb_per_s: float = constant(0.1, 1e6, "rate at which it reads and writes; its input is still in L2")


class Coalescing(Section):
    """One L2 read that serves several SMs of a GPC that ask for the same chunk."""

    window_cycles: float = constant(0, 1e6, "how long after a request that hits L2 another merges with it")


class Attention(Section):
    """Fused attention kernels, beside their products."""

    score_cycles: float = constant(0, 100, "of an SM, for a score: its softmax, by the warps that multiply")
    output_cycles: float = constant(0, 100, "of an SM, for an element of the output and block of keys: its rescaling")
    wait_cycles: float = constant(0, 100, "of a CTA, for a score: what it waits for itself, other CTAs going on")
    start_cycles: float = constant(0, 1e6, "of a FlashAttention-2 CTA before its first load, beyond a GEMM's")
    decode_start_cycles: float = constant(0, 1e6, "the same of cuDNN's kernels for one query")
    backward_score_weight: float = constant(0, 100, "score_cycles of a backward kernel, those of a forward one being 1")
    unordered_fraction: float = constant(
        0, 1, "of the products' time that softmax runs beside where warpgroups take no turns; half where they do"
    )
    combine_slice_us: float = constant(0, 1000, "of the kernel that joins slices of keys, for each slice")


class Activity(Section):
    """Clock inside a kernel: active_mhz - tensor_mhz * tensor activity, of which half at first."""

    active_mhz: float = constant(1, 20_000, "clock of a kernel that does not use the tensor cores")
    few_sms_mhz: float = constant(0, 20_000, "gained where one SM works and the others idle")
    few_sms: int = constant(1, 2**16, "SMs at work from which on nothing of that is left")
    tensor_mhz: float = constant(0, 20_000, "lost when the tensor cores are busy all the time")
    late_us: float = constant(0, 1e6, "from a kernel's start until the other half of that is lost too")
    sustained_tensor_mhz: float = constant(
        0, 20_000, "as tensor_mhz, once tensor-bound work has lasted sustain_ms; 0: what the board's power leaves"
    )
    sustain_ms: float = constant(0, 1e6, "work after which the board's power control has settled")


class Gpu(BaseModel):
    """One GPU. `gpu.hbm.bandwidth_gb_per_s`, the key in its TOML file and the key of an override are the same path.

    `provenance` maps every key to its unit, kind and source. Raises pydantic's ValidationError, a ValueError, when
    built from wrong values; `hwmodels.load_gpu` turns that into a one-line ConfigError.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str = word(r"^.{1,200}$", "stem of its file")
    label: str = word(r"^.{1,80}$", "name for people")
    vendor: str = word(r"^.{1,80}$", "who makes it")
    architecture: str = word(r"^[a-z0-9_]{1,40}$", "family of designs whose values it inherits")
    compute_capability: str = word(r"^[0-9]{1,2}\.[0-9]$", "version of the instruction set, such as 9.0")
    sm: Sm
    registers: Registers
    smem: Smem
    tensor: Tensor
    cuda_core: CudaCore
    l2: L2
    hbm: Hbm
    clock: Clock
    power: Power
    pcie: Pcie
    launch: Launch
    kernel: Kernel
    multistage: Multistage
    persistent: Persistent
    streaming: Streaming
    split_k: SplitK
    coalescing: Coalescing
    attention: Attention
    activity: Activity
    provenance: dict[str, Provenance] = Field(default_factory=dict, repr=False, exclude=True)

    @model_validator(mode="after")
    def _combinations(self) -> Gpu:
        broken = first_broken(self)
        if broken is not None:
            found = ", ".join(f"{key} = {value_at(self, key)!s}" for key in broken.keys)
            message = "impossible combination: {text}: {found}"
            raise PydanticCustomError(
                "combination", message, {"text": broken.text, "found": found, "keys": broken.keys}
            )
        return self

    def __hash__(self) -> int:
        """Of the values alone: `provenance`, a dict, cannot be hashed."""
        return hash((self.name, *(getattr(self, section) for section in SECTIONS)))


class FieldSpec(NamedTuple):
    """What a key accepts: type, inclusive range (None for text and yes/no), unit, meaning."""

    type: type
    low: float | None
    high: float | None
    unit: str
    text: str
    is_constant: bool


def _sections() -> dict[str, type[Section]]:
    found = {name: field.annotation for name, field in Gpu.model_fields.items()}
    return {name: kind for name, kind in found.items() if isinstance(kind, type) and issubclass(kind, Section)}


def _field_spec(model: type[BaseModel], name: str) -> FieldSpec:
    field = model.model_fields[name]
    value_type = field.annotation
    assert isinstance(value_type, type)
    limits = {key: getattr(item, key) for item in field.metadata for key in ("ge", "le") if hasattr(item, key)}
    unit = unit_of(name, value_type)
    is_constant = isinstance(field.json_schema_extra, dict)
    return FieldSpec(value_type, limits.get("ge"), limits.get("le"), unit, field.description or "", is_constant)


SECTIONS = _sections()
"""{name: model} of every section of a GPU file."""

FIELDS = {"compute_capability": _field_spec(Gpu, "compute_capability")} | {
    f"{section}.{name}": _field_spec(model, name) for section, model in SECTIONS.items() for name in model.model_fields
}
"""{key: what it accepts} of every value of a GPU, in the order of display."""
