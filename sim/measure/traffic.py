"""How requests merge on their way from SMs through L2 to HBM: all counters of L2's sources, on kernels of both kinds.

Usage: python3 -m sim.measure.traffic OUT.csv METRICS.txt
"""

import re
import sys
import time
from pathlib import Path
from typing import Any

from sim.measure import nsight
from sim.measure.spills import TILE, write

TRITON = [
    ((1024, 1024, 1024), (128, 128, 64, 3, 4, 8)), ((1024, 1024, 1024), (64, 64, 64, 3, 4, 8)),
    ((256, 28672, 4096), (64, 128, 64, 4, 4, 8)), ((512, 4096, 14336), (128, 64, 64, 4, 4, 8)),
    ((64, 14336, 4096), (64, 64, 64, 4, 4, 8)), ((2048, 4096, 4096), (128, 128, 64, 3, 8, 8)),
    ((4096, 4096, 4096), (128, 256, 64, 3, 8, 8)), ((4096, 4096, 4096), (128, 128, 64, 3, 8, 1)),
]  # fmt: skip
CUBLAS = [
    (1024, 1024, 1024, "bf16"), (512, 4096, 4096, "bf16"), (4096, 4096, 4096, "bf16"), (64, 14336, 4096, "bf16"),
    (16, 4096, 4096, "bf16"), (2048, 4096, 4096, "bf16"), (512, 4096, 4096, "fp8"), (4096, 4096, 4096, "fp8"),
]  # fmt: skip
LISTED = r"lrc|ltcfabric|fabric|srcunit|srcnode|xbar2l1tex|l1tex2xbar|mem_local|op_local"
COUNTED = (
    r"^(lts__t_(requests|sectors)_(srcunit_(tex|ltcfabric)|srcnode_gpc)_op_(read|write)(_lookup_(hit|miss))?"
    r"|lts__t_(tag_requests|sectors_op_read|sectors_op_write)|lts__ltcfabric2lts_cycles_(active|stalled)"
    r"|lrc__(xbar2lrc_requests|xbar2gpc_sectors|lrc2xbar_sectors|lts2lrc_sectors|request_sectors)_op_read"
    r"(_replayed|_coalescable|_coalescing_none|_coalescing_(achieved_)?type_(hardware|programmatic))?"
    r"|lrc__lrc2xbar_cycles_(active|stalled)"
    r"|l1tex__m_xbar2l1tex_read_bytes(_mem_lg_op_ld|_mem_global_op_tma_ld(_dest_(self|multicast))?)?"
    r"|l1tex__m_l1tex2xbar_write_bytes|dram__bytes_(read|write))$"
)
SPREAD = ["lts__t_sectors_srcunit_tex_op_read.max", "lts__t_sectors_srcunit_tex_op_read.min"]
ALWAYS = ["gpu__time_duration.sum", "sm__cycles_elapsed.max", "lts__cycles_elapsed.max"]


def jobs() -> list[nsight.Job]:
    """Every kernel twice, to see how much the counts repeat."""
    tiles = [{"library": "triton", "dtype": "bf16", **_shape(s), **dict(zip(TILE, t, strict=True))} for s, t in TRITON]
    library = [{"library": "cublas", "dtype": s[3], **_shape(s[:3])} for s in CUBLAS]
    return [job for job in tiles + library for _ in range(2)]


def _shape(shape: tuple[int, ...]) -> dict[str, Any]:
    return dict(zip("mnk", shape, strict=True))


def main() -> None:
    """Count and write; the names of every counter of these units go to the second file."""
    start = time.time()
    Path(sys.argv[2]).write_text("\n".join(nsight.available(LISTED)) + "\n")
    metrics = ALWAYS + SPREAD + [f"{name}.sum" for name in nsight.available(COUNTED)]
    print(len(metrics), "metrics", flush=True)
    rows = []
    for job, kernels in zip(jobs(), nsight.counters(jobs(), metrics), strict=True):
        head = {c: job.get(c, "") for c in ("library", "m", "n", "k", "dtype", *TILE)}
        for kernel in kernels:
            name = re.sub(",", ";", kernel["Kernel Name"])[:90]
            launch = {"kernel": name, "grid": kernel["Grid Size"], "block": kernel["Block Size"]}
            rows.append(head | launch | {metric: kernel[metric].replace(",", "") for metric in metrics})
    write(sys.argv[1], rows)
    print(f"{len(rows)} kernels in {time.time() - start:.0f} s")


if __name__ == "__main__":
    main()
