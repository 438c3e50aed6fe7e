"""What a CTA of a kernel takes of an SM, as the hardware allots it: shared memory, registers, warps; and what fits.

Modelled: the operand ring and epilogue buffer in shared memory, accumulators, operand fragments and addresses in
registers, allotment granularities, spills. Not modelled: static shared memory of other code.
A compiler's own figures (`KernelConfig.registers_per_thread`, `smem_bytes`) win over these formulas.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.schedule import formats, tensor_memory
from sim.schedule.config import KernelConfig
from sim.schedule.fields import MAX_CLUSTER, check_fields, refused
from workloads.dtypes import BYTES
from workloads.gemm import Gemm

WARPGROUP_WARPS = 4
"""Warps that issue one wgmma together, or take a tile out of tensor memory."""
WARPGROUP_THREADS = 128

SWIZZLE_BYTES = 128
"""Width of a TMA box row in shared memory."""
TMA_ALIGNMENT_BYTES = 16
CP_ASYNC_MIN_BYTES = 4

EPILOGUE_BUFFER_BYTES = 16384
BARRIER_BYTES_PER_STAGE = 24
BARRIER_BYTES = 68
"""Persistent kernels: buffer through which C leaves, barriers of one stage, and the rest. From the `smem` column of the
H200's gemm.csv: ring + 16384 + 24 stages + 68 for split-K kernels and 16 (up to 80) more for others holds for all
771 nvjet rows."""

FRAGMENT_BYTES = 32
"""Bytes along k of a step whose fragments a warp holds."""
PRODUCER_REGISTERS = 24
CONSUMER_MAX_REGISTERS = 240
"""Register budget after setmaxnreg: 24 + 2 x 240 for each of 128 threads is what 168 a thread at launch reserve."""

L1_BYTES = 28 * 1024
"""What the largest carve-out of shared memory leaves of L1: 28 KiB of 256 (Hopper) or 192 (A100), 32 before (CUDA C++
Programming Guide, quoted copy)."""
WGMMA_NEED = 22, 2.4
MMA_NEED = 14.5, 2.8, 1.4
"""Registers a thread needs besides accumulators: a base, some for each 16 B copy it issues in one stage (address and
predicate), and operand fragments. Fitted to the `regs` column of the H200's tile_sweep.csv: on its 225 kernels the
error is 2.5 % in the median, 3.7 % in the mean and 19 % at most."""
WGMMA_SQUEEZED = 20, 1.8
MMA_SQUEEZED = 19, 2.6, 1.1
"""The same where it decides how many CTAs fit, as ptxas works towards whole numbers of them: it rather saves a register
than a CTA. `*_NEED` are nearer in registers where both give as many. Of the values tried those with which the occupancy
of the 218 tiles without spills in tile_sweep.csv, tile_more.csv and tile_choice.csv agrees most often: of 151 with
wgmma in 150 (141 as above), of 67 with mma.sync in 61 (49)."""


@dataclass(frozen=True)
class Occupancy:
    """CTAs that one SM holds at once and what bounds them."""

    ctas_per_sm: int
    warps_per_sm: int
    limit: str
    """"registers", "shared memory", "threads" or "ctas"."""
    registers_per_thread: int
    spill_bytes_per_thread: int
    smem_bytes_per_cta: int
    """What a CTA asks for; the reserved part and rounding come on top."""

    def describe(self) -> dict[str, Any]:
        """As `KernelResult.occupancy` documents it."""
        return asdict(self)


def is_warp_specialised(config: KernelConfig) -> bool:
    """Whether a producer warpgroup feeds consumer warpgroups by TMA."""
    return config.loads == "tma"


def consumer_warps(config: KernelConfig) -> int:
    """Warps that hold one output tile's accumulators, or take them out of tensor memory."""
    if not is_warp_specialised(config):
        return config.warps
    return WARPGROUP_WARPS if config.pingpong else config.warps - WARPGROUP_WARPS


