"""What compression makes of a layer: exact FLOPs and bytes of each product and stream."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwmodels import load_gpu
from hwmodels.errors import ConfigError
from sim.sparse import sparse_time_s
from workloads import Gemm
from workloads.compress import (
    SparseProduct,
    break_even_rank,
    lora,
    low_rank,
    pruned,
    quantized,
    sparse_24,
    unstructured,
    w8a8,
)
from workloads.stream import Stream

pytestmark = pytest.mark.small

M, N, K = 48, 640, 512
LAYER = Gemm(M, N, K)


def products(operations: tuple[Gemm | Stream, ...]) -> list[Gemm]:
    return [each for each in operations if isinstance(each, Gemm)]


def test_quantised_weights_keep_the_flops() -> None:
    int4 = quantized(LAYER, "int4", 64)
    assert int4.flops == LAYER.flops == 2 * M * N * K
    assert int4.b_bytes == N * K // 2 + N * (K // 64) * 4
    assert quantized(LAYER, "int8").b_bytes == N * K + N * 2
    assert (int4.a_bytes, int4.c_bytes) == (LAYER.a_bytes, LAYER.c_bytes)
    with pytest.raises(ConfigError, match="form = 'dense'"):
        quantized(LAYER, "dense")


def test_fp8_takes_a_quantising_stream_and_rescales_in_the_epilogue() -> None:
    quantise, product = w8a8(Gemm(M, N, K, epilogue="bias_silu"), "fp8_e4m3")
    assert quantise == Stream("quantize", M, K, "bf16", out_dtype="fp8_e4m3")
    assert quantise.compulsory_bytes == 2 * M * K + 4 * M + M * K
    assert isinstance(product, Gemm)
    assert (product.a_bytes, product.b_bytes, product.c_bytes) == (M * K, N * K, 2 * M * N)
    assert product.epilogue == "bias_silu"


def test_int8_is_rescaled_by_a_kernel_of_its_own_before_the_epilogue() -> None:
    operations = w8a8(Gemm(M, N, K, batch=2, epilogue="bias_gelu"), "int8")
    _, product, rescale, bias, gelu = operations
    assert isinstance(product, Gemm)
    assert (product.b_bytes, product.c_bytes, product.epilogue) == (2 * N * K, 2 * 4 * M * N, "none")
    assert rescale.compulsory_bytes == 2 * M * N * 4 + N * 4 + 2 * M * 4 + 2 * M * N * 2
    assert [each.op for each in (bias, gelu) if isinstance(each, Stream)] == ["bias", "gelu"]
    with pytest.raises(ConfigError, match="dtype"):
        w8a8(Gemm(M, N, K, dtype="fp32"), "int8")
    with pytest.raises(ConfigError, match="dtype = 'bf16'"):
        w8a8(LAYER, "bf16")


def test_two_of_four() -> None:
    sparse = sparse_24(LAYER)
    assert sparse.b_bytes == N * K + N * K // 8
    assert 2 * sparse.executed_flops == sparse.flops == LAYER.flops


def test_structured_pruning_leaves_a_smaller_dense_product() -> None:
    small = pruned(Gemm(M, N, K, ldb=1024), 320, 256)
    assert (small.flops, small.b_bytes, small.a_bytes) == (2 * M * 320 * 256, 2 * 320 * 256, 2 * M * 256)
    assert pruned(LAYER, N, K) == LAYER
    for keep_n, keep_k in ((0, K), (N + 1, K), (N, 0), (N, K + 1)):
        with pytest.raises(ConfigError, match="keep_"):
            pruned(LAYER, keep_n, keep_k)


@given(st.integers(1, 512))
def test_low_rank_factors(rank: int) -> None:
    first, second = low_rank(Gemm(M, N, K, epilogue="bias"), rank)
    assert first.flops + second.flops == 2 * M * rank * (N + K)
    assert first.b_bytes + second.b_bytes == 2 * rank * (N + K)
    assert first.c_bytes == second.a_bytes == 2 * M * rank
    assert (first.epilogue, second.epilogue) == ("none", "bias")
    assert (first.flops + second.flops < LAYER.flops) == (rank < break_even_rank(LAYER))


def test_rank_and_format_are_checked() -> None:
    for rank in (0, 513):
        with pytest.raises(ConfigError, match="rank"):
            low_rank(LAYER, rank)
    with pytest.raises(ConfigError, match="weights_format"):
        low_rank(quantized(LAYER, "int8"), 16)


def test_an_adapter_adds_two_thin_products_and_an_addition() -> None:
    own, down, up, add = lora(LAYER, 16)
    assert own == LAYER
    assert (down.flops, up.flops) == (2 * M * 16 * K, 2 * M * 16 * N)
    assert add.compulsory_bytes == 3 * 2 * M * N
    assert lora(LAYER, 16, merged=True) == (LAYER,)


def test_adapters_share_the_rows_and_come_before_the_epilogue() -> None:
    own, down, up, add, bias, silu = lora(Gemm(M, N, K, epilogue="bias_silu"), 8, adapters=6)
    assert isinstance(own, Gemm)
    assert isinstance(down, Gemm)
    assert isinstance(up, Gemm)
    assert own.epilogue == "none"
    assert (down.batch, down.m, up.batch, up.m) == (6, 8, 6, 8)
    assert down.b_bytes + up.b_bytes == 6 * 2 * 8 * (N + K)
    assert [each.op for each in (add, bias, silu) if isinstance(each, Stream)] == ["add", "bias", "silu"]
    assert sum(each.flops for each in products(lora(LAYER, 8, adapters=5))) >= LAYER.flops + 2 * M * 8 * (N + K)


def test_adapters_are_checked() -> None:
    for keywords in ({"adapters": 0}, {"adapters": M + 1}, {"adapters": 2, "merged": True}):
        with pytest.raises(ConfigError, match="adapters"):
            lora(LAYER, 8, **keywords)  # type: ignore[arg-type]


def test_a_quantised_base_with_an_adapter() -> None:
    own, down, *_ = lora(quantized(LAYER, "int4", 128), 16)
    assert isinstance(own, Gemm)
    assert isinstance(down, Gemm)
    assert (own.weights_format, down.weights_format) == ("int4", "dense")


# Unstructured sparsity.
@given(st.integers(0, N * K))
def test_csr_counts(kept: int) -> None:
    work = SparseProduct(M, N, K, kept)
    assert work.flops == 2 * M * kept
    assert work.b_bytes == kept * (2 + 4) + 4 * (N + 1)
    assert work.compulsory_bytes == 2 * M * K + work.b_bytes + 2 * M * N
    assert work.gathered_bytes == 2 * M * kept


def test_csr_weights_are_larger_than_dense_ones_from_a_third_on() -> None:
    assert unstructured(LAYER, 0.25).b_bytes < LAYER.b_bytes < unstructured(LAYER, 1 / 3).b_bytes + 1
    assert unstructured(LAYER, 1.0).flops == LAYER.flops


@pytest.mark.parametrize("density", [-0.1, 1.1, float("nan"), True, "half"])
def test_densities_are_checked(density: object) -> None:
    with pytest.raises(ConfigError, match="density"):
        unstructured(LAYER, density)  # type: ignore[arg-type]


def test_only_plain_products_are_left_out_of() -> None:
    for gemm in (sparse_24(LAYER), Gemm(M, N, K, batch=2), Gemm(M, N, K, epilogue="bias")):
        with pytest.raises(ConfigError, match="dense product"):
            unstructured(gemm, 0.5)


def test_sparse_products_take_longer_with_more_weights() -> None:
    gpu = load_gpu("h200_sxm")
    times = [sparse_time_s(unstructured(Gemm(64, 4096, 4096), d), gpu) for d in (0.0, 0.01, 0.1, 0.5, 1.0)]
    assert times == sorted(times)
    assert times[0] >= gpu.kernel.floor_us * 1e-6
