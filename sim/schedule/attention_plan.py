"""From an attention kernel to the integers that the engine replays.

An item is one query block of one head. Its k-iterations are K and V of one block of keys in turn, the last block first,
as FlashAttention-2 walks; Q comes with the first of them, O is stored at the end. K and V lie once for all heads of a
group. Backward, an item is a block of keys, and its k-iterations are Q and dO of the query blocks that see it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt

from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.machine import place
from sim.records import Work
from sim.schedule.attention import AttentionKernel
from sim.schedule.config import KernelConfig
from sim.schedule.plan import SWITCHES, Plan, hbm_latency_fs, sectors_per_piece, spare_mhz
from sim.schedule.raster import steps
from sim.schedule.resources import Occupancy, cta_limits, flops_per_clk_per_sm
from workloads.attention import MATMULS, Attention

STEPS = 2
"""k-iterations of a block: K and V, or Q and dO."""
ACCUMULATOR_BYTES = 4
TABLE_BYTES = 4
"""Of a page's entry in the block table."""
FAR = 2**30
"""Keys further away than any other."""
LAST_PASSES = 2
"""Over the output of a warp-specialised kernel's item: scaled by its sum, and converted."""


def _is_backward(kernel: AttentionKernel) -> bool:
    return kernel.family == "flash_backward"


