"""Which kernel configurations to simulate: the one given, the best few by an estimate, or the whole menu."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.schedule.bound import Estimator
from sim.schedule.config import FAMILIES, KernelConfig
from sim.schedule.launches import band
from sim.schedule.library import library_candidates, n_similar
from sim.schedule.menu import MOST_TMA_STAGES, cluster_slots, has_any, instruction_for, menu
from sim.schedule.resources import flops_per_clk_per_sm, occupancy
from workloads.gemm import Gemm

BEST_BY_BOUND, BEST_APART = 8, 2
"""Configurations that are simulated of a menu, unless all are; and so many more where L2 cannot keep the operands."""
TMA_BYTES = 16
TILES = ("bound", "auto", "library", "library_but_itself")
"""How a kernel is chosen; the last to judge the third by shapes it has seen."""
FIELDS = {field.name for field in dataclasses.fields(KernelConfig)}
TILE = ("block_m", "block_n", "block_k")


def default_families(gemm: Gemm, gpu: Gpu) -> tuple[str, ...]:
    """Families that a library would use: warp-specialised kernels, split or not, where TMA can load the operands and
    the menu has one that fits; else cp.async rings, split or not."""
    aligned = all(gemm.alignment_bytes(operand) >= TMA_BYTES for operand in "abc")
    tensor = flops_per_clk_per_sm("wgmma", gemm.dtype, gpu) > 0 and gemm.dtype not in ("fp64", "fp32")
    specialised = gpu.tensor.tma and aligned and tensor and has_any(gpu, "persistent", gemm)
    return ("persistent" if specialised else "multistage", "split_k")


# The menu.
def candidates(gemm: Gemm, gpu: Gpu, family: str | None, tile: str) -> tuple[tuple[KernelConfig, ...], int]:
    """The menu, best estimate first, and how many of it to simulate: `tile` "bound" for the best eight (ten where L2
    cannot keep the operands) that the simulator does not refuse, "auto" for all. "library": kernels that a library was
    seen to launch for similar shapes, and `sim.schedule.library.n_similar` of them; as "bound" where none was seen or
    can be, or `family` is given.

    Raises `ConfigError` where nothing on the menu fits.
    """
    if tile not in TILES:
        raise ConfigError(f"tile = {tile!r}: must be one of {', '.join(TILES)}")
    if tile.startswith("library") and family is None and _in_library(gemm):
        similar = library_candidates(gemm, gpu, tile == "library_but_itself")
        if similar:
            return similar, min(n_similar(gemm), len(similar))
    found = ranked(gemm, gpu, family)
    best = BEST_BY_BOUND if Estimator(gemm, gpu).fits_l2 else BEST_BY_BOUND + BEST_APART
    return found, len(found) if tile == "auto" else min(best, len(found))


def _in_library(gemm: Gemm) -> bool:
    """Whether BLAS has such products: of dense weights, and not of int8 with results that are rescaled to others."""
    return gemm.weights_format == "dense" and (gemm.dtype != "int8" or gemm.result_dtype in ("int32", "int8"))


def usual(gemm: Gemm, gpu: Gpu, family: str | None = None) -> tuple[KernelConfig, ...]:
    """The menu of a family, or of those that a library would use. Raises `ConfigError` where nothing fits."""
    found: list[KernelConfig] = []
    refused: ConfigError | None = None
    for name in (family,) if family else default_families(gemm, gpu):
        try:
            found += menu(gpu, name, gemm)
        except ConfigError as error:
            refused = refused or error
    if refused and not found:
        raise refused
    return tuple(found)


def ranked(gemm: Gemm, gpu: Gpu, family: str | None = None) -> tuple[KernelConfig, ...]:
    """The menu of a family (of the default ones, if None) by `Estimator.time_s`, ties in menu order. Where L2 cannot
    keep the operands, the best eight are followed by the best of the others for CTAs that do not keep in step."""
    found = usual(gemm, gpu, family)
    estimator = Estimator(gemm, gpu)
    order = sorted(found, key=estimator.time_s)
    if estimator.fits_l2:
        return tuple(order)
    first, seen = order[:BEST_BY_BOUND], set(order[:BEST_BY_BOUND])
    apart = sorted((c for c in found if c not in seen), key=Estimator(gemm, gpu, in_step=False).time_s)[:BEST_APART]
    return tuple(first + apart + [c for c in order if c not in seen | set(apart)])


# A configuration of which some is given.
def complete(gemm: Gemm, gpu: Gpu, family: str | None = None, **given: Any) -> KernelConfig:
    """A configuration with the fields of `given` (names of KernelConfig), the rest from the menu.

    Of all menu entries with the given fields put in: those that had most of a given tile already, of these one without
    spills and with the least estimate. Without a family, that of a library, or "multistage" where that does not fit.
    Raises `ConfigError` for unknown fields, and where nothing fits.
    """
    _check_given(family, given)
    split = given.get("split_k", 1) > 1
    usual_ones = ("persistent",) if given.get("stream_k") else (default_families(gemm, gpu)[0], "multistage")
    families = (family,) if family else ("split_k",) if split else usual_ones
    refusals = []
    for name in dict.fromkeys(families):
        try:
            return _complete(gemm, gpu, name, given)
        except ConfigError as error:
            refusals.append(error)
    raise refusals[0]


def _check_given(family: str | None, given: dict[str, Any]) -> None:
    if family is not None and family not in FAMILIES:
        raise ConfigError(f"family = {family!r}: must be one of {', '.join(FAMILIES)}")
    for name in given.keys() - FIELDS:
        raise ConfigError(f"{name}: must be a field of a kernel configuration, one of {', '.join(sorted(FIELDS))}")
    split = given.get("split_k")
    if family is not None and split is not None and (family == "split_k") != (split > 1):
        allowed = "2 or more" if family == "split_k" else "1"
        raise ConfigError(f"split_k = {split}: must be {allowed} with family = {family!r} (kernel configuration)")


def _complete(gemm: Gemm, gpu: Gpu, family: str, given: dict[str, Any]) -> KernelConfig:
    changed: dict[KernelConfig, int] = {}
    for entry in _entries(gemm, gpu, family, given):
        n_changed = sum(name in given and getattr(entry, name) != given[name] for name in TILE)
        n_changed += bool(given.get("stream_k")) and entry.pingpong
        for config in _adapted(entry, gemm, gpu, given):
            changed[config] = min(changed.get(config, n_changed), n_changed)
    estimator, fitting, refusals = Estimator(gemm, gpu), {}, {}
    for config, n_changed in changed.items():
        try:
            spills = occupancy(config, gemm, gpu).spill_bytes_per_thread > 0
            fitting[config] = (n_changed, spills, estimator.time_s(config))
        except ConfigError as error:
            refusals[config] = error
    if not fitting:
        raise refusals[min(refusals, key=changed.__getitem__)]
    return min(fitting, key=fitting.__getitem__)


def _entries(gemm: Gemm, gpu: Gpu, family: str, given: dict[str, Any]) -> tuple[KernelConfig, ...]:
    """The menu of the family; where the split is given, of the family that is split, as it may be more than pays."""
    if "split_k" not in given or family != "split_k":
        return menu(gpu, family, gemm)
    whole = menu(gpu, default_families(gemm, gpu)[0], gemm)
    return tuple(dataclasses.replace(entry, family=family) for entry in whole)


def _adapted(entry: KernelConfig, gemm: Gemm, gpu: Gpu, given: dict[str, Any]) -> Iterator[KernelConfig]:
    """A menu entry with the given fields, and what hangs on these as the menu would have it."""
    if given.get("stream_k"):
        given = {"pingpong": False, **given}
    config = dataclasses.replace(entry, **given)
    if config == entry:
        yield entry
        return
    if config.loads != "tma":
        if config.mma != "fma" and "mma" not in given:
            config = dataclasses.replace(config, mma=instruction_for(config.block_m, gemm, gpu))
        yield from _with_stages(config, gemm, gpu, given, config.stages)
        return
    if "group" not in given:
        config = dataclasses.replace(config, group=_band(config, gpu))
    most = MOST_TMA_STAGES if any(getattr(config, name) != getattr(entry, name) for name in TILE) else config.stages
    for along in (given["mma_m_along"],) if "mma_m_along" in given else ("n", "m"):
        yield from _with_stages(dataclasses.replace(config, mma_m_along=along), gemm, gpu, given, most)


def _band(config: KernelConfig, gpu: Gpu) -> int:
    sides = (config.block_n, config.block_m) if config.raster == "n" else (config.block_m, config.block_n)
    return band(cluster_slots(gpu, config.cluster_m * config.cluster_n), *sides)


def _with_stages(
    config: KernelConfig, gemm: Gemm, gpu: Gpu, given: dict[str, Any], most: int
) -> Iterator[KernelConfig]:
    """As many stages as fit, `most` at most, unless they are given; where none fit, the fewest (to be refused)."""
    if "stages" in given:
        yield config
        return
    for stages in range(most, 1, -1):
        fewer = dataclasses.replace(config, stages=stages)
        try:
            occupancy(fewer, gemm, gpu)
        except ConfigError:
            continue
        yield fewer
        return
    yield dataclasses.replace(config, stages=min(most, 2))
