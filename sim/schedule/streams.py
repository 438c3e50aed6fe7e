"""The kernels that an operation on [rows, width] launches: grid, what a CTA waits for, what it costs its SM.

Kernels are those of eager PyTorch, as grids and names in the H200's tables show them: `vectorized_elementwise_kernel`,
`elementwise_kernel` where elements are taken one by one (strided slices, transposes, broadcasts, changes of type),
`softmax_warp_forward` up to 2,048 wide and `cunn_SoftMaxForward*` beyond, `vectorized_layer_norm_kernel`, gathers,
`multi_tensor_apply_kernel` for AdamW, a device-to-device copy.

No table holds what inference engines fuse ("silu_mul", "gelu_mul", "add_rms_norm", "add_layer_norm", "rope",
"quantize"), "argmax", and what has no other case. They follow from the same kernels with more operands: a vectorised
kernel for products, rope and what has no other case; for a sum with a norm and for quantisation (largest magnitude of a
row, then scaling) the norm's, with larger CTAs and loads of 16 bytes. These are written for the slices that they read,
and take vectors of them. Two that torch.compile wrote for shapes of elementwise_warm.csv took 1.1 to 2.7 times as long:
it is a good hand-written kernel that is modelled.

Not modelled: warps of 64 threads (AMD): kernels are cut as for 32, and fewer of their warps fit an SM.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hwmodels.spec import Gpu, Streaming
from workloads.stream import OPS, Stream

WARP, VECTOR_THREADS, VECTOR_ELEMENTS, STRIDED_ELEMENTS = 32, 128, 1024, 512
STRIDED_TRIPS = 4
"""`elementwise_kernel` takes four elements a thread, in turn: a store may alias the next load."""
WARP_SOFTMAX_WIDTH, WARP_SOFTMAX_ROWS, TWO_ROW_WIDTH, CROWDED_LOADS = 2048, 4, 128, 32
BLOCK_THREADS, REGISTER_ELEMENTS, CROWDED_ELEMENTS = 1024, 9, 8
"""cunn_SoftMaxForwardReg keeps up to nine elements a thread; from eight on one CTA takes more than half an SM."""
SMEM_SOFTMAX_BYTES, SOFTMAX_SMEM_BYTES, VECTOR_BYTES = 48 * 1024, 128, 16
NORM_THREADS, NORM_VECTOR, REDUCTION_STEPS, STEP_ELEMENTS = 128, 4, 7, 2
"""A thread of the norm's kernel takes four elements at a time; 5 shuffles and 2 rounds through shared memory combine
mean, variance and count of 128 threads, each step as dear as two elements."""
NORM_UNROLL, UNROLLED_BYTES = 4, 4
"""The loop over a row's sum of squares is unrolled where elements need no conversion, so that its loads overlap."""
FUSED_THREADS = 512
"""At most, of the norms that compilers and inference engines fuse, whose threads take 16 bytes at a time: a row that
is done in one round of fewer gets fewer, in whole warps."""
FUSED = ("chain", "rope", "silu_mul", "gelu_mul", "relu_mul")
"""Elementwise kernels that compilers and inference engines write for the slices they read (vLLM's silu_and_mul takes
16 bytes of either half at a time): they take elements one by one only where slices do not begin at such vectors."""
SMALL_GATHER_ROWS, GATHER_BYTES = 16, 256 * 16
CHUNK_ELEMENTS, CHUNKS, ADAMW_THREADS, ADAMW_VECTOR = 65536, 320, 512, 4
COPY_BYTES = 4 * 16 * VECTOR_THREADS
"""Of a CTA of a device-to-device copy, whose grid the profiler does not tell."""
DERIVATIVE = 2
"""Instructions of an activation's derivative over its own, as their FLOPs (workloads.stream.OPS)."""
SECTOR_BYTES = 32
BLOCK_PARTIES = 2
COLUMNS, COLUMN_ROWS = 64, 256
FOLDED_VECTOR, FOLDED_REGISTERS = 4, 64
"""Results of a thread of reduce_kernel, and its registers: not read, but chosen by the four sums over query heads of
llama3-8b in training_kernels.csv, the only ones measured."""