def _blocks(kernel: AttentionKernel, work: Attention) -> tuple[int, int, int, int]:
    """(items of a head, their rows; blocks walked through, their rows)."""
    q, kv = (-(-kernel.rows // kernel.block_q), kernel.block_q), (-(-work.kv_len // kernel.block_kv), kernel.block_kv)
    return (*kv, *q) if _is_backward(kernel) else (*q, *kv)


def see(kernel: AttentionKernel, work: Attention) -> dict[str, int]:
    """Which blocks the rows of items see, as `sim.records.Work` says; none of the fields where they see all."""
    ahead, window = work.kv_len - work.q_len, work.window or FAR
    if not work.causal and work.window is None:
        return {}
    if _is_backward(kernel):
        return {
            "see_block": kernel.block_q,
            "see_keys": work.q_len,
            "see_last": kernel.block_kv + window - 1 - ahead if work.causal else FAR,
            "see_first": -ahead if work.causal else -FAR,
            "see_step": kernel.block_kv if work.causal else 0,
        }
    if kernel.rows != work.q_len or not work.causal:  # packed heads are one query's; without a mask, all see the last
        return {
            "see_block": kernel.block_kv,
            "see_keys": work.kv_len,
            "see_last": work.kv_len,
            "see_first": work.kv_len - window,
            "see_step": 0,
        }
    return {
        "see_block": kernel.block_kv,
        "see_keys": work.kv_len,
        "see_last": kernel.block_q + ahead,
        "see_first": ahead + 1 - window,
        "see_step": kernel.block_q,
    }


def steps_seen(work: Work) -> npt.NDArray[np.int64]:
    """k-iterations of every item of one matrix of the batch, [splits, grid_m], as the engine counts them."""
    return steps(work)[1]


def _config(kernel: AttentionKernel) -> KernelConfig:
    return KernelConfig(
        kernel.family,
        *(kernel.block_q, kernel.block_kv, kernel.width, kernel.stages, kernel.warps),
        split_k=kernel.splits,
        loads="tma" if kernel.persistent else "cp_async",
        mma=kernel.mma,
        registers_per_thread=kernel.registers,
        smem_bytes=kernel.smem_bytes,
        name=kernel.name,
    )


def _occupancy(kernel: AttentionKernel, gpu: Gpu) -> Occupancy:
    """What an SM holds of the kernel. Raises ConfigError where it does not fit."""
    most = int(gpu.smem.max_kib_per_cta * 1024)
    limits = cta_limits(_config(kernel), gpu, kernel.smem_bytes, kernel.registers)
    limit = min(limits, key=limits.__getitem__)
    if kernel.smem_bytes > most or limits[limit] < 1:
        raise ConfigError(
            f"shared memory of {kernel.name} with head_dim {kernel.width} = {kernel.smem_bytes} B: "
            f"must be at most {most} on {gpu.name}"
        )
    ctas = 1 if kernel.persistent else limits[limit]
    return Occupancy(ctas, ctas * kernel.warps, limit, kernel.registers, 0, kernel.smem_bytes)


def mma_cycles(kernel: AttentionKernel, work: Attention, gpu: Gpu) -> float:
    """Tensor-core cycles of one block of scores: all its products."""
    flops = 2 * MATMULS[work.phase] * kernel.block_q * kernel.block_kv * kernel.width
    fraction = gpu.tensor.mma_sync_fraction if kernel.mma == "mma_sync" else 1.0
    rate = flops_per_clk_per_sm(kernel.mma, work.dtype, gpu) * fraction
    if rate <= 0:
        raise ConfigError(f"dtype = {work.dtype!r}: the tensor cores of {gpu.name} do not take it (attention)")
    return flops / rate


def beside_cycles(kernel: AttentionKernel, work: Attention, gpu: Gpu) -> float:
    """Cycles of a block of scores in which an SM's tensor cores wait for softmax and what goes with it.

    Warps that issue mma.sync issue the rest too. Two warpgroups with wgmma alternate: one works out its scores, by
    itself at half an SM's rate, while the other's half of the products runs.
    """
    cycles = softmax_cycles(kernel, gpu) + convert_cycles(kernel, work, gpu)
    if kernel.mma == "wgmma":
        return max(0.0, cycles - kernel.overlap * mma_cycles(kernel, work, gpu))
    return cycles


def softmax_cycles(kernel: AttentionKernel, gpu: Gpu) -> float:
    """Cycles of an SM's warps for a block of scores: softmax, and rescaling the output."""
    a = gpu.attention
    weight = a.backward_score_weight if _is_backward(kernel) else 1.0
    scores = weight * a.score_cycles * kernel.block_q * kernel.block_kv
    return scores + a.output_cycles * kernel.block_q * kernel.width


def convert_cycles(kernel: AttentionKernel, work: Attention, gpu: Gpu) -> float:
    """Cycles of an SM's schedulers in which keys and values of one byte become 16-bit operands. Warps of mma.sync lie
    along the rows, so that each converts all of a block; FlashAttention-3 multiplies fp8 as it is."""
    if work.kv_element_bytes != 1 or work.element_bytes == 1 or kernel.family == "flash3":
        return 0.0
    form = "int8" if work.kv_dtype == "int8" else "fp8"
    each = float(getattr(gpu.cuda_core, f"convert_{form}_instructions"))
    copies = min(kernel.warps, kernel.block_q // 16) if kernel.mma == "mma_sync" else 1
    values = STEPS * kernel.block_kv * work.head_dim
    return copies * values * each / (gpu.sm.schedulers * gpu.sm.warp_size)


def longest_part(kernel: AttentionKernel, work: Attention, gpu: Gpu) -> str:
    """What the warps that multiply spend a block's time on: "tensor" where products take most of it, else the longer of
    "softmax" and "conversion"."""
    if beside_cycles(kernel, work, gpu) <= mma_cycles(kernel, work, gpu):
        return "tensor"
    return "softmax" if softmax_cycles(kernel, gpu) > convert_cycles(kernel, work, gpu) else "conversion"


def _masked_blocks(kernel: AttentionKernel, work: Attention) -> int:
    """Blocks of keys of an item whose scores are masked one by one: FlashAttention-2 compares all of them with a window
    (Need_masking in mask.h; attention_window.csv: 1.15 times a causal kernel's time for a pair), otherwise those at the
    edges (n_masking_steps in flash_fwd_kernel.h)."""
    if work.window is not None and kernel.family in ("flash", "flash_split"):
        return -(-work.kv_len // kernel.block_kv)
    if _is_backward(kernel) or work.q_len == 1 or not work.causal:
        return 0
    even = work.kv_len % kernel.block_kv == 0 and work.q_len % kernel.block_q == 0
    return -(-kernel.block_q // kernel.block_kv) + (0 if even else 1)


def _smem_bytes(kernel: AttentionKernel, work: Attention) -> float:
    """Bytes that a block's products read of shared memory: each warp of mma.sync its rows and all columns, wgmma
    both operands for 64 rows; backward, as its 8 warps lie over each product (flash_bwd_launch_template.h)."""
    if _is_backward(kernel):
        along, across = (4, 2) if kernel.block_q >= kernel.block_kv else (2, 4)
        scores, q, kv = (
            kernel.block_q * kernel.block_kv,
            kernel.block_q * kernel.width,
            kernel.block_kv * kernel.width,
        )
        of_scores, of_dkv, of_dq = q * across + kv * along, 2 * scores + 4 * q, scores * across + kv * along
        return float(2 * of_scores + 2 * of_dkv + of_dq) * work.element_bytes
    readers = min(kernel.warps, kernel.block_q // 16) if kernel.mma == "mma_sync" else kernel.block_q // 64
    columns = readers * kernel.block_kv * kernel.width * work.element_bytes
    return MATMULS[work.phase] * (columns + kernel.block_q * kernel.width * work.element_bytes / 2)


def _operands(kernel: AttentionKernel, work: Attention, gpu: Gpu, without: Collection[str]) -> dict[str, int]:
    """Bytes of chunks at every level: A comes once an item, B with every k-iteration."""
    _, block, n_walked, walked = _blocks(kernel, work)
    extent = work.q_len if _is_backward(kernel) else work.kv_len
    once, size = (
        (2 * work.kv_element_bytes, work.element_bytes)
        if _is_backward(kernel)
        else (
            work.element_bytes,
            work.kv_element_bytes,
        )
    )
    row = float(work.head_dim * size)
    if work.page is not None and not _is_backward(kernel):
        piece = min(work.page, walked) * row
        row = row * sectors_per_piece(piece, round(work.page * row), gpu.l2.sector_bytes) / piece
        row += TABLE_BYTES / work.page
    return {
        "a_l2_bytes": 256 * work.head_dim * once,
        "a_dram_bytes": 256 * work.head_dim * once,
        "b_l2_bytes": round(256 * row),
        "b_dram_bytes": max(1, round(256 * row * extent / (n_walked * walked))),
        "a_sm_bytes": block * work.head_dim * once,
        "b_sm_bytes": round(walked * row),
        "a_split_x256": 0,
        "b_split_x256": 0,
        "a_hbm_fs": hbm_latency_fs(gpu, block * work.head_dim * once, without),
        "b_hbm_fs": hbm_latency_fs(gpu, walked * row, without),
        "last_k_x256": round(256 * (extent - (n_walked - 1) * walked) / walked),
        "hbm_x256": round(256 * (1 + gpu.hbm.row_open_bytes / (min(work.page or FAR, walked) * row))),
    }


def _cycles(kernel: AttentionKernel, work: Attention, gpu: Gpu) -> dict[str, int]:
    """What starts, steps and ends take."""
    a, beside, mma = gpu.attention, beside_cycles(kernel, work, gpu), mma_cycles(kernel, work, gpu)
    _, block, _, walked = _blocks(kernel, work)
    fill = walked * work.head_dim * work.kv_element_bytes / gpu.smem.bytes_per_clk
    smem = _smem_bytes(kernel, work)
    return {
        "mma_x16": max(1, round(16 * mma / STEPS)),
        "beside_x16": round(16 * beside / STEPS),
        "masked_x16": round(16 * a.score_cycles * kernel.block_q * kernel.block_kv / STEPS),
        "n_masked": STEPS * _masked_blocks(kernel, work),
        "mma_smem_x16": round(16 * smem / STEPS / gpu.smem.bytes_per_clk),
        "fill_smem_x16": 0 if kernel.persistent else round(16 * fill),
        "epi_smem_x16": round(16 * 2 * block * work.head_dim * work.element_bytes / gpu.smem.bytes_per_clk),
        "smem_bytes_per_mma": round(smem / STEPS),
        "spill_bytes": kernel.block_q * work.head_dim * ACCUMULATOR_BYTES // STEPS if _is_backward(kernel) else 0,
        "spill_read_bytes": 0,
        "floor_x16": 0,
        "turn_x256": 0,
        "issue_cycles": 0,
        "reorder_x256": round(256 * gpu.persistent.reorder_fraction / 2) if kernel.one_chunk else 0,
        "fill_cycles": round(gpu.persistent.iteration_cycles) if kernel.persistent else 0,
        "fused_cycles": 0,
        "merge_cycles": round(gpu.coalescing.window_cycles),
        "scatter_cycles": round(gpu.l2.jitter_cycles),
        **_latencies(kernel, gpu),
    }


def _latencies(kernel: AttentionKernel, gpu: Gpu) -> dict[str, int]:
    """What one CTA waits for and others on its SM do not."""
    if kernel.persistent:
        p = gpu.persistent
        return {
            "start_cycles": round(p.start_cycles),
            "restart_cycles": 0,
            "barrier_cycles": 0,
            "drain_cycles": 0,
            "latency_cycles": round(p.load_cycles),
            "epilogue_cycles": round(LAST_PASSES * gpu.attention.output_cycles * kernel.block_q * kernel.width),
            "end_cycles": round(p.epilogue_cycles),
        }
    f, a, is_flash = gpu.multistage, gpu.attention, kernel.family.startswith("flash")
    start = f.cta_start_cycles + (a.start_cycles if is_flash else a.decode_start_cycles)
    wait = a.wait_cycles * kernel.block_q * kernel.block_kv / STEPS if is_flash else 0.0
    return {
        "start_cycles": round(start),
        "restart_cycles": round(gpu.kernel.turnround_cycles + start),
        "barrier_cycles": round(f.barrier_cycles),
        "drain_cycles": round(f.drain_cycles + wait),
        "latency_cycles": round(f.load_cycles),
        "epilogue_cycles": round(f.epilogue_cycles),
        "end_cycles": 0,
    }


def _stored(kernel: AttentionKernel, work: Attention, gpu: Gpu) -> dict[str, int]:
    """One row of what an item stores: of O, of a partial sum and its logarithm, or of dK and dV."""
    size = ACCUMULATOR_BYTES if kernel.splits > 1 else work.element_bytes
    row = work.head_dim * size * (2 if _is_backward(kernel) else 1)
    return {
        "c_l2_bytes": 256 * row,
        "c_cost_x256": 256,
        "c_weight_x256": round(256 * gpu.l2.write_weight * (gpu.persistent.store_weight if kernel.persistent else 1)),
        "c_read_bytes": 0,
    }


def _shape(kernel: AttentionKernel, work: Attention) -> dict[str, int]:
    """Items, k-iterations and how chunks are numbered: Q, then K and V in turn, then O."""
    grid, block, n_walked, walked = _blocks(kernel, work)
    matrices, n_k = work.batch * kernel.heads, STEPS * n_walked
    share = 1 if _is_backward(kernel) else kernel.group(work)
    per_split = STEPS * -(-n_walked // kernel.splits)
    splits = -(-n_k // per_split)
    first_b = matrices * grid
    first_c = first_b + matrices // share * n_k
    return {
        "n_items": matrices * grid * splits,
        "grid_m": grid,
        "grid_n": 1,
        "splits": splits,
        "n_k": n_k,
        "k_per_split": per_split,
        "first_b": first_b,
        "first_c": first_c,
        "n_chunks": first_c + matrices * grid * splits,
        "rows_a": work.kv_len if _is_backward(kernel) else kernel.rows,
        "rows_b": walked,
        "batch": matrices,
        "block_m": block,
        "block_n": walked,
        "b_share": share,
        "n_short": STEPS,
        "a_once": 1,
    }


def build_attention_plan(kernel: AttentionKernel, work: Attention, gpu: Gpu, without: Collection[str] = ()) -> Plan:
    """Schedule `work` as `kernel` on `gpu`; `without` names mechanisms switched off. Raises ConfigError where the
    kernel does not fit."""
    fit, shape = _occupancy(kernel, gpu), _shape(kernel, work)
    placement = place(gpu, fit.ctas_per_sm, 1, shape["n_items"])
    agents = min(len(placement.sm), shape["n_items"])
    values: dict[str, Any] = {
        **_operands(kernel, work, gpu, without),
        **_cycles(kernel, work, gpu),
        **_stored(kernel, work, gpu),
        **see(kernel, work),
        **shape,
    }
    for mechanism in without:
        values |= SWITCHES.get(mechanism, {})
    integers = Work(
        n_agents=agents,
        cluster_size=1,
        spare_mhz=spare_mhz(gpu, agents),
        exclusive=int(kernel.persistent),
        persistent=int(kernel.persistent),
        static=0,
        pingpong=0,
        cluster_m=1,
        cluster_n=1,
        raster_n=0,
        group=1,
        stages=kernel.stages,
        depth=1 if kernel.one_chunk else kernel.stages,
        ahead=int(kernel.one_chunk),
        wrap=0,
        sample_items=0,
        **values,
    )
    n_steps = int(steps_seen(integers).sum()) * integers.batch
    flops = MATMULS[work.phase] * kernel.block_q * kernel.block_kv * kernel.width  # of a k-iteration, of two
    return Plan(_config(kernel), integers, placement, fit, len(placement.sm), flops * n_steps)
