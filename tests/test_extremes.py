"""Every size a GEMM may have, every type and layout, every GPU: finite positive times, no overflow, bounded memory.

The engine alone, whether or not the tensors fit HBM. Large kernels are sampled; how well, `test_sampling` tests.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from hwmodels import list_gpus, load_gpu
from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.call import Call, Options, run_call
from sim.kernel import _state
from sim.machine import build_machine
from sim.schedule.choose import ranked
from sim.schedule.config import KernelConfig
from sim.schedule.menu import families
from sim.schedule.plan import build_plan
from tests.kernel_runs import multistage, persistent
from workloads import Gemm
from workloads.dtypes import COMBINATIONS
from workloads.gemm import LAYOUTS, MAX_BATCH, MAX_DIMENSION

ROOT = Path(__file__).parent.parent
each_gpu = pytest.mark.parametrize("name", list_gpus())


@cache
def gpu(name: str) -> Gpu:
    return load_gpu(name)


def call(gemm: Gemm, on: Gpu, family: str | None = None, config: KernelConfig | None = None) -> Call:
    """The kernels of the configuration with the best bound that is not refused, replayed and looked over."""
    found = next(accepted(gemm, on, (config,) if config else ranked(gemm, on, family)))
    sane(found, on)
    return found


def accepted(gemm: Gemm, on: Gpu, configs: Iterable[KernelConfig]) -> Iterator[Call]:
    """As `simulate` tries them; all refused, the last refusal."""
    refusal: ConfigError | None = None
    for config in configs:
        try:
            yield run_call(gemm, config, on, Options())
        except ConfigError as error:
            refusal = error
    if refusal:
        raise refusal


def sane(found: Call, on: Gpu) -> None:
    """Finite, positive, no slower than an hour, no faster than the FLOPs and compulsory bytes allow."""
    assert math.isfinite(found.time_s)
    assert 0 < found.time_s < 3600
    for kernel in found.kernels:
        counts = [n for ways in (*kernel.bytes.values(), *kernel.requests.values()) for n in ways.values()]
        counts += [kernel.flops_executed, kernel.n_events, *kernel.lookups.values()]
        assert all(0 <= n < 2**62 for n in counts)
        assert all(0 <= busy <= 1 for busy in kernel.utilisation.values()), kernel.utilisation
        assert not kernel.waits or sum(kernel.waits.values()) == pytest.approx(1)
        assert 0 < kernel.sm_mhz <= on.clock.boost_mhz + 1
    if found.gemm.l2 == "cold":
        assert found.time_s > (found.gemm.a_bytes + found.gemm.b_bytes) / (on.hbm.bandwidth_gb_per_s * 1e9)
    main = max(found.kernels, key=lambda kernel: kernel.time_s)
    assert main.flops_executed >= found.gemm.flops


# Sizes.
@each_gpu
@pytest.mark.parametrize(
    "shape",
    [
        (1, 1, 1),
        (MAX_DIMENSION, 1, 1),
        (1, MAX_DIMENSION, 1),
        (1, 1, MAX_DIMENSION),
        (17, MAX_DIMENSION, 33),
        (127, 129, 131071),
    ],
)
def test_one_dimension_at_a_time(name, shape):
    call(Gemm(*shape, dtype="fp16"), gpu(name))


@pytest.mark.parametrize("shape", [(MAX_DIMENSION, MAX_DIMENSION, 1), (MAX_DIMENSION, 1, MAX_DIMENSION)])
def test_two_dimensions_together(shape):
    call(Gemm(*shape), gpu("h200_sxm"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["h200_sxm", "a100_sxm_80gb", "t4"])
def test_all_dimensions_together(name):
    """2 to 40 10^18 fs of SMs, which 63 bits do not hold."""
    found = call(Gemm(*[MAX_DIMENSION] * 3, dtype="fp16"), gpu(name))
    assert found.main.sampled
    assert found.main.flops_executed == pytest.approx(found.gemm.flops, rel=0.01)
    counted = found.main.bytes["sm"]["read"] / found.main.requests["sm"]["read"]
    chunk = found.plan.work.a_sm_bytes + found.plan.work.b_sm_bytes
    assert counted == pytest.approx(chunk * found.plan.work.cluster_size, rel=1e-3)
    assert found.main.utilisation["tensor"] > 0.3


def test_a_vocabulary_of_256000_runs():
    """Gemma's last layer."""
    found = call(Gemm(1, 256000, 3584), gpu("h200_sxm"))
    assert found.time_s < 600e-6


@pytest.mark.parametrize("family", ["multistage", "persistent", "split_k"])
@pytest.mark.parametrize("shape", [(MAX_DIMENSION, 64, 8192), (64, MAX_DIMENSION, 8192), (64, 64, MAX_DIMENSION)])
def test_each_family_takes_long_sides(family, shape):
    call(Gemm(*shape), gpu("h200_sxm"), family)


@pytest.mark.parametrize("batch", [2, 1000, MAX_BATCH])
@pytest.mark.parametrize("name", ["h200_sxm", "t4"])
def test_batches(name, batch):
    found = call(Gemm(65, 33, 40, batch=batch, dtype="fp16"), gpu(name))
    assert found.kernels[-1].bytes["sm"]["write"] >= found.gemm.c_bytes


@each_gpu
@pytest.mark.parametrize("shape", [(3, 5, 7), (31, 1, 1023), (129, 257, 65), (1, 4097, 333), (999, 1, 1)])
def test_odd_sizes(name, shape):
    call(Gemm(*shape, dtype="fp16", batch=3, epilogue="residual"), gpu(name))


