"""Layout letters of kernel names: one rule, for every measured row that has them."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from hwmodels import measured_path
from hwmodels.errors import ConfigError
from sim.schedule.names import parse_kernel_name
from sim.schedule.operands import layout_agrees
from sim.validation.replay import gemm_of
from sim.validation.tables import read_table
from workloads import Gemm
from workloads.gemm import LAYOUTS

TABLES = {
    ("h200_sxm", "gemm"): 943,
    ("h200_sxm", "counters"): 337,
    ("h200_sxm_further", "gemm_more"): 291,
    ("h200_sxm_further", "counters_more"): 107,
    ("h200_sxm_further", "gemm_short"): 120,
    ("h200_sxm_further", "gemm_again"): 941,
    ("h200_sxm_further", "gemm_spaced"): 15,
    ("a100_pcie_40gb", "event_gemm"): 240,
    ("t4", "event_gemm"): 252,
    ("v100_pcie_32gb", "event_gemm"): 309,
}
"""Table -> rows whose kernel names have letters; the others are gemv, gemmSN, dot, magma and Triton's."""
LETTERS = re.compile(
    r"nvjet_\w+_([NT]{2})[NT]\b|cutlass_\d\d_\w+?_([nt]{2})_align|xmma_gemm_\w+?_([nt]{2})_[nt]_tile|sgemm_\w+_([nt]{2})\b"
)


@pytest.mark.parametrize("table", TABLES, ids="/".join)
def test_every_measured_name_has_the_layout_of_its_row(table: tuple[str, str]) -> None:
    rows = [row.inputs for row in read_table(measured_path(*table)).rows]
    found = [(LETTERS.search(inputs.kernel), gemm_of(inputs)) for inputs in rows]
    stated = [("".join(filter(None, match.groups())), gemm) for match, gemm in found if match]
    assert len(stated) == TABLES[table]
    assert all(layout_agrees(letters, gemm) for letters, gemm in stated)
    wide = [(letters, gemm) for letters, gemm in stated if 1 not in (gemm.m, gemm.n, gemm.k)]
    assert all(letters.lower() == gemm.layout for letters, gemm in wide)
    others = [(letters, replace(gemm, layout=other)) for letters, gemm in wide for other in LAYOUTS]
    assert sum(layout_agrees(letters, gemm) for letters, gemm in others) == len(wide)  # no other layout will do


NAMES = (
    "nvjet_sm90_tst_64x64_64x4_1x1_h_bz_{0}N",
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x64_32x4_{1}_align2>(T1::Params)",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_{1}_n_tilesize64x256x64_cgasize1x1x1_warpgroupsize1x1x1_aligna4_alignc4_execute",
    "ampere_bf16_s1688gemm_bf16_128x128_ldg8_f2f_stages_32x1_{1}",
)


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name[:12])
def test_another_layout_than_the_name_s_is_refused(name: str) -> None:
    for stated in LAYOUTS:
        full = name.format(stated.upper(), stated)
        for layout in LAYOUTS:
            gemm = Gemm(640, 640, 640, layout=layout)
            if layout == stated:
                parse_kernel_name(full, gemm)
                continue
            with pytest.raises(ConfigError, match=f"kernel name .*: for layout {stated}, but layout = '{layout}'"):
                parse_kernel_name(full, gemm)


def test_a_packed_vector_has_no_layout() -> None:
    """Two measured rows of m = 1 in tt run a TN kernel; with a pitch, the same A is another memory."""
    name = "nvjet_sm90_tst_256x8_64x6_2x1_v_bz_TNT"
    parse_kernel_name(name, Gemm(1, 57344, 8192, layout="tt"))
    parse_kernel_name(name.replace("TNT", "TTT"), Gemm(1, 57344, 8192))
    parse_kernel_name(name, Gemm(64, 64, 1, layout="nt"))
    with pytest.raises(ConfigError, match="for layout tn, but layout = 'tt'"):
        parse_kernel_name(name, Gemm(1, 57344, 8192, layout="tt", lda=8))
