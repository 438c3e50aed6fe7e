"""Energy by level: sums, closed forms of each price, what data and the clock change, and the measured boards."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hwmodels import load_gpu
from hwmodels.errors import ConfigError
from sim import simulate
from sim.energy import LEVELS, energy_j, voltage_share
from sim.schedule.config import KernelConfig
from tests.sample_result import sample_kernel
from workloads import Gemm
from workloads.gemm import DATA

GPU = load_gpu("h200_sxm")
TOP = replace(sample_kernel(traced=False), sm_mhz=GPU.activity.active_mhz, waits={"idle": 0.25})
PJ = 1e-12


def with_bytes(level: str, way: str, n_bytes: int):
    moved = {name: {"read": 0, "write": 0} for name in ("hbm", "l2", "sm", "smem")}
    moved[level][way] = n_bytes
    return replace(TOP, bytes=moved, flops_executed=0)


def test_levels_add_up_to_the_result() -> None:
    result = simulate(Gemm(512, 512, 8192), GPU, family="split_k")
    assert len(result.kernels) > 1
    assert all(set(kernel.energy_j) <= set(LEVELS) for kernel in result.kernels)
    total = sum(joules for kernel in result.kernels for joules in kernel.energy_j.values())
    assert result.energy_j == pytest.approx(total, rel=1e-12)
    assert result.power_w == pytest.approx(total / result.time_s)
    assert all(joules >= 0 for kernel in result.kernels for joules in kernel.energy_j.values())


@pytest.mark.parametrize(
    ("level", "way", "part", "key", "zeros"),
    [
        ("hbm", "read", "hbm", "hbm_read_pj_per_byte", "zeros_hbm_fraction"),
        ("hbm", "write", "hbm", "hbm_write_pj_per_byte", "zeros_hbm_fraction"),
        ("l2", "read", "l2", "l2_read_pj_per_byte", "zeros_l2_fraction"),
        ("l2", "write", "l2", "l2_write_pj_per_byte", "zeros_l2_fraction"),
        ("smem", "read", "smem", "smem_pj_per_byte", "zeros_smem_fraction"),
        ("sm", "read", "smem", "smem_pj_per_byte", "zeros_smem_fraction"),
    ],
)
def test_a_byte_of_zeros_costs_its_price(level, way, part, key, zeros) -> None:
    found = energy_j(GPU, with_bytes(level, way, 10**9), "bf16", "zeros")
    expected = 10**9 * getattr(GPU.power, key) * getattr(GPU.power, zeros) * PJ
    assert found[part] == pytest.approx(expected)
    assert all(found[name] == 0 for name in ("tensor", "smem", "l2", "hbm") if name != part)


def test_idle_and_busy_sms_cost_their_watts() -> None:
    found = energy_j(GPU, TOP, "bf16")
    assert found["idle"] == pytest.approx((GPU.power.idle_w + GPU.power.clocks_w) * TOP.time_s)
    assert found["sm"] == pytest.approx(0.75 * GPU.sm.count * GPU.power.active_w_per_sm * TOP.time_s)


@pytest.mark.parametrize(("mma", "dtype", "part"), [("wgmma", "fp8_e4m3", "tensor"), ("fma", "fp32", "cuda_cores")])
def test_a_flop_costs_its_price(mma, dtype, part) -> None:
    kernel = replace(TOP, config={**TOP.config, "mma": mma})
    price = GPU.power.fp8_pj_per_flop if part == "tensor" else GPU.power.fp32_pj_per_flop
    assert energy_j(GPU, kernel, dtype)[part] == pytest.approx(kernel.flops_executed * price * PJ)


def test_more_bytes_cost_more_and_zeros_less_than_sparse_less_than_random() -> None:
    for level in ("hbm", "l2", "smem"):
        energies = [energy_j(GPU, with_bytes(level, "read", n), "bf16")[level] for n in (0, 1, 10**6, 10**9)]
        assert energies == sorted(set(energies))
    random, zeros, sparse = (energy_j(GPU, TOP, "bf16", data) for data in ("random", "zeros", "sparse"))
    assert DATA == ("random", "zeros", "sparse")
    assert all(zeros[part] < sparse[part] < random[part] for part in ("tensor", "smem", "l2", "hbm"))


def test_the_cores_energy_goes_as_the_square_of_the_clock_and_memorys_does_not() -> None:
    full, half = (energy_j(GPU, replace(TOP, sm_mhz=share * TOP.sm_mhz), "bf16") for share in (1.0, 0.5))
    assert [half[part] / full[part] for part in ("tensor", "smem", "l2", "hbm")] == pytest.approx([0.25] * 3 + [1.0])
    assert half["sm"] / full["sm"] == pytest.approx(0.125)
    assert voltage_share(GPU, 2 * TOP.sm_mhz) == 1.0


def test_unknown_data_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="data = 'ones': must be one of random, zeros, sparse"):
        simulate(Gemm(128, 128, 128), GPU, data="ones")


def test_double_precision_costs_what_its_own_instruction_was_measured_at() -> None:
    """power.csv mma_fp64: the price is mma.sync's already."""
    gpu, gemm = load_gpu("h200_sxm"), Gemm(2048, 2048, 2048, dtype="fp64")
    found = simulate(gemm, gpu, config=KernelConfig("multistage", 64, 128, 16, 3, 4, mma="mma_sync")).main
    volts = found.sm_mhz / gpu.activity.active_mhz
    assert found.energy_j["tensor"] == pytest.approx(gemm.flops * 9.25e-12 * min(1.0, volts) ** 2, rel=0.01)