# Types and layouts.
def has(on: Gpu, dtype: str) -> bool:
    """Whether some unit of the GPU multiplies the type."""
    unit = dtype.partition("_")[0]
    return any(getattr(part, f"{unit}_flops_per_clk_per_sm", 0) > 0 for part in (on.tensor, on.cuda_core))


@each_gpu
@pytest.mark.parametrize("dtype", COMBINATIONS)
def test_every_type_runs_or_is_refused_by_name(name, dtype):
    gemm = Gemm(200, 72, 136, dtype=dtype)
    if has(gpu(name), dtype):
        call(gemm, gpu(name))
    else:
        with pytest.raises(ConfigError, match=dtype):
            call(gemm, gpu(name))


@pytest.mark.parametrize("name", ["h200_sxm", "a100_sxm_80gb", "t4"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_type_runs_in_every_layout(name, layout):
    for dtype in COMBINATIONS:
        if has(gpu(name), dtype):
            call(Gemm(96, 40, 72, dtype=dtype, layout=layout), gpu(name))


@pytest.mark.parametrize("dtype", COMBINATIONS)
def test_every_result_type_runs(dtype):
    for accumulator in COMBINATIONS[dtype][0]:
        for out in COMBINATIONS[dtype][1]:
            call(Gemm(200, 72, 136, dtype=dtype, acc_dtype=accumulator, out_dtype=out, l2="warm"), gpu("h200_sxm"))


@each_gpu
def test_every_family_of_every_gpu_runs(name):
    gemm = Gemm(256, 256, 4096, dtype="fp16")
    for family in families(gpu(name), gemm):
        call(gemm, gpu(name), family)


# Deep rings, many chunks, long kernels.
@pytest.mark.parametrize("clock_mhz", [100, 1000])
def test_a_slow_clock_does_not_overflow_what_sms_add_up_to(clock_mhz):
    """131072 cubed on the T4 at 100 MHz: 40 SMs for 1100 s."""
    gemm, on = Gemm(131072, 131072, 131072, dtype="fp16"), gpu("t4")
    found = run_call(gemm, ranked(gemm, on)[0], on, Options(clock_mhz=clock_mhz))
    assert found.main.sampled
    assert 0.5 < found.main.utilisation["tensor"] <= 1
    assert sum(found.main.waits.values()) == pytest.approx(1)
    assert min(found.main.waits.values()) >= 0


@pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (2, 2), (4, 2), (4, 4)])
def test_what_is_replayed_stays_within_63_bits(cluster):
    """CTAs times the longest time that the engine follows, in fs."""
    on = gpu("h200_sxm")
    plan = build_plan(Gemm(8192, 8192, 512), persistent(cluster_m=cluster[0], cluster_n=cluster[1]), on)
    bits = int(_state(build_machine(on, None, ()), plan, trace=False).scalars["bits"][0])
    assert plan.work.n_agents <= 2**bits
    assert plan.work.n_agents * plan.work.cluster_size * 2 ** (62 - bits) <= 2**63


def test_as_many_stages_as_the_ring_holds():
    one, most = (
        call(Gemm(64, 64, 4096), gpu("h200_sxm"), config=multistage(16, 16, 16, stages, warps=1)) for stages in (2, 32)
    )
    assert most.time_s < one.time_s
    with pytest.raises(ConfigError, match="stages = 33"):
        call(Gemm(64, 64, 4096), gpu("h200_sxm"), config=multistage(16, 16, 16, 33, warps=1))


def test_too_many_chunks_are_refused():
    with pytest.raises(ConfigError, match="use a larger tile"):
        call(Gemm(*[MAX_DIMENSION] * 3), gpu("h200_sxm"), config=multistage(16, 16, 16, 2, warps=1))


def test_a_kernel_beyond_the_clock_is_refused():
    """Time is 62 bits less those of the CTA number: 2,305 s here, 2,684 s asked for."""
    slow = load_gpu("t4", ["clock.base_mhz=1", "cuda_core.fp32_flops_per_clk_per_sm=1", "sm.count=1"])
    gemm = Gemm(64, 64, MAX_DIMENSION, dtype="fp32", batch=250)
    config = KernelConfig("multistage", 64, 64, 32, 2, 4, loads="ldg", mma="fma")
    with pytest.raises(ConfigError, match="use a larger tile"):
        run_call(gemm, config, slow, Options(clock_mhz=100, full=True))


@pytest.mark.small
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 200, 1), (33, 1, 65)])
def test_smallest_kernels(shape):
    call(Gemm(*shape), gpu("h200_sxm"), config=multistage(16, 64, 64, 2, warps=1, loads="ldg"))


# Memory, and what is sampled.
def test_a_full_replay_of_16384_cubed_stays_below_500_mb():
    """Peak of a whole process, from the kernel's own count (`VmHWM`): of RUSAGE_SELF a child inherits its parent's."""
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc")
    code = """
from pathlib import Path
from hwmodels import load_gpu
from sim.call import Options, run_call
from sim.schedule.plan import build_plan
from tests.kernel_runs import multistage, persistent
from workloads import Gemm
found = run_call(Gemm(16384, 16384, 16384), multistage(group=8), load_gpu("h200_sxm"), Options(full=True))
assert not found.kernels[0].sampled and found.kernels[0].n_events > 4_000_000
lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(lines["VmHWM"].split()[0])
"""
    call(Gemm(128, 128, 64), gpu("h200_sxm"))  # compiled and in the cache: the compiler's memory is not the engine's
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 500_000  # kB


def test_small_kernels_are_never_sampled():
    on = gpu("h200_sxm")
    for shape in ((4096, 4096, 4096), (1, MAX_DIMENSION, 64), (64, 64, MAX_DIMENSION)):
        assert not any(kernel.sampled for kernel in call(Gemm(*shape), on).kernels)
