"""Counters of single launches through Nsight Compute (`ncu`), caches flushed before each, clocks left alone."""

import csv
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

MARKER = "FillFunctor<double>"  # as in timing.py
Job = dict[str, Any]
"""library (cublas, triton), m, n, k, dtype (bf16, fp8, tf32, fp32, fp64); for triton also block_m .. group_m."""


def counters(jobs: Sequence[Job], metrics: Sequence[str], timeout_s: float = 600) -> list[list[dict[str, str]]]:
    """For each job the kernels it launched, each {column: value}: "Kernel Name", "Grid Size", ... and the metrics.

    Raises RuntimeError with ncu's last lines where it fails or the kernels do not fit the jobs.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.json"
        path.write_text(json.dumps(list(jobs)))
        command = ["ncu", "--clock-control", "none", "--profile-from-start", "off", "--csv", "--page", "raw"]
        command += ["--print-units", "base", "--metrics", ",".join(metrics), sys.executable, "-m", __name__, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    groups = _split(_rows(done.stdout))
    if len(groups) != len(jobs):
        tail = (done.stdout[-500:] + done.stderr[-1500:]).strip()
        raise RuntimeError(f"ncu gave {len(groups)} of {len(jobs)} launches: {tail}")
    return groups


def available(pattern: str) -> list[str]:
    """Base names of this GPU's counters that match, sorted. Empty without ncu."""
    if not shutil.which("ncu"):
        return []
    listed = subprocess.run(["ncu", "--query-metrics"], capture_output=True, text=True, timeout=60, check=False).stdout
    names = (line.split() for line in listed.splitlines())
    return sorted({n[0] for n in names if len(n) > 1 and n[1] == "Counter" and re.search(pattern, n[0])})


def _rows(text: str) -> list[dict[str, str]]:
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    return [
        row for row in csv.DictReader(io.StringIO("\n".join(lines[start:]))) if row["ID"]
    ]  # the units' row has none


def _split(rows: list[dict[str, str]]) -> list[list[dict[str, str]]]:
    groups: list[list[dict[str, str]]] = []
    for row in rows:
        if MARKER in row["Kernel Name"]:
            groups.append([])
        elif groups:
            groups[-1].append(row)
    return groups


def _launch_all(jobs: Sequence[Job]) -> None:
    """Launch each job once under the profiler, after a marker kernel; the launch before it compiles and warms up."""
    import torch

    marker = torch.zeros(7, device="cuda", dtype=torch.float64)
    runtime = torch.cuda.cudart()
    for job in jobs:
        call = _call(job)
        call()
        torch.cuda.synchronize()
        runtime.cudaProfilerStart()
        marker.fill_(1.0)
        call()
        torch.cuda.synchronize()
        runtime.cudaProfilerStop()


def _call(job: Job) -> Any:
    import torch

    stored = {"tf32": torch.float32, "fp32": torch.float32, "fp64": torch.float64}.get(job["dtype"], torch.bfloat16)
    a, b = (torch.randn(rows, job["k"], device="cuda", dtype=stored) for rows in (job["m"], job["n"]))
    if job["library"] == "triton":
        from sim.measure.triton_gemm import launch

        c = torch.empty(job["m"], job["n"], device="cuda", dtype=torch.bfloat16)
        return lambda: launch(job, a, b, c)
    if job["dtype"] != "fp8":
        return partial(_mm, job["dtype"] == "tf32", a, b)
    one = torch.ones((), device="cuda")
    x, y = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
    return lambda: torch._scaled_mm(x, y.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)


def _mm(tf32: bool, a: Any, b: Any) -> Any:
    """TF32 is a switch of the process, so it is set at each call."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = tf32
    return torch.mm(a, b.t())


if __name__ == "__main__":
    _launch_all(json.loads(Path(sys.argv[1]).read_text()))
