"""From outcomes to a `Result`: the limiter with its evidence, and what would help most."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

from hwmodels.catalog import resolved
from hwmodels.spec import Gpu
from sim.call import Call, Options, run_call
from sim.host import HostOutcome
from sim.result import SCHEMA, KernelResult, Result

LIMITERS = {
    "mma": "tensor", "hbm": "hbm", "l2": "l2", "sm_port": "sm_port", "barrier": "synchronisation",
    "start": "launch and start", "epilogue": "epilogue", "idle": "too few CTAs",
}  # fmt: skip
"""What a wait points at."""

BOUND_FROM = 0.6
"""Share of its peak from which a busy bandwidth, not a latency, is what a wait is for."""

ADVICE = (
    ("tensor", "tensor cores twice as fast", {"tensor": 2.0}),
    ("hbm", "HBM twice as fast", {"hbm": 2.0}),
    ("l2", "L2 and its ports twice as fast", {"l2": 2.0}),
    ("latency", "latencies halved", {"latency": 0.5}),
)


def build_result(
    call: Call, host: HostOutcome, gpu: Gpu, options: Options, family: str | None, tile: str, advise: bool
) -> Result:
    """Assemble the frozen result of one call."""
    main = max(call.kernels, key=lambda kernel: kernel.time_s)
    limiter, evidence = find_limiter(main, call)
    return Result(
        gpu=resolved(gpu),
        workload=call.gemm.describe(),
        versions=_versions(),
        kernels=call.kernels,
        time_s=call.time_s,
        end_to_end_s=host.end_to_end_s,
        flops=call.gemm.flops,
        limiter=limiter,
        evidence=evidence,
        advice=advice(call, gpu, options) if advise else (),
        host_spans=host.spans,
        options={
            "clock_mhz": options.clock_mhz, "full": options.full, "family": family, "tile": tile, "without": sorted(options.without),
            "hbm_peak_bytes": host.hbm_peak_bytes, "h2d_bytes": host.h2d_bytes, "d2h_bytes": host.d2h_bytes,
        },
    )  # fmt: skip


def find_limiter(main: KernelResult, call: Call) -> tuple[str, tuple[str, ...]]:
    """The resource that CTA slots spend most time on, and sentences with figures that say so."""
    waits = dict(main.waits)
    busiest = max(("tensor", "smem", "hbm", "l2", "sm_port"), key=lambda name: main.utilisation.get(name, 0.0))
    reason = max(waits, key=lambda name: waits[name])
    limiter = LIMITERS.get(reason, reason)
    if reason == "mma" and main.utilisation["smem"] > main.utilisation["tensor"]:
        limiter = "smem"
    if reason in ("hbm", "l2") and main.utilisation[reason] < BOUND_FROM:
        limiter = f"{reason} latency"
    evidence = [
        f"CTA slots spend {waits[reason]:.0%} of the kernel on {_phrase(reason)}",
        f"busiest resource: {busiest} at {main.utilisation[busiest]:.0%} of its peak",
    ]
    second = sorted(waits, key=lambda name: waits[name])[-2]
    if waits[second] > 0.05:
        evidence.append(f"next: {waits[second]:.0%} on {_phrase(second)}")
    tail = main.waves - int(main.waves)
    if 0 < tail < 0.5 and main.waves < 10:
        evidence.append(f"the last of {main.waves:.2f} waves fills {tail:.0%} of the slots")
    return limiter, tuple(evidence)


def _phrase(reason: str) -> str:
    return {
        "mma": "tensor-core work", "hbm": "waiting for HBM", "l2": "waiting for L2", "sm_port": "waiting for the SM's port",
        "barrier": "barriers", "issue": "issuing loads", "start": "starting CTAs", "epilogue": "epilogues", "idle": "nothing: no CTA left for the slot",
    }.get(reason, reason)  # fmt: skip


def advice(call: Call, gpu: Gpu, options: Options) -> tuple[dict[str, Any], ...]:
    """The same kernel on four better GPUs, each simulated; most helpful first."""
    found = []
    for _, text, factors in ADVICE:
        time_s = run_call(call.gemm, call.plan.config, _better(gpu, factors), options.untraced()).time_s
        found.append({"change": text, "time_s": time_s, "speedup": call.time_s / time_s})
    return tuple(sorted(found, key=lambda item: -float(item["speedup"])))


def _better(gpu: Gpu, factors: dict[str, float]) -> Gpu:
    update: dict[str, Any] = {}
    if "tensor" in factors:
        tensor, core = gpu.tensor.model_dump(), gpu.cuda_core.model_dump()
        update["tensor"] = gpu.tensor.model_copy(
            update={k: v * factors["tensor"] for k, v in tensor.items() if k.endswith("per_sm")}
        )
        update["cuda_core"] = gpu.cuda_core.model_copy(update={k: v * factors["tensor"] for k, v in core.items()})
    if "hbm" in factors:
        update["hbm"] = gpu.hbm.model_copy(update={"bandwidth_gb_per_s": gpu.hbm.bandwidth_gb_per_s * factors["hbm"]})
    if "l2" in factors:
        keys = ("bytes_per_clk", "sm_port_bytes_per_clk", "gpc_port_bytes_per_clk")
        update["l2"] = gpu.l2.model_copy(update={k: getattr(gpu.l2, k) * factors["l2"] for k in keys})
    if "latency" in factors:
        f = factors["latency"]
        update["l2"] = gpu.l2.model_copy(
            update={k: getattr(gpu.l2, k) * f for k in ("latency_cycles", "far_latency_cycles")}
        )
        update["hbm"] = gpu.hbm.model_copy(update={k: getattr(gpu.hbm, k) * f for k in ("latency_ns", "spread_ns")})
    return gpu.model_copy(update=update)


def _versions() -> dict[str, str]:
    names = ("tilewalk", "numpy", "numba", "simpy")
    found = {"python": platform.python_version(), "schema": str(SCHEMA)}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
