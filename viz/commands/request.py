"""From the words of a command line to what `sim.simulate` takes; contradicting options are refused by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hwmodels.catalog import load_gpu
from hwmodels.errors import ConfigError
from sim.program import LAUNCH_MODES
from sim.schedule.config import FAMILIES
from viz.commands.options import GemmOptions, ProductOptions
from viz.commands.values import choice, extents, integer, mhz, optional_integer
from workloads.gemm import DATA, MAX_BATCH, MAX_DIMENSION, MAX_LEADING, Gemm

if TYPE_CHECKING:
    from hwmodels.spec import Gpu
    from sim.schedule.config import KernelConfig

LIMITS = {"stages": 32, "warps": 32, "group": MAX_DIMENSION, "split": MAX_DIMENSION}
MAX_BLOCK, MAX_CLUSTER = 4096, 16
"""As `sim.schedule.resources` allows, which then says what fits the GPU."""
SHAPING = ("tile", "stages", "warps", "cluster", "group", "split", "stream_k")
"""Options that give a part of the kernel configuration."""


@dataclass(frozen=True)
class Request:
    """One call of `simulate`: its two arguments and its keywords."""

    gemm: Gemm
    gpu: Gpu
    keywords: dict[str, Any]


def request(options: GemmOptions, *, trace: bool, advise: bool) -> Request:
    """Everything that is to be simulated. Raises `ConfigError` for the first thing that is wrong."""
    refuse_contradictions(options)
    gemm = workload(options, inputs=options.inputs, weights=options.weights, result=options.result)
    gpu = load_gpu(options.gpu, options.sets or ())
    keywords = {
        **how(options),
        "trace": trace,
        "advise": advise,
        "launch": choice("--launch", options.launch, LAUNCH_MODES),
        "stream_weights": options.stream_weights,
        **kernel(options, gemm, gpu),
    }
    return Request(gemm, gpu, keywords)


def how(options: ProductOptions) -> dict[str, Any]:
    """How kernels are simulated: keywords that `simulate` and `sim.call.Options` share. Raises `ConfigError`."""
    if options.clock is not None and options.sustained:
        raise contradiction("--clock", "sustained", "a held clock is not what power leaves")
    return {
        "clock_mhz": mhz("--clock", options.clock),
        "data": choice("--data", options.data, DATA),
        "sustained": options.sustained,
        "full": options.full,
        "without": without(options),
    }


def workload(options: ProductOptions, **places: str) -> Gemm:
    """The GEMM; `places`: where its tensors start and end. Raises `ConfigError`."""
    return Gemm(
        m=integer("M", options.m, MAX_DIMENSION),
        n=integer("N", options.n, MAX_DIMENSION),
        k=integer("K", options.k, MAX_DIMENSION),
        batch=integer("--batch", options.batch, MAX_BATCH),
        dtype=options.dtype,
        acc_dtype=options.acc_dtype,
        out_dtype=options.out_dtype,
        layout=options.layout,
        lda=optional_integer("--lda", options.lda, MAX_LEADING),
        ldb=optional_integer("--ldb", options.ldb, MAX_LEADING),
        ldc=optional_integer("--ldc", options.ldc, MAX_LEADING),
        epilogue=options.epilogue,
        l2=options.l2,
        weights_format=options.weights_format,
        weight_group=optional_integer("--weight-group", options.weight_group, MAX_DIMENSION),
        **places,
    )


def refuse_contradictions(options: GemmOptions) -> None:
    """Raise `ConfigError` where one option leaves another no say."""
    given = [name for name in (*SHAPING, "family") if getattr(options, name) not in (None, False)]
    if options.kernel_name is not None and given:
        raise contradiction("--kernel-name", given[0], "the name says it all")
    shaping = [name for name in given if name not in ("tile", "family")]
    if options.tile == "auto" and shaping:
        raise contradiction("--tile auto", shaping[0], "the whole menu is tried")
    if options.split not in (None, "1") and options.family not in (None, "split_k"):
        raise contradiction(f"--family {options.family}", "split", "only split_k cuts k into slices")
    if options.stream_k and options.family not in (None, "persistent"):
        raise contradiction(f"--family {options.family}", "stream-k", "only persistent kernels deal k-iterations out")
    if options.stream_k and options.split not in (None, "1"):
        raise contradiction(f"--split {options.split}", "stream-k", "both cut k")
    if options.stream_weights and options.weights == "hbm":
        raise contradiction("--stream-weights", "weights hbm", "there is nothing to bring in; say pinned or pageable")


def contradiction(one: str, other: str, why: str) -> ConfigError:
    """The error for two options of which one leaves the other no say."""
    return ConfigError(f"{one} with --{other.replace('_', '-')}: must be one or the other, {why} (command line)")


def without(options: ProductOptions) -> tuple[str, ...]:
    """The mechanisms to switch off. Raises `ConfigError` for a name that is none."""
    if not options.without:
        return ()
    from sim.machine import MECHANISMS

    for name in options.without:
        choice("--without", name, MECHANISMS)
    return tuple(options.without)


def kernel(options: GemmOptions, gemm: Gemm, gpu: Gpu) -> dict[str, Any]:
    """The keywords of `simulate` that say which kernel: a configuration, or how to choose one."""
    family = choice("--family", options.family, FAMILIES)
    if options.kernel_name is not None:
        from sim.schedule.names import parse_kernel_name

        return {"config": parse_kernel_name(options.kernel_name, gemm)}
    if options.tile == "auto":
        return {"family": family, "tile": "auto"}
    parts = given_parts(options)
    return {"config": _completed(options, gemm, gpu, parts)} if parts else {"family": family}


def given_parts(options: GemmOptions) -> dict[str, int]:
    """The fields of `KernelConfig` that were given."""
    fields: dict[str, tuple[int, ...] | None] = {
        "block_m block_n block_k": extents("--tile", options.tile, "BMxBNxBK", MAX_BLOCK),
        "cluster_m cluster_n": extents("--cluster", options.cluster, "CMxCN", MAX_CLUSTER),
    }
    parts = {
        name: value
        for names, values in fields.items()
        if values is not None
        for name, value in zip(names.split(), values, strict=True)
    }
    for name, high in LIMITS.items():
        value = optional_integer(f"--{name}", getattr(options, name), high)
        if value is not None:
            parts["split_k" if name == "split" else name] = value
    return {**parts, "stream_k": True} if options.stream_k else parts


def _completed(options: GemmOptions, gemm: Gemm, gpu: Gpu, parts: dict[str, int]) -> KernelConfig:
    from sim.schedule.choose import complete

    return complete(gemm, gpu, family=options.family, **parts)