@dataclass(frozen=True)
class StreamKernel:
    """One launch. Bytes are of the whole grid, cycles and trips of one CTA alone on its SM."""

    name: str
    n_ctas: int
    threads: int
    registers: int
    read_bytes: float
    """Of the operation's data, once."""
    write_bytes: float
    flops: int = 0
    trips: float = 1.0
    """Round trips to where the data lies, one after another."""
    l2_trips: float = 0.0
    """To L2, for what was read before."""
    l1_trips: float = 0.0
    """The same of what the CTA itself read before, and L1 holds as long as there is room."""
    vector_trips: float = 0.0
    """To where the vectors lie that all CTAs share."""
    cycles: float = 0.0
    """Instructions between them."""
    issue_cycles: float = 0.0
    """Of the SM's schedulers: what one CTA takes from the others."""
    parties: int = 1
    """Groups of its warps that go on by themselves; warps of one take turns and wait alike."""
    barrier: bool = False
    """Whether all of it is read before any of it is written: CTAs that start together go from pass to pass in step."""
    smem_bytes: int = 0
    vector_bytes: float = 0.0
    """Of vectors that all CTAs share, and of indices; L1 serves what is read of them again."""
    rereads: float = 0.0
    """Times the data is read again by the same CTA."""
    sector_bytes: float = 0.0
    """Read from L2, where that is more than `read_bytes`."""
    request_bytes: float = 0.0
    """L2 time of these reads, in bytes of whole lines, where they are no whole lines."""
    hbm_weight: float = 1.0
    """HBM time of a byte read, one of a long read being 1."""
    long_code: bool = False
    """Whether it takes many instructions to unroll: addresses from element numbers, divisions."""
    feeds_next: bool = False
    """Whether the next launch reads what this one writes."""

    @property
    def l2_read_bytes(self) -> float:
        """Of the operation's data, from L2 to the SMs, rereads apart."""
        return self.sector_bytes or self.read_bytes


def stream_launches(work: Stream, gpu: Gpu) -> tuple[StreamKernel, ...]:
    """The launches of `work`, in order."""
    if work.op == "adamw":
        return _adamw(work, gpu.streaming)
    if work.op in ("softmax", "log_softmax"):
        return _softmax_call(work, gpu.streaming)
    return (_single(work, gpu),)


def _single(work: Stream, gpu: Gpu) -> StreamKernel:
    s = gpu.streaming
    if work.op in ("layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm", "quantize"):
        return _norm(work, s)
    if work.op == "embedding":
        return _gather(work, s)
    if work.op == "argmax":
        return _pick(work, s)
    if work.op == "transpose":
        return _transpose(work, s, gpu.multistage.l1_line_cycles)
    if work.op == "cast" or (work.op == "bias" and work.rows > 1) or _is_strided(work):
        return _strided(work, s)
    if work.op == "copy":
        return _copy(work)
    if work.op in ("layer_norm_backward", "rms_norm_backward"):
        return _norm_backward(work, s)
    if work.op == "reduce":
        return _columns(work, s) if work.rows == 1 else _folded(work, s)
    return _vectorised(work, s)


def _is_strided(work: Stream) -> bool:
    """One row of a slice is contiguous, except where it is written into the many rows of a cache."""
    in_vectors = work.op in FUSED and work.width * work.element_bytes % VECTOR_BYTES == 0
    return work.strided and not in_vectors and (work.rows > 1 or work.op == "copy")


def _copy(work: Stream) -> StreamKernel:
    n_ctas = _ceil(work.elements * work.element_bytes, COPY_BYTES)
    return replace(_bare("memcpy", work, n_ctas, VECTOR_THREADS), trips=1)


def _bare(name: str, work: Stream, n_ctas: int, threads: int, registers: int = 32) -> StreamKernel:
    op = OPS[work.op]
    data = work.n_inputs * work.fan_in * work.elements * work.element_bytes
    beside = op.row_bytes * work.rows
    reads, writes = (0, beside) if work.op in ("quantize", "argmax") else (beside, 0)
    return StreamKernel(
        name,
        n_ctas,
        threads,
        registers,
        read_bytes=data,
        write_bytes=work.write_bytes + writes,
        flops=work.flops,
        trips=float(work.n_inputs > 0),
        vector_bytes=op.vectors * work.width * work.element_bytes + reads,
    )


