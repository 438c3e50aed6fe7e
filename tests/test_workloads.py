"""What a GEMM is: exact FLOPs and bytes, layouts, alignment, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwmodels.errors import ConfigError
from workloads import Gemm
from workloads.dtypes import BYTES, COMBINATIONS
from workloads.gemm import MAX_DIMENSION

pytestmark = pytest.mark.small

COUNTING = Path(__file__).parents[1] / "docs" / "counting.md"


def test_the_article_s_layer_is_a_seventh_of_a_teraflop():
    layer = Gemm(m=1024, n=16384, k=4096)
    assert layer.flops == 137_438_953_472
    assert round(layer.flops / 1e12, 3) == 0.137
    assert round(layer.compulsory_bytes / 1e6) == 176  # megabytes, the digits of the article's "176 TFLOP"


def test_known_figures():
    gemm = Gemm(3, 5, 7, batch=2, dtype="fp8_e4m3", epilogue="residual")
    assert gemm.flops == 2 * 2 * 3 * 5 * 7
    assert (gemm.a_bytes, gemm.b_bytes, gemm.c_bytes) == (42, 70, 60)
    assert gemm.epilogue_bytes == 60
    assert gemm.compulsory_bytes == 232
    assert gemm.epilogue_flops == 30
    assert gemm.arithmetic_intensity == 420 / 232


def test_bias_is_one_vector_for_the_batch():
    assert Gemm(64, 48, 32, batch=10, epilogue="bias").epilogue_bytes == 48 * 2
    assert Gemm(64, 48, 32, epilogue="none").epilogue_bytes == 0
    assert Gemm(64, 48, 32, batch=10, epilogue="bias_silu").epilogue_flops == 4 * 10 * 64 * 48


@pytest.mark.parametrize(
    ("dtype", "accumulator", "result"),
    [
        ("fp64", "fp64", "fp64"),
        ("fp32", "fp32", "fp32"),
        ("tf32", "fp32", "fp32"),
        ("fp16", "fp32", "fp16"),
        ("bf16", "fp32", "bf16"),
        ("fp8_e4m3", "fp32", "bf16"),
        ("fp8_e5m2", "fp32", "bf16"),
        ("int8", "int32", "int32"),
    ],
)
def test_default_types(dtype, accumulator, result):
    gemm = Gemm(8, 8, 8, dtype=dtype)
    assert (gemm.accumulator_dtype, gemm.result_dtype) == (accumulator, result)
    assert gemm.c_bytes == 64 * BYTES[result]


def test_every_listed_combination_is_accepted_and_no_other():
    accepted = 0
    for dtype in COMBINATIONS:
        for acc in BYTES:
            for out in BYTES:
                try:
                    Gemm(1, 1, 1, dtype=dtype, acc_dtype=acc, out_dtype=out)
                except ConfigError:
                    continue
                accepted += 1
                assert acc in COMBINATIONS[dtype][0]
                assert out in COMBINATIONS[dtype][1]
    assert accepted == 3 + 2 * 2 + 2 + 2 * 2 * 5 + 5


@pytest.mark.parametrize(
    ("layout", "a_row", "b_row"), [("tn", 7, 7), ("nn", 7, 5), ("nt", 3, 5), ("tt", 3, 7)]
)  # k = 7, n = 5, m = 3
def test_layouts_say_which_side_is_contiguous(layout, a_row, b_row):
    gemm = Gemm(3, 5, 7, layout=layout)
    assert (gemm.leading("a"), gemm.leading("b"), gemm.leading("c")) == (a_row, b_row, 5)
    assert (gemm.a_contiguous_bytes, gemm.b_contiguous_bytes) == (2 * a_row, 2 * b_row)


def test_a_single_column_is_contiguous_along_k_in_every_layout():
    assert Gemm(1, 64, 512, layout="tt").k_is_contiguous("a")
    assert Gemm(64, 1, 512, layout="nn").k_is_contiguous("b")
    assert not Gemm(1, 64, 512, layout="tt", lda=8).k_is_contiguous("a")


@pytest.mark.parametrize(
    ("k", "dtype", "aligned"),
    [(101, "bf16", 2), (102, "bf16", 4), (1000, "bf16", 16), (4096, "bf16", 128), (96, "fp32", 128), (97, "int8", 1)],
)
def test_alignment_is_that_of_the_row_pitch(k, dtype, aligned):
    assert Gemm(64, 64, k, dtype=dtype).alignment_bytes("a") == aligned


def test_leading_dimension_changes_memory_not_traffic():
    packed, padded = Gemm(100, 100, 100), Gemm(100, 100, 100, lda=128)
    assert packed.compulsory_bytes == padded.compulsory_bytes
    assert padded.allocation_bytes("a") == 2 * 100 * 128
    assert padded.alignment_bytes("a") == 128


sizes = st.integers(1, MAX_DIMENSION)


@given(
    sizes,
    sizes,
    sizes,
    st.integers(1, 65536),
    st.sampled_from(sorted(COMBINATIONS)),
    st.sampled_from(["tn", "nn", "nt", "tt"]),
)
def test_counts_are_exact_integers_and_do_not_depend_on_layout(m, n, k, batch, dtype, layout):
    gemm = Gemm(m, n, k, batch, dtype, layout=layout)
    assert gemm.flops == 2 * batch * m * n * k
    assert gemm.compulsory_bytes == batch * (BYTES[dtype] * k * (m + n) + BYTES[gemm.result_dtype] * m * n)
    assert all(type(value) is int for value in (gemm.flops, gemm.a_bytes, gemm.b_bytes, gemm.c_bytes))
    assert math.isclose(gemm.arithmetic_intensity * gemm.compulsory_bytes, gemm.flops, rel_tol=1e-12)
    for operand, size in (("a", gemm.a_bytes), ("b", gemm.b_bytes), ("c", gemm.c_bytes)):
        assert gemm.allocation_bytes(operand) == size
        assert gemm.leading(operand) * gemm.element_bytes(operand) % gemm.alignment_bytes(operand) == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("m", 0),
        ("n", -1),
        ("k", 262145),
        ("m", True),
        ("k", 64.0),
        ("n", "64"),
        ("m", None),
        ("m", float("nan")),
        ("batch", 0),
        ("batch", 65537),
        ("dtype", "fp4"),
        ("dtype", None),
        ("dtype", ["bf16"]),
        ("acc_dtype", "bf16"),
        ("out_dtype", "int8"),
        ("layout", "TN"),
        ("lda", 63),
        ("ldb", 0),
        ("ldc", 2**31),
        ("ldc", 64.0),
        ("epilogue", "relu"),
        ("l2", "lukewarm"),
        ("inputs", "host"),
        ("weights", "disk"),
        ("result", "pinned"),
    ],
)
def test_bad_values_are_refused_in_one_line_by_name_and_range(field, value):
    with pytest.raises(ConfigError) as refused:
        Gemm(**{"m": 64, "n": 64, "k": 64, field: value})
    message = str(refused.value)
    assert message.startswith(f"{field} = {value!r}: must be ")
    assert "\n" not in message


def test_unknown_operand_is_refused():
    with pytest.raises(ConfigError, match="operand = 'd'"):
        Gemm(1, 1, 1).leading("d")


def test_description_holds_every_field_resolved_and_is_json():
    gemm = Gemm(16, 32, 64, dtype="int8", layout="nt", epilogue="bias")
    described = gemm.describe()
    assert set(described) >= {field.name for field in dataclasses.fields(gemm)}
    assert described == json.loads(json.dumps(described))
    assert described["acc_dtype"] == described["out_dtype"] == "int32"
    assert (described["lda"], described["ldb"], described["ldc"]) == (16, 32, 32)
    for name in ("flops", "compulsory_bytes", "arithmetic_intensity"):
        assert described[name] == getattr(gemm, name)
    assert None not in described.values()


def test_frozen_and_hashable():
    gemm = Gemm(1, 2, 3)
    assert gemm == Gemm(1, 2, 3)
    assert hash(gemm) == hash(Gemm(1, 2, 3))
    with pytest.raises(dataclasses.FrozenInstanceError):
        gemm.m = 2


def test_code_blocks_of_the_counting_page_run(capsys):
    blocks = re.findall(r"```python\n(.*?)```", COUNTING.read_text("utf-8"), re.DOTALL)
    assert len(blocks) >= 6
    exec(compile("\n".join(blocks), str(COUNTING), "exec"), {})  # the page is ours
    assert "0.137438953472 TFLOP" in capsys.readouterr().out
