"""From outcomes to a `Result`: the limiter with its evidence, and what would help most."""

from __future__ import annotations

import platform
from functools import cache
from importlib import metadata
from typing import Any

from hwmodels.catalog import resolved
from hwmodels.spec import Gpu
from sim.call import Call, Options, run_call
from sim.host import HostOutcome
from sim.limiter import find_limiter
from sim.result import SCHEMA, Result, main_kernel
from sim.text import percent, quantity
from sim.validation.expected import expected_error, kernel_class

PACKAGES = ("tilewalk", "numpy", "numba", "simpy")
"""Whose versions a result names."""

COPIES_FROM = 0.5
"""Share of the time from end to end from which copies are worth a sentence."""

CHANGES: dict[str, dict[str, tuple[str, float]]] = {
    "tensor cores twice as fast": {
        "tensor": ("flops_per_clk_per_sm", 2.0),
        "cuda_core": ("flops_per_clk_per_sm", 2.0),
    },
    "HBM twice as fast": {"hbm": ("bandwidth_gb_per_s", 2.0)},
    "L2 and its ports twice as fast": {"l2": ("bytes_per_clk", 2.0)},
    "latencies halved": {"l2": ("latency_cycles", 0.5), "hbm": ("_ns", 0.5)},
}
"""What might help -> for each section of the GPU, the ending of the values it multiplies, and by what."""
IF_SMEM: dict[str, dict[str, tuple[str, float]]] = {"shared memory twice as fast": {"smem": ("bytes_per_clk", 2.0)}}
"""Offered as well where shared memory is the limiter."""
HELPS_FROM = 1.01
"""Speed-up from which a change helps."""


def build_result(
    call: Call, host: HostOutcome, gpu: Gpu, options: Options, asked: dict[str, Any], advise: bool
) -> Result:
    """Assemble the frozen result of one call. `asked` is what else the caller wanted, as it goes into `options`."""
    limiter, (first, *others) = find_limiter(call.main)
    described = resolved(gpu)
    return Result(
        gpu=described,
        workload=call.gemm.describe(),
        versions=versions(),
        kernels=call.kernels,
        time_s=call.time_s,
        end_to_end_s=host.end_to_end_s,
        flops=call.gemm.flops,
        limiter=limiter,
        evidence=(first, *_copies(host, call.time_s, asked["stream_weights"]), *others),
        advice=advice(call, gpu, options, limiter) if advise else (),
        host_spans=host.spans,
        options={**options.describe(), **asked, **_memory(host), **expected(call, described, options), **_burst(call)},
    )


def _burst(call: Call) -> dict[str, Any]:
    """What the call was before the board's power slowed it, where it does."""
    if not call.burst:
        return {}
    time_s = sum(kernel.time_s for kernel in call.burst)
    energy_j = sum(sum(kernel.energy_j.values()) for kernel in call.burst)
    mhz = main_kernel(call.burst).sm_mhz
    return {"before_settling": {"time_s": time_s, "power_w": energy_j / time_s, "sm_mhz": mhz}}


def _memory(host: HostOutcome) -> dict[str, int]:
    return {name: getattr(host, name) for name in ("hbm_peak_bytes", "h2d_bytes", "d2h_bytes")}


def expected(call: Call, gpu: dict[str, Any], options: Options) -> dict[str, Any]:
    """{"expected_error": as in `Result.options`}, where kernels like this were measured on this GPU and nothing of it
    was changed or held; else {}. `gpu` as `hwmodels.catalog.resolved` has it."""
    changed = any(entry["kind"] == "user" for entry in gpu["values"].values())
    gemm = call.gemm
    if changed or options.without or options.clock_mhz is not None or gemm.weights_format != "dense":
        return {}
    kernels = kernel_class(call.plan.config.family, gemm.dtype, gemm.m, gemm.n, gemm.k)
    found = expected_error(gpu["name"], kernels)
    return {"expected_error": found} if found else {}


def _copies(host: HostOutcome, kernels_s: float, streamed: bool) -> list[str]:
    """A sentence about PCIe, where most of the time from end to end is copies with no kernel under way, or where copies
    and kernels run side by side."""
    if streamed:
        return [_pieces(host, kernels_s)]
    whole, kernels = quantity(host.end_to_end_s, "s"), quantity(kernels_s, "s")
    text = f"Copies over PCIe take {percent(host.copy_busy_s / host.end_to_end_s)} of the {whole} from end to end"
    shown = min(host.copy_busy_s, host.compute_idle_s) >= COPIES_FROM * host.end_to_end_s
    return [f"{text}; kernels {kernels}."] if shown else []


def _pieces(host: HostOutcome, whole_s: float) -> str:
    """Weights that come in pieces: what bounds the time from end to end, which `whole_s`, of one kernel, is not."""
    n_pieces = sum(span.lane == "stream" for span in host.spans)
    kernels_s = host.end_to_end_s - host.compute_idle_s
    copies, kernels = quantity(host.copy_busy_s, "s"), quantity(kernels_s, "s")
    bound = "PCIe bounds" if host.copy_busy_s >= kernels_s else "the kernels bound"
    return (
        f"From end to end {bound} the {quantity(host.end_to_end_s, 's')}: copies over PCIe take {copies}, kernels on "
        f"{n_pieces} pieces of B {kernels}; one kernel on all of B in HBM would take {quantity(whole_s, 's')}."
    )


def advice(call: Call, gpu: Gpu, options: Options, limiter: str) -> tuple[dict[str, Any], ...]:
    """The same kernel on GPUs with one thing better each, simulated: those that help, most helpful first."""
    found: list[dict[str, Any]] = []
    for text, changes in {**CHANGES, **(IF_SMEM if limiter == "smem" else {})}.items():
        time_s = run_call(call.gemm, call.plan.config, _better(gpu, changes), options.untraced()).time_s
        named = text.replace("tensor", "CUDA") if call.plan.config.mma == "fma" else text
        found.append({"change": named, "time_s": time_s, "speedup": call.time_s / time_s})
    helpful = [item for item in found if item["speedup"] >= HELPS_FROM]
    return tuple(sorted(helpful, key=lambda item: -float(item["speedup"])))


def _better(gpu: Gpu, changes: dict[str, tuple[str, float]]) -> Gpu:
    update = {}
    for section, (ending, factor) in changes.items():
        values = getattr(gpu, section)
        names = [name for name in type(values).model_fields if name.endswith(ending)]
        update[section] = values.model_copy(update={name: factor * getattr(values, name) for name in names})
    return gpu.model_copy(update=update)


def versions() -> dict[str, str]:
    """{package: its version} of `PACKAGES`, and Python's."""
    return {"python": platform.python_version(), "schema": str(SCHEMA), **{name: _version(name) for name in PACKAGES}}


@cache
def _version(package: str) -> str:
    """Reading it takes milliseconds, as long as a small kernel."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
