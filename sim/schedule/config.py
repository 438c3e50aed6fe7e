"""How a GEMM is cut: the kernel configuration, in terms of C[m, n] (block_m along m, block_n along n)."""

from __future__ import annotations

from dataclasses import dataclass

FAMILIES = ("multistage", "persistent", "split_k")


@dataclass(frozen=True)
class KernelConfig:
    """One kernel configuration. Sizes are elements; `stages` counts ring slots; `warps` all warps of a CTA.

    None in `n_ctas`, `registers_per_thread` or `smem_bytes` leaves it to `sim.schedule`: registers from accumulators
    and operands, shared memory from ring and staged output.
    """

    family: str
    """"multistage": one CTA an output tile, cp.async ring. "persistent": TMA producer, consumer warpgroups, static
    tile schedule over clusters. "split_k": either of them on slices of k, partial sums, then a reduction kernel."""
    block_m: int
    block_n: int
    block_k: int
    stages: int
    warps: int
    cluster_m: int = 1
    """CTAs of a cluster along m; they share (multicast) the B tile, which only loads by "tma" can."""
    cluster_n: int = 1
    """CTAs of a cluster along n; they share (multicast) the A tile."""
    raster: str = "m"
    """Direction in which consecutive tiles walk inside a band: "m" or "n"."""
    group: int = 1
    """Tiles (clusters) along `raster` in one band (Triton's GROUP_M with raster "m"; 1 = plain order)."""
    split_k: int = 1
    split_in_place: bool = False
    """Split-K only: slices add to C one after another (a memset of semaphores before), without a reduction kernel."""
    stream_k: bool = False
    """Persistent only, cooperative, fp32 sums: k-iterations of the last tiles are dealt out evenly among CTAs, cut
    within tiles, whose sums meet in L2 (stream-K, `sim.schedule.stream_k`)."""
    pingpong: bool = False
    """Persistent only: two consumer warpgroups alternate tiles (else both work on one tile: cooperative); with tcgen05,
    tensor memory holds two tiles' accumulators, so that one leaves while the next is worked on."""
    loads: str = "cp_async"
    """"cp_async" (16 B or less a thread), "tma" (bulk copies), "ldg" (through registers, before Ampere)
    or "direct" (into registers and no further, each warp its own slice of block_k: `sim.schedule.direct`)."""
    loop: str = "triton"
    """How a multistage main loop is written. "triton": copies are issued after the MMAs of an iteration, rows outside
    the matrix load others instead. "cutlass": copies are issued between the MMAs, rows outside are masked. "library":
    as "triton", but that memory sees a ring's copies together, as cutlass's: kernels of which names alone are known."""
    clamped: bool = False
    """TMA only: rows of A outside the matrix are loaded all the same, all of them from one row inside it."""
    load_bytes: int = 16
    """Bytes a thread loads at once, at most; less where rows are not aligned to it."""
    mma: str = "wgmma"
    """"tcgen05" (accumulators in tensor memory), "wgmma", "mma_sync" (also AMD's MFMA: a warp's instruction, operands
    in registers) or "fma" (CUDA cores)."""
    pair: bool = False
    """tcgen05 only: instructions span two CTAs of a cluster along the M side (2-SM MMA), each of which keeps half of
    the rows along N in its shared memory."""
    mma_k_bytes: int = 32
    """Bytes along k of one mma.sync instruction: 32 for m16n8k16 of 2-byte types, 16 for m16n8k8."""
    mma_m_along: str = "m"
    """The side of C that the instruction's M runs along; "n" where the kernel computes the transpose."""
    n_ctas: int | None = None
    """CTAs launched, where the name or the grid tells; else one a tile, or all slots for persistent kernels."""
    registers_per_thread: int | None = None
    spill_bytes_per_thread: int = 0
    smem_bytes: int | None = None
    """Shared memory of a CTA, where the compiler's figure is known."""
    name: str = ""
    """The real kernel name it was parsed from, if any."""
