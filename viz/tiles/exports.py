"""The best tiles for other tools: a list of `triton.Config`, arguments of `cutlass_profiler`.

Triton's names are those of its matmul tutorial. The profiler's arguments are those of its documentation ("GEMM
Arguments"). A tile that it would compute as the transpose (`mma_m_along` "n": wgmma's M along n) is asked of it as the
transposed product, C^T = B^T A^T, which is the same work on the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from hwmodels.errors import ConfigError
from sim.schedule.config import KernelConfig
from sim.schedule.launches import PLAIN
from sim.tile_rows import TileRow
from viz import files, levels, words
from workloads.gemm import Gemm

TRITON_LEAST_SIDE = 16
WGMMA_M = 64
STREAM_K = "; stream-K, where its scheduler decides on that (DecompositionMode)"
SWIZZLES = (8, 4, 2, 1)
CUTLASS_TYPES = {
    "fp64": "f64", "fp32": "f32", "tf32": "tf32", "fp16": "f16", "bf16": "bf16", "fp8_e4m3": "fe4m3",
    "fp8_e5m2": "fe5m2", "int8": "s8", "int32": "s32",
}  # fmt: skip
"""As in `NumericTypeID_enumerants` of CUTLASS's tools/library/src/util.cu."""


def write_export(target: str, gemm: Gemm, gpu_label: str, rows: Sequence[TileRow], path: str | os.PathLike[str]) -> int:
    """Write those of `rows`, in order, that `target` (a key of `TARGETS`) can express; returns how many it cannot.

    Raises `ConfigError` where it can express none of them, or the file cannot be written.
    """
    able, written, cure = TARGETS[target]
    kept = [each for each in rows if able(each.config, gemm)]
    if not kept:
        raise ConfigError(f"--export {target}: none of the best {len(rows):,} can be expressed; {cure} (command line)")
    about = f"{levels.work_title(gemm.describe())} ({levels.setting_text(gemm.describe())}) on {gpu_label}"
    with files.replacing(path) as temporary:
        temporary.write_text(written(gemm, about, kept), encoding="utf-8")
    return len(rows) - len(kept)


def _comment(each: TileRow) -> str:
    return f"# {each.name}: {words.time_text(each.time_s)} predicted, {words.flops_text(each.flops_per_s)}"


# Triton.
def _in_triton(config: KernelConfig, gemm: Gemm) -> bool:
    """Rings of cp.async (before Ampere, of plain loads) as Triton compiles them: sides are powers of two from 16 on."""
    sides = (config.block_m, config.block_n, config.block_k)
    fits = all(side >= TRITON_LEAST_SIDE and side & (side - 1) == 0 for side in sides)
    return config.family == "multistage" and config.loop == "triton" and config.loads != "direct" and fits


def _triton(gemm: Gemm, about: str, rows: Sequence[TileRow]) -> str:
    """A Python module with the list `CONFIGS`."""
    entries = "".join(f"    {_comment(each)}\n    {_triton_config(each.config)},\n" for each in rows)
    return f'"""{about}: the best first."""\n\nimport triton\n\nCONFIGS = [\n{entries}]\n'


def _triton_config(config: KernelConfig) -> str:
    sizes = {
        "BLOCK_SIZE_M": config.block_m,
        "BLOCK_SIZE_N": config.block_n,
        "BLOCK_SIZE_K": config.block_k,
        "GROUP_SIZE_M": config.group,
    }
    inside = ", ".join(f'"{name}": {size}' for name, size in sizes.items())
    return f"triton.Config({{{inside}}}, num_stages={config.stages}, num_warps={config.warps})"


# CUTLASS.
def _in_cutlass(config: KernelConfig, gemm: Gemm) -> bool:
    """Dense operands; warp-specialised kernels whose tile holds wgmma's 64 rows, or mma.sync and CUDA cores."""
    transposed = config.mma_m_along == "n"
    side = config.block_n if transposed else config.block_m
    specialised = config.loads == "tma" and side % WGMMA_M == 0
    return gemm.weights_format == "dense" and (specialised or config.mma in ("mma_sync", "fma"))


def _cutlass(gemm: Gemm, about: str, rows: Sequence[TileRow]) -> str:
    """One line of arguments for each, to be given to `cutlass_profiler`; comments begin with #."""
    lines = [f"# {about}", "# The product alone: what else its epilogue does is not asked for."]
    for each in rows:
        lines += [
            _comment(each) + STREAM_K * each.config.stream_k,
            " ".join(f"--{name}={value}" for name, value in _arguments(each.config, gemm).items()),
        ]
    return "\n".join(lines) + "\n"


def _arguments(config: KernelConfig, gemm: Gemm) -> dict[str, object]:
    turned = config.mma_m_along == "n"
    (m, n), (block_m, block_n), (cluster_m, cluster_n) = (
        pair[::-1] if turned else pair
        for pair in (
            (gemm.m, gemm.n),
            (config.block_m, config.block_n),
            (config.cluster_m, config.cluster_n),
        )
    )
    found: dict[str, object] = {
        "operation": "Gemm", "m": m, "n": n, "k": gemm.k, "batch_count": gemm.batch,
        **_tensors(gemm, turned), "accum": CUTLASS_TYPES[gemm.accumulator_dtype],
        "cta_m": block_m, "cta_n": block_n, "cta_k": config.block_k,
    }  # fmt: skip
    if config.split_k > 1:
        found |= {"split_k_mode": "parallel", "split_k_slices": config.split_k}
    if config.loads == "tma":
        schedule = "pingpong" if config.pingpong else "cooperative"
        found |= {"cluster_m": cluster_m, "cluster_n": cluster_n, **_order(config, turned)}
        return {**found, "kernels": f"*{'stream_k_' * config.stream_k}warpspecialized_{schedule}*"}
    unit = "simt" if config.mma == "fma" else "tensorop"
    return {**found, "stages": config.stages, "op_class": unit}


def _tensors(gemm: Gemm, turned: bool) -> dict[str, str]:
    """Types and layouts. The transpose of a row-major matrix is column-major."""
    rows = {"A": gemm.k_is_contiguous("a"), "B": not gemm.k_is_contiguous("b"), "C": True}  # is it row-major?
    if turned:
        rows = {"A": not rows["B"], "B": not rows["A"], "C": False}
    types = {"A": gemm.dtype, "B": gemm.dtype, "C": gemm.result_dtype}
    return {name: f"{CUTLASS_TYPES[types[name]]}:{'row' if is_row else 'column'}" for name, is_row in rows.items()}


def _order(config: KernelConfig, turned: bool) -> dict[str, object]:
    """CUTLASS walks `swizzle_size` tiles along one side, then along the other, which `raster_order` names."""
    across = {"m": "n", "n": "m"}
    walked = across[config.raster] if turned else config.raster
    if config.group >= PLAIN:
        return {"raster_order": walked.upper(), "swizzle_size": 1}
    swizzle = next(size for size in SWIZZLES if size <= config.group)
    return {"raster_order": across[walked].upper(), "swizzle_size": swizzle}


Able = Callable[[KernelConfig, Gemm], bool]
Written = Callable[[Gemm, str, Sequence[TileRow]], str]
TARGETS: dict[str, tuple[Able, Written, str]] = {
    "triton": (_in_triton, _triton, "--family multistage has what Triton compiles"),
    "cutlass": (
        _in_cutlass,
        _cutlass,
        "it takes dense operands, and of warp-specialised tiles those with whole 64 rows: try a larger --top",
    ),
}
"""Target -> what it can express, the text of a file, and what to do where it can express none."""
