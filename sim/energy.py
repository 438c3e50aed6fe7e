"""Joules of one kernel by level, from its bytes, FLOPs and time: moving data has a price a byte, arithmetic one a FLOP.

Prices are `power.*` of the GPU, at its top clock. What shares the SMs' voltage (SMs, tensor cores, shared memory, L2)
costs less below it: voltage follows the clock, so energy goes as its square (power.csv: wgmma at 1,568 against 1,814
MHz costs 0.747 of the energy, the square of the clocks' ratio 0.747). HBM and the board's idle power do not fall.
"""

from __future__ import annotations

from collections.abc import Mapping

from hwmodels.spec import Gpu
from sim.result import KernelResult

TOGGLES = {"random": 0.703, "zeros": 0.0, "sparse": 0.444}
"""Bits that change from one bf16 value to the next, random bits being 1 (counted over 400,000 values: 5.63, 0 and 3.55
of the 8 that random bits change): between `power.zeros_*_fraction` and 1, the price of a byte follows it."""
LEVELS = ("idle", "sm", "tensor", "cuda_cores", "smem", "l2", "hbm")
"""Parts of `KernelResult.energy_j`; a kernel has "tensor" or "cuda_cores"."""
J_PER_PJ = 1e-12


def voltage_share(gpu: Gpu, mhz: float) -> float:
    """Core voltage at `mhz` inside a kernel, 1 at the clock of a kernel without tensor work and above."""
    return min(1.0, mhz / gpu.activity.active_mhz)


def energy_j(gpu: Gpu, kernel: KernelResult, dtype: str, data: str = "random") -> dict[str, float]:
    """Joules of `kernel` by level, the board's idle power over its time included; keys out of `LEVELS`.

    L2's share is what its bytes cost on the way to the first SM and into it; copies that a cluster's other SMs receive
    count as shared memory's. Not modelled: leakage that grows with temperature, and what instructions other than those
    measured with each level cost.
    """
    volts = voltage_share(gpu, kernel.sm_mhz)
    idle_w = gpu.power.idle_w + gpu.power.clocks_w * volts**3
    busy_sms = gpu.sm.count * (1.0 - kernel.waits.get("idle", 0.0))
    unit = "cuda_cores" if kernel.config.get("mma") == "fma" else "tensor"
    return {
        "idle": idle_w * kernel.time_s,
        "sm": busy_sms * gpu.power.active_w_per_sm * volts**3 * kernel.time_s,
        unit: _flops_j(gpu, kernel, dtype, data) * volts**2,
        "smem": _smem_j(gpu, kernel.bytes, data) * volts**2,
        "l2": _level_j(gpu, kernel.bytes, "l2", data) * volts**2,
        "hbm": _level_j(gpu, kernel.bytes, "hbm", data),
    }


def _flops_j(gpu: Gpu, kernel: KernelResult, dtype: str, data: str) -> float:
    """Of the multiplications, at the top clock."""
    power, mma = gpu.power, kernel.config.get("mma")
    if mma == "fma":
        return (
            kernel.flops_executed * (power.fp64_pj_per_flop if dtype == "fp64" else power.fp32_pj_per_flop) * J_PER_PJ
        )
    price = getattr(power, f"{dtype.split('_', maxsplit=1)[0]}_pj_per_flop")
    weight = power.mma_sync_weight if mma == "mma_sync" and dtype != "fp64" else 1.0  # fp64's price is mma.sync's own
    share = {"random": 1.0, "zeros": power.zeros_tensor_fraction, "sparse": power.sparse_tensor_fraction}[data]
    return float(kernel.flops_executed * price * weight * share * J_PER_PJ)


def _data_share(zeros_fraction: float, data: str) -> float:
    """Price of a byte over that of one of random bits."""
    return zeros_fraction + (1.0 - zeros_fraction) * TOGGLES[data]


def _smem_j(gpu: Gpu, moved: Mapping[str, Mapping[str, int]], data: str) -> float:
    copies = max(0, moved["sm"]["read"] - moved["l2"]["read"])
    n_bytes = copies + sum(moved.get("smem", {}).values())
    return n_bytes * gpu.power.smem_pj_per_byte * _data_share(gpu.power.zeros_smem_fraction, data) * J_PER_PJ


def _level_j(gpu: Gpu, moved: Mapping[str, Mapping[str, int]], level: str, data: str) -> float:
    read, write, zeros = (
        getattr(gpu.power, f"{level}_read_pj_per_byte"),
        getattr(gpu.power, f"{level}_write_pj_per_byte"),
        getattr(gpu.power, f"zeros_{level}_fraction"),
    )
    joules = (moved[level]["read"] * read + moved[level]["write"] * write) * J_PER_PJ
    return float(joules * _data_share(zeros, data))
