"""GPT-2's head with its 50,257 tokens, and filled up to multiples of 8 and 64.

Rows of logits of 50,257 elements of 2 bytes start at odd addresses, so that TMA cannot store them and kernels fall back
to narrow loads and stores; a fused log-softmax stores no logits. "none" is the product alone.
"""

from __future__ import annotations

from hwmodels.spec import Gpu
from sim.operation import Kernels
from sim.studies import runs
from sim.studies.study import Cell, Chart, Finding, Study, Table, counted, ratio, table
from workloads.gemm import Gemm

WIDTH = 768
VOCABULARIES = (50257, 50264, 50304)
ROWS = (1, 16, 128, 1024, 8192)


def head(rows: int, vocabulary: int, dtype: str, epilogue: str = "none") -> Gemm:
    """The product."""
    return Gemm(rows, vocabulary, WIDTH, dtype=dtype, epilogue=epilogue)


def study(gpu: Gpu) -> Study:
    """Raises `ConfigError` where the GPU has no such products."""
    times, taken = _times(gpu), _kernels(gpu)
    slower = times.column("times as long")
    fused = dict(zip(times.column("rows"), times.column("50,257, fused"), strict=True))
    plain = dict(zip(times.column("rows"), times.column("50,257"), strict=True))
    return Study(
        "misaligned-vocabulary",
        "What an odd vocabulary costs GPT-2's head",
        gpu.label,
        (times, taken),
        (
            *(
                Finding(f"{counted(rows, 'row')}: 50,257 takes longer than 50,304", each, "ratio")
                for rows, each in zip(ROWS, slower, strict=True)
            ),
            Finding("More to compute with 50,304", VOCABULARIES[-1] / VOCABULARIES[0] - 1, "share"),
            Finding("1 row: fusing log-softmax is faster, too", ratio(plain[1], fused[1]), "ratio"),
        ),
        Chart(("50,257", "50,264", "50,304", "50,257, fused")),
    )


def _times(gpu: Gpu) -> Table:
    dtype, rows = runs.dtype_of(gpu), list[tuple[Cell, ...]]()
    for m in ROWS:
        each = [runs.time_s(gpu, head(m, n, dtype)) for n in VOCABULARIES]
        rows.append((m, *each, runs.time_s(gpu, head(m, VOCABULARIES[0], dtype, "row_stats")), each[0] / each[-1]))
    names = [f"{n:,}" for n in VOCABULARIES] + ["50,257, fused"]
    return table("Time", {"rows": "count", **dict.fromkeys(names, "s"), "times as long": "ratio"}, rows)


def _kernels(gpu: Gpu) -> Table:
    dtype, known = runs.dtype_of(gpu), runs.kernels(gpu)
    rows = [
        (f"{m:,} x {n:,}", head(m, n, dtype).alignment_bytes("c"), *_described(known, head(m, n, dtype)))
        for m in (ROWS[0], ROWS[-1])
        for n in VOCABULARIES
    ]
    columns = {"product": "text", "alignment of C": "B", "tile": "text", "instruction": "text", "loads": "text"}
    return table("Kernels", columns, rows)


def _described(known: Kernels, gemm: Gemm) -> tuple[str, str, str]:
    config = known.config_of(gemm)
    return f"{config.block_m}x{config.block_n}x{config.block_k}", config.mma, config.loads