def _vectorised(work: Stream, s: Streaming) -> StreamKernel:
    n_ctas = _ceil(work.elements, VECTOR_ELEMENTS)
    per_thread = VECTOR_ELEMENTS // VECTOR_THREADS
    cycles, issue = _arithmetic(work, s)
    return replace(
        _bare("vectorized_elementwise", work, n_ctas, VECTOR_THREADS),
        cycles=cycles * per_thread + s.strided_thread_cycles * (work.op == "concat"),
        issue_cycles=issue * min(work.elements, VECTOR_ELEMENTS),
        long_code=issue > 0.0,
    )


def _arithmetic(work: Stream, s: Streaming) -> tuple[float, float]:
    """(cycles an element of a thread takes, cycles of the SM it takes)."""
    links = [_link(op, s) for op in work.chain or (work.op,)]
    return math.fsum(thread for thread, _ in links), math.fsum(issue for _, issue in links)


def _link(op: str, s: Streaming) -> tuple[float, float]:
    times = DERIVATIVE if op.endswith("_backward") else 1
    if op in ("silu", "silu_mul", "silu_backward"):
        return times * s.silu_thread_cycles, times * s.silu_issue_cycles
    if op in ("gelu", "gelu_mul", "gelu_backward"):
        return times * s.gelu_thread_cycles, times * s.gelu_issue_cycles
    return 0.0, 0.0


def _strided(work: Stream, s: Streaming) -> StreamKernel:
    n_ctas = _ceil(work.elements, STRIDED_ELEMENTS)
    return replace(
        _bare("elementwise", work, n_ctas, VECTOR_THREADS, 20),
        trips=STRIDED_TRIPS,
        long_code=True,
        cycles=(s.strided_thread_cycles + _arithmetic(work, s)[0]) * STRIDED_ELEMENTS / VECTOR_THREADS,
        issue_cycles=s.strided_issue_cycles * min(work.elements, STRIDED_ELEMENTS),
    )


def _transpose(work: Stream, s: Streaming, line_cycles: float) -> StreamKernel:
    """Neighbouring threads read down a column: every element asks L1 for a line and, unless the CTA took another column
    of it before, L2 for a sector, of which it delivers fewer than of whole lines."""
    kernel = _strided(work, s)
    columns = STRIDED_ELEMENTS / min(work.rows, STRIDED_ELEMENTS)
    sectors = work.elements / columns * _ceil(columns, SECTOR_BYTES / work.element_bytes)
    new = min(STRIDED_TRIPS, _ceil(work.rows, VECTOR_THREADS))
    return replace(
        kernel,
        trips=new,
        l2_trips=STRIDED_TRIPS - new,
        sector_bytes=sectors * SECTOR_BYTES,
        request_bytes=sectors * s.sector_request_bytes,
        issue_cycles=kernel.issue_cycles + line_cycles * min(work.elements, STRIDED_ELEMENTS),
    )


def _norm(work: Stream, s: Streaming) -> StreamKernel:
    """One row a CTA: statistics in a first pass, combined over the block, the result in a second. Running mean and
    variance take a chain of instructions an element and as much for each step that combines them, a sum nothing that
    shows beside the round trips. The second pass reads one tensor again: the row, or the sum that was written."""
    layer = work.op.endswith("layer_norm")
    threads, vector = _norm_block(work)
    vectors, steps = _ceil(work.width, threads * vector), REDUCTION_STEPS * STEP_ELEMENTS * layer
    chain = s.layer_norm_thread_cycles * (vectors * vector + steps) if layer else 0.0
    issue = s.layer_norm_issue_cycles if layer else s.rms_norm_issue_cycles
    return replace(
        _bare("layer_norm" if layer else "rms_norm", work, work.rows, threads),
        trips=vectors if layer or work.element_bytes < UNROLLED_BYTES else _ceil(vectors, NORM_UNROLL),
        vector_trips=vectors,
        cycles=chain + s.reduction_cycles,
        issue_cycles=issue * (work.width + steps * threads),
        rereads=1.0 / OPS[work.op].inputs,
        barrier=True,
        smem_bytes=24,
    )