def n_threads(config: KernelConfig, gpu: Gpu) -> int:
    """Threads of a CTA."""
    return config.warps * gpu.sm.warp_size


def consumer_threads(config: KernelConfig, gpu: Gpu) -> int:
    """Threads of `consumer_warps`."""
    return consumer_warps(config) * gpu.sm.warp_size


def wgmma_tile(config: KernelConfig) -> tuple[int, int]:
    """Part of the CTA tile that one consumer warpgroup works on, along wgmma's M and N.

    Cooperative warpgroups halve M where it holds two instructions (cuBLAS's coopA), else N (coopB).
    """
    side_m, side_n = tensor_memory.mma_sides(config)
    if config.pingpong or consumer_warps(config) < 2 * WARPGROUP_WARPS:
        return side_m, side_n
    return (side_m // 2, side_n) if side_m % 128 == 0 else (side_m, side_n // 2)


# Shared memory.
def smem_bytes(config: KernelConfig, gemm: Gemm, gpu: Gpu) -> int:
    """Shared memory one CTA asks for, in bytes.

    Triton's mma.sync kernels keep stages - 1 tiles in shared memory, its wgmma kernels all (exact for the 1,377 rows of
    tile_sweep.csv). Raises nothing: `occupancy` compares it with what `gpu` has.
    """
    if config.smem_bytes is not None:
        return config.smem_bytes
    if is_warp_specialised(config):
        rest = BARRIER_BYTES_PER_STAGE * config.stages + BARRIER_BYTES + (0 if config.split_k > 1 else 16)
        return config.stages * _tma_stage_bytes(config, gemm) + EPILOGUE_BUFFER_BYTES + rest
    in_smem = max(1, config.stages - 1) if config.mma == "mma_sync" and gpu.tensor.cp_async else config.stages
    return in_smem * math.ceil(formats.chunk_bytes(gemm, config))


def _tma_stage_bytes(config: KernelConfig, gemm: Gemm) -> int:
    """One stage of A and B. Tile rows along m or n lie in boxes of 128 B, or of the next power of two if shorter."""
    widest = SWIZZLE_BYTES // gemm.a_element_bytes
    rows_a, rows_b = formats.held_rows(config)
    padded = {
        operand: block
        if gemm.k_is_contiguous(operand)
        else _round_up(block, min(widest, 1 << (block - 1).bit_length()))
        for operand, block in (("a", rows_a), ("b", rows_b))
    }
    rows = padded["a"] * gemm.a_element_bytes + padded["b"] * formats.stored_bytes(gemm, "b")
    return math.ceil(rows * config.block_k)


# Registers.
def register_need(config: KernelConfig, gemm: Gemm, gpu: Gpu, squeezed: bool = False) -> int:
    """Registers a thread would use without any limit: accumulators, operand fragments, addresses; or `squeezed`.

    wgmma reads its operands from shared memory; mma.sync and CUDA cores keep them in registers; tcgen05 keeps even
    accumulators out of them, of which the epilogue takes some columns at a time.
    """
    if config.mma == "tcgen05":
        return WGMMA_NEED[0] + tensor_memory.LOAD_COLUMNS
    wgmma, mma = (WGMMA_SQUEEZED, MMA_SQUEEZED) if squeezed else (WGMMA_NEED, MMA_NEED)
    threads = consumer_threads(config, gpu)
    accumulators = config.block_m * config.block_n * max(4, gemm.accumulator_bytes) / 4 / threads
    if is_warp_specialised(config):
        return round(accumulators) + WGMMA_NEED[0] + formats.fragment_registers(gemm, wgmma_tile(config)[0])
    tile_bytes = formats.chunk_bytes(gemm, config)
    copies = tile_bytes / 16 / threads
    if config.mma == "wgmma":
        return round(accumulators + wgmma[0] + wgmma[1] * copies)
    fragments = mma[2] * _fragment_registers(config, gpu)
    if config.loads == "ldg":
        fragments += tile_bytes / 4 / threads  # the next tile, on its way to shared memory
    return round(accumulators + fragments + mma[0] + mma[1] * copies)


def _fragment_registers(config: KernelConfig, gpu: Gpu) -> float:
    """Registers of a warp's A and B fragments for one instruction step of 32 B along k."""
    along_m, along_n = 1, 1
    while along_m * along_n < config.warps:
        if config.block_m / along_m >= config.block_n / along_n and config.block_m / along_m > 16:
            along_m *= 2
        else:
            along_n *= 2
    return (config.block_m / along_m + config.block_n / along_n) * FRAGMENT_BYTES / (4 * gpu.sm.warp_size)


def registers_per_thread(config: KernelConfig, gemm: Gemm, gpu: Gpu) -> int:
    """Registers a thread is launched with.

    The compiler's figure where known. Warp-specialised kernels of wgmma take all that the register file gives their
    threads (168 for 384 threads on Hopper) and hand it from the producer to the consumers. Else the need, up to the
    limit.
    """
    if config.registers_per_thread is not None:
        return config.registers_per_thread
    if is_warp_specialised(config) and config.mma != "tcgen05":
        each = gpu.registers.per_sm // n_threads(config, gpu) // 8 * 8
        return min(each, gpu.registers.max_per_thread)
    need, most = register_need(config, gemm, gpu), gpu.registers.max_per_thread
    if config.loop == "triton" and not is_warp_specialised(config):
        squeezed = register_need(config, gemm, gpu, squeezed=True)
        if _ctas_by_registers(config, gpu, squeezed) != _ctas_by_registers(config, gpu, need):
            return min(squeezed, most)
    return min(need, most)


def spill_bytes_per_thread(config: KernelConfig, gemm: Gemm, gpu: Gpu) -> int:
    """Bytes a thread keeps in local memory because its registers do not hold them."""
    if config.registers_per_thread is not None or is_warp_specialised(config):
        return config.spill_bytes_per_thread
    return 4 * max(0, register_need(config, gemm, gpu) - gpu.registers.max_per_thread)


def loop_spill_bytes(config: KernelConfig, gemm: Gemm, gpu: Gpu, ctas_per_sm: int) -> tuple[int, int]:
    """(bytes, bytes from L2) that a CTA stores to local memory and loads again in every k-iteration.

    Where accumulators, fragments and addresses exceed the registers of a thread, every spilled one moves each way once
    an iteration; where a compiler spills all the same, it does so outside the loop (spills.csv). Stores go through to
    L2; loads hit L1 as far as the CTAs of an SM leave it room.
    """
    if is_warp_specialised(config) or register_need(config, gemm, gpu) <= gpu.registers.max_per_thread:
        return 0, 0
    spilled = spill_bytes_per_thread(config, gemm, gpu) * n_threads(config, gpu)
    return spilled, 0 if spilled * ctas_per_sm <= L1_BYTES else spilled


# What fits.
def occupancy(config: KernelConfig, gemm: Gemm, gpu: Gpu) -> Occupancy:
    """CTAs of `config` that one SM of `gpu` holds, from warps, registers and shared memory as they are allotted.

    Raises `ConfigError`, saying by how much, where not even one CTA fits, and for configurations that no hardware
    runs: stages, cluster or tile out of range, data type or unit that the GPU lacks, operands too badly aligned.
    """
    check_config(config, gemm, gpu)
    smem, registers = smem_bytes(config, gemm, gpu), registers_per_thread(config, gemm, gpu)
    _check_fits(config, gemm, gpu, smem, registers)
    limits = cta_limits(config, gpu, smem, registers)
    limit = min(limits, key=limits.__getitem__)
    if limits[limit] < 1:
        raise _no_room(limit, config, gpu, smem, registers)
    spilled = spill_bytes_per_thread(config, gemm, gpu)
    ctas = limits[limit]
    return Occupancy(ctas, ctas * config.warps, limit, registers, spilled, smem)


def cta_limits(config: KernelConfig, gpu: Gpu, smem: int, registers: int) -> dict[str, int]:
    """{resource: CTAs of an SM it allows}."""
    a_cta = _round_up(smem + gpu.smem.reserved_bytes_per_cta, gpu.smem.allocation_bytes)
    return {
        "shared memory": int(gpu.smem.kib_per_sm * 1024) // max(1, a_cta),
        "registers": _ctas_by_registers(config, gpu, registers),
        "threads": gpu.sm.max_warps // config.warps,
        "ctas": gpu.sm.max_ctas,
    }


def _ctas_by_registers(config: KernelConfig, gpu: Gpu, registers: int) -> int:
    """CTAs that an SM has registers for. A warp's lie in one scheduler's quarter of the file."""
    a_warp = _round_up(registers * gpu.sm.warp_size, gpu.registers.allocation_per_warp)
    return gpu.registers.per_sm // gpu.sm.schedulers // a_warp * gpu.sm.schedulers // config.warps


def _no_room(limit: str, config: KernelConfig, gpu: Gpu, smem: int, registers: int) -> ConfigError:
    """Why an SM holds not even one CTA, by the resource that is short."""
    if limit == "shared memory":
        unit, reserved = gpu.smem.allocation_bytes, gpu.smem.reserved_bytes_per_cta
        return _over(
            f"shared memory of one CTA = {smem} B and {reserved} B reserved, allotted in steps of {unit} B",
            f"an SM of {gpu.name} has {int(gpu.smem.kib_per_sm * 1024)} B",
        )
    if limit == "threads":
        return _over(f"warps = {config.warps}", f"an SM of {gpu.name} holds {gpu.sm.max_warps}")
    unit = gpu.registers.allocation_per_warp
    return _over(
        f"registers of one CTA = {registers} x {n_threads(config, gpu)} threads, allotted in steps of {unit} a warp",
        f"an SM of {gpu.name} has {gpu.registers.per_sm}",
    )


def _check_fits(config: KernelConfig, gemm: Gemm, gpu: Gpu, smem: int, registers: int) -> None:
    most = int(gpu.smem.max_kib_per_cta * 1024)
    tile = f"{config.block_m}x{config.block_n}x{config.block_k}"
    if smem > most:
        what = f"shared memory of tile {tile} with {config.stages} stages = {smem} B"
        raise _over(what, f"at most {most} B a CTA on {gpu.name}, {smem - most} B too many")
    if registers > gpu.registers.max_per_thread:
        over = registers - gpu.registers.max_per_thread
        raise _over(
            f"registers_per_thread = {registers}",
            f"at most {gpu.registers.max_per_thread} on {gpu.name}, {over} too many",
        )
    if not is_warp_specialised(config) or config.mma == "tcgen05":
        return
    need, have = register_need(config, gemm, gpu), _consumer_registers(config, gpu, registers)
    if need > have:
        raise _over(
            f"registers of a consumer thread of tile {tile} = {need}", f"at most {have}, {need - have} too many"
        )


def _consumer_registers(config: KernelConfig, gpu: Gpu, registers: int) -> int:
    """Registers a consumer thread has after the producer warpgroup gave up all but a few."""
    threads = n_threads(config, gpu)
    left = registers * threads - PRODUCER_REGISTERS * WARPGROUP_THREADS
    return min(CONSUMER_MAX_REGISTERS, left // (threads - WARPGROUP_THREADS) // 8 * 8, gpu.registers.max_per_thread)


# What makes sense at all.
def check_config(config: KernelConfig, gemm: Gemm, gpu: Gpu) -> None:
    """Raise `ConfigError` for a configuration that contradicts itself, the workload or the GPU's features."""
    check_fields(config)
    if config.stream_k and gemm.accumulator_dtype != "fp32":
        raise refused("stream_k = True", f"False with sums in {gemm.accumulator_dtype}")
    _check_units(config, gemm, gpu)
    formats.check_format(config, gemm, gpu)
    _check_loads(config, gemm, gpu)
    _check_shape(config, gemm, gpu)
    _check_cluster(config, gpu)
    if gemm.epilogue == "row_stats" and config.split_k > 1:
        raise refused(f"split_k = {config.split_k}", "1 with epilogue row_stats, which needs whole sums")
    iterations = -(-gemm.k // config.block_k)
    if config.split_k > iterations:
        raise refused(
            f"split_k = {config.split_k}",
            f"1 to {iterations}, the k-iterations of k = {gemm.k}, block_k = {config.block_k}",
        )
    if n_threads(config, gpu) > gpu.sm.max_threads_per_cta:
        most = gpu.sm.max_threads_per_cta // gpu.sm.warp_size
        raise refused(f"warps = {config.warps}", f"1 to {most} on {gpu.name}")


def _check_units(config: KernelConfig, gemm: Gemm, gpu: Gpu) -> None:
    """The instruction exists on the GPU for the workload's data type."""
    others = [mma for mma, has in instruction_kinds(gpu).items() if has and mma != config.mma]
    if not instruction_kinds(gpu)[config.mma]:
        allowed = f"{' or '.join(others)} on {gpu.name}, compute capability {gpu.compute_capability}"
        raise refused(f"mma = {config.mma!r}", allowed)
    if config.mma in ("wgmma", "tcgen05") and gemm.dtype == "fp64":
        raise refused(f"mma = {config.mma!r}", "mma_sync or fma for fp64")
    rate = flops_per_clk_per_sm(config.mma, multiplied_dtype(config, gemm), gpu)
    if rate <= 0:
        unit = "CUDA cores" if config.mma == "fma" else "tensor cores"
        have = ", ".join(types_of(config.mma, gpu)) or "none"
        raise refused(
            f"dtype = {gemm.dtype!r} with mma = {config.mma!r}",
            f"a type that the {unit} of {gpu.name} have: {have}",
        )


def instruction_kinds(gpu: Gpu) -> dict[str, bool]:
    """{kind of instruction that multiplies: whether the GPU has it}; what a type needs is another question."""
    return {"tcgen05": gpu.tensor.tmem_kib_per_sm > 0, "wgmma": gpu.tensor.wgmma, "mma_sync": True, "fma": True}


def types_of(mma: str, gpu: Gpu) -> tuple[str, ...]:
    """Data types that an instruction kind takes on `gpu`."""
    return tuple(dtype for dtype in BYTES if flops_per_clk_per_sm(mma, dtype, gpu) > 0)


def check_dtype(gemm: Gemm, gpu: Gpu) -> None:
    """Raise `ConfigError`, naming the types there are, where no unit of `gpu` takes the workload's operands."""
    tensor, cuda_core = types_of("mma_sync", gpu), types_of("fma", gpu)
    if gemm.dtype not in (*tensor, *cuda_core):
        units = ((tensor, "tensor"), (cuda_core, "CUDA"))
        have = "; ".join(f"{', '.join(types)} on {unit} cores" for types, unit in units if types)
        raise ConfigError(f"dtype = {gemm.dtype!r}: {gpu.name} has no {gemm.dtype}; it has {have} (workload gemm)")


def multiplied_dtype(config: KernelConfig, gemm: Gemm) -> str:
    """The type in which a kernel multiplies: of bf16 and tf32, and of all that goes straight into registers, CUDA cores
    make fp32 first."""
    short = gemm.dtype in ("bf16", "tf32") or (config.loads == "direct" and gemm.dtype == "fp16")
    return "fp32" if config.mma == "fma" and short else gemm.dtype


def flops_per_clk_per_sm(mma: str, dtype: str, gpu: Gpu) -> float:
    """Peak FLOPs a cycle and SM of an instruction kind for operands of `dtype`; 0 where the GPU lacks it."""
    unit, name = (gpu.cuda_core, dtype) if mma == "fma" else (gpu.tensor, dtype.partition("_")[0])
    return float(getattr(unit, f"{name}_flops_per_clk_per_sm", 0.0))


def _check_loads(config: KernelConfig, gemm: Gemm, gpu: Gpu) -> None:
    """What loads by TMA stores C by TMA too, in rows as well aligned: so in all 1,548 measured rows that do, while the
    library takes another kernel where C alone is not."""
    if config.loads in ("ldg", "direct"):
        return
    if not (gpu.tensor.tma if config.loads == "tma" else gpu.tensor.cp_async):
        raise refused(f"loads = {config.loads!r}", f"a way that {gpu.name} has, ldg always works")
    needed, operands = (TMA_ALIGNMENT_BYTES, "abc") if config.loads == "tma" else (CP_ASYNC_MIN_BYTES, "ab")
    for operand in operands:
        if gemm.alignment_bytes(operand) < needed:
            size = gemm.pitch_bytes(operand)
            raise refused(
                f"leading dimension of {operand.upper()} = {size} B",
                f"a multiple of {needed} B with loads = {config.loads!r}",
            )


def _check_shape(config: KernelConfig, gemm: Gemm, gpu: Gpu) -> None:
    """Tile sides are whole instructions: wgmma m64 n8 k32 B, mma.sync m16 n8 k16 B, tcgen05 m64 n8 k32 B."""
    if config.mma == "fma":
        return
    if config.mma == "tcgen05":
        tensor_memory.check(config, gemm, gpu)
        return
    if (
        config.mma == "wgmma"
        and gemm.a_element_bytes != 2
        and not (gemm.k_is_contiguous("a") and gemm.k_is_contiguous("b"))
    ):
        raise refused(
            f"layout = {gemm.layout!r}", f"tn for wgmma with {gemm.dtype}: only 16-bit operands are transposed"
        )
    side_m, side_n = wgmma_tile(config) if config.mma == "wgmma" else (config.block_m, config.block_n)
    unit_m, unit_k = (64, 32) if config.mma == "wgmma" else (16, 16)
    k_bytes = config.block_k * gemm.a_element_bytes
    for what, value, unit in (("M side", side_m, unit_m), ("N side", side_n, 8), ("k bytes", k_bytes, unit_k)):
        if value % unit or not value:
            raise refused(f"{what} of a {config.mma} tile = {value}", f"a multiple of {unit} above 0")
    if config.mma == "wgmma" and (config.warps % 4 or config.warps < (8 if is_warp_specialised(config) else 4)):
        raise refused(f"warps = {config.warps}", "whole warpgroups of 4 for wgmma, one of them the producer with TMA")


def _check_cluster(config: KernelConfig, gpu: Gpu) -> None:
    if config.pair:
        along = "cluster_m" if config.mma_m_along == "m" else "cluster_n"
        if config.mma != "tcgen05":
            raise refused("pair = True", f"False with mma = {config.mma!r}: only tcgen05 spans two SMs")
        if getattr(config, along) % 2:
            raise refused(f"{along} = {getattr(config, along)}", "even with pair = True, along the M side")
    size = config.cluster_m * config.cluster_n
    if size == 1:
        return
    if not gpu.tensor.tma:
        raise refused(f"cluster = {config.cluster_m}x{config.cluster_n}", f"1x1 on {gpu.name}")
    most = min(MAX_CLUSTER, gpu.sm.sms_per_tpc * gpu.sm.tpcs_per_gpc)
    if size > most:
        raise _over(f"cluster = {config.cluster_m}x{config.cluster_n}", f"at most {most} CTAs")
    if config.loads != "tma":
        raise refused(
            f"cluster = {config.cluster_m}x{config.cluster_n}",
            f"1x1 with loads = {config.loads!r}: only TMA loads for several CTAs at once",
        )
    for name, block, cluster in (
        ("block_m", config.block_m, config.cluster_n),
        ("block_n", config.block_n, config.cluster_m),
    ):
        if block % cluster:
            raise refused(f"{name} = {block}", f"a multiple of {cluster}, the CTAs of a cluster that load it together")


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _over(what: str, bound: str) -> ConfigError:
    return ConfigError(f"{what}: {bound} (kernel configuration)")
