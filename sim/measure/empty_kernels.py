"""Duration of kernels that do nothing, as CUPTI reports it through torch.profiler, back to back as in gemm.csv."""

import json
import statistics
import tempfile
from pathlib import Path

import cupy
import torch
from torch.profiler import ProfilerActivity, profile

CODE = """extern "C" __global__ void nop(int* p) {
  extern __shared__ int s[];
  if (p && threadIdx.x == 12345) p[0] = s[0];
}"""


def main() -> None:
    """Print the median time of each case."""
    kernel = cupy.RawKernel(CODE, "nop")
    kernel.max_dynamic_shared_size_bytes = 200 * 1024
    torch.zeros(1, device="cuda")
    cases = [(b, t, s) for b in (1, 132, 264, 528, 1320) for t in (128, 384) for s in (0, 200 * 1024)]
    for blocks, threads, smem in cases:
        us = statistics.median(measure(kernel, blocks, threads, smem))
        print(f"empty_kernel,blocks={blocks};threads={threads},smem={smem},{us:.3f},us", flush=True)


def measure(kernel: cupy.RawKernel, blocks: int, threads: int, smem: int) -> list[float]:
    """Durations (us) of 25 launches after 5 that are dropped."""
    with profile(activities=[ProfilerActivity.CUDA]) as prof:
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            for _ in range(30):
                kernel((blocks,), (threads,), (0,), shared_mem=smem)
        torch.cuda.synchronize()
    path = Path(tempfile.mkdtemp()) / "trace.json"
    prof.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    return [e["dur"] for e in events if e.get("cat") == "kernel" and "nop" in e["name"]][5:]


if __name__ == "__main__":
    main()