def _norm_backward(work: Stream, s: Streaming) -> StreamKernel:
    """One row a CTA, like the norm: after the row's statistics a first pass over gradient, input and weights, of which
    two sums go into the second."""
    vectors = _ceil(work.width, NORM_THREADS * NORM_VECTOR)
    return replace(
        _bare(work.op, work, work.rows, NORM_THREADS),
        trips=1 + vectors,
        l2_trips=vectors,
        cycles=s.reduction_cycles,
        issue_cycles=2 * s.rms_norm_issue_cycles * work.width,
        rereads=1.0,
        barrier=True,
        smem_bytes=24,
    )


def _columns(work: Stream, s: Streaming) -> StreamKernel:
    """Sums over rows (GammaBetaBackward): a CTA of 32 x 32 threads takes 64 columns (32 of two tensors) and walks down
    256 rows at a time, for which it first reads the rows' statistics."""
    kernel = _bare("column_sums", work, _ceil(work.width, COLUMNS), BLOCK_THREADS)
    return replace(
        kernel,
        trips=2.0 * _ceil(work.fan_in, COLUMN_ROWS),
        issue_cycles=s.column_issue_cycles * work.fan_in * min(work.width, COLUMNS),
        parties=BLOCK_THREADS // WARP,
    )


def _folded(work: Stream, s: Streaming) -> StreamKernel:
    """Sums of a few elements that lie apart (reduce_kernel): four results a thread, one element of each at a time."""
    return replace(
        _bare("reduce", work, _ceil(work.elements, STRIDED_ELEMENTS), VECTOR_THREADS, FOLDED_REGISTERS),
        trips=work.fan_in,
        cycles=s.strided_thread_cycles * work.fan_in,
        issue_cycles=s.strided_issue_cycles * work.fan_in * min(work.elements, STRIDED_ELEMENTS) / FOLDED_VECTOR,
        long_code=True,
    )


def _norm_block(work: Stream) -> tuple[int, int]:
    """(threads of a CTA, elements that one takes at a time)."""
    if work.op in ("layer_norm", "rms_norm"):
        return NORM_THREADS, NORM_VECTOR
    vector = VECTOR_BYTES // work.element_bytes
    return min(FUSED_THREADS, WARP * _ceil(work.width, WARP * vector)), vector


def _softmax_call(work: Stream, s: Streaming) -> tuple[StreamKernel, ...]:
    """PyTorch converts first where the result has another type."""
    if work.out_dtype in (None, work.dtype):
        return (_softmax(work, s),)
    cast = replace(work, op="cast", strided=False)
    return replace(_strided(cast, s), feeds_next=True), _softmax(
        replace(work, dtype=str(work.out_dtype), out_dtype=None), s
    )


def _softmax(work: Stream, s: Streaming) -> StreamKernel:
    if work.width <= WARP_SOFTMAX_WIDTH:
        return _warp_softmax(work, s)
    if _ceil(work.width, BLOCK_THREADS) <= REGISTER_ELEMENTS:
        return _register_softmax(work, s)
    n_bytes = work.width * work.element_bytes
    passes = _ceil(n_bytes, BLOCK_THREADS * VECTOR_BYTES)
    if n_bytes + SOFTMAX_SMEM_BYTES <= SMEM_SOFTMAX_BYTES:
        kernel = _block_softmax("softmax_smem", work, s, s.softmax_cycles)
        return replace(kernel, trips=passes, smem_bytes=SOFTMAX_SMEM_BYTES + n_bytes)
    kernel = _block_softmax("softmax_block", work, s, s.softmax_reread_fraction * s.softmax_cycles)
    full, rest = divmod(n_bytes, BLOCK_THREADS * VECTOR_BYTES)
    passes = full + _ceil(rest, BLOCK_THREADS * work.element_bytes)  # what fills no vectors of all threads, one by one
    return replace(kernel, trips=passes, l1_trips=2.0 * passes, rereads=2.0, barrier=True)


def _register_softmax(work: Stream, s: Streaming) -> StreamKernel:
    kernel = _block_softmax("softmax_registers", work, s, s.softmax_scalar_cycles)
    crowded = _ceil(work.width, BLOCK_THREADS) >= CROWDED_ELEMENTS
    return replace(kernel, registers=40 if crowded else 32)


def _block_softmax(name: str, work: Stream, s: Streaming, element_cycles: float) -> StreamKernel:
    """A CTA of 1,024 threads a row: largest, sum, result. It fills the schedulers by itself. The exponential is taken
    for the sum and, where no logarithm is asked for, again for the result, before a division."""
    specials = 3 if work.op == "softmax" else 1
    issue = (specials * s.special_cycles + element_cycles) * work.width
    return replace(
        _bare(name, work, work.rows, BLOCK_THREADS),
        smem_bytes=SOFTMAX_SMEM_BYTES,
        cycles=2 * s.reduction_cycles + issue,
        issue_cycles=issue,
        parties=BLOCK_PARTIES,
    )


def _warp_softmax(work: Stream, s: Streaming) -> StreamKernel:
    """A warp a row, four a CTA (two rows a warp up to 128 wide), elements in registers."""
    padded = 2 ** max(0, math.ceil(math.log2(work.width)))
    per_lane = max(1, padded // WARP)
    rows = WARP_SOFTMAX_ROWS * (2 if padded <= TWO_ROW_WIDTH else 1)
    specials, chain = (2, 1.0) if work.op == "softmax" else (1, s.softmax_exponential_fraction)
    crowded = per_lane > CROWDED_LOADS
    registers = (128 if work.op == "log_softmax" else 80) if crowded else 48
    return replace(
        _bare("softmax_warp", work, _ceil(work.rows, rows), VECTOR_THREADS, registers),
        trips=1.0 if work.element_bytes >= UNROLLED_BYTES else max(1.0, s.softmax_trip_fraction * per_lane),
        cycles=s.softmax_thread_cycles * chain * per_lane,
        issue_cycles=(specials * s.special_cycles + s.softmax_cycles) * padded * min(rows, work.rows),
    )


def _gather(work: Stream, s: Streaming) -> StreamKernel:
    """Up to 16 rows each CTA copies its piece of all rows in turn, index by index; beyond, a CTA copies 4 KiB."""
    row_bytes = work.width * work.element_bytes
    if work.rows <= SMALL_GATHER_ROWS:
        kernel = _bare("index_select_small", work, _ceil(work.width, VECTOR_THREADS), VECTOR_THREADS)
        return replace(kernel, trips=work.rows, l2_trips=work.rows, cycles=4 * s.strided_thread_cycles)
    kernel = _bare("vectorized_gather", work, work.rows * _ceil(row_bytes, GATHER_BYTES), 256)
    return replace(kernel, l2_trips=1.0, hbm_weight=s.gather_weight)


def _pick(work: Stream, s: Streaming) -> StreamKernel:
    """One block reads a row once and keeps the largest; not measured."""
    passes = _ceil(work.width * work.element_bytes, BLOCK_THREADS * VECTOR_BYTES)
    kernel = _bare("argmax", work, work.rows, BLOCK_THREADS)
    return replace(kernel, trips=passes, cycles=s.reduction_cycles)


def _adamw(work: Stream, s: Streaming) -> tuple[StreamKernel, ...]:
    """The step counter's kernel, then launches over up to 320 chunks of 65,536 elements, a CTA each."""
    step = StreamKernel("multi_tensor_step", 1, ADAMW_THREADS, 60, 0, 0)
    chunks = _ceil(work.elements, CHUNK_ELEMENTS)
    return step, *(
        _adamw_kernel(
            work, s, min(CHUNKS, chunks - first), min(work.elements - first * CHUNK_ELEMENTS, CHUNKS * CHUNK_ELEMENTS)
        )
        for first in range(0, chunks, CHUNKS)
    )


def _adamw_kernel(work: Stream, s: Streaming, n_ctas: int, elements: int) -> StreamKernel:
    per_thread = min(elements, CHUNK_ELEMENTS) / ADAMW_THREADS
    return StreamKernel(
        "multi_tensor_adamw",
        n_ctas,
        ADAMW_THREADS,
        60,
        read_bytes=OPS["adamw"].inputs * elements * work.element_bytes,
        write_bytes=OPS["adamw"].outputs * elements * work.out_element_bytes,
        flops=OPS["adamw"].flops * elements,
        trips=max(1.0, per_thread / ADAMW_VECTOR),
        issue_cycles=s.adamw_issue_cycles * min(elements, CHUNK_ELEMENTS),
        parties=ADAMW_THREADS // WARP,
    )


def _ceil(n: float, unit: float) -> int:
    return math.ceil(n / unit)
