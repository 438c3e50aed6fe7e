"""Compressed programs of whole models: exact FLOPs and bytes, gains within physical limits, refusals."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hwmodels.catalog import load_gpu
from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.call import Options
from sim.llm import How, LlmResult, simulate_llm
from sim.operation import Kernels
from sim.schedule.choose import complete
from workloads import Gemm, load_model
from workloads.compress import w8a8
from workloads.execution import Execution
from workloads.gemm import ROW_STATISTICS_BYTES, STATISTICS_COLUMNS
from workloads.llm import Llm
from workloads.operations import Operation, Step
from workloads.stream import Stream
from workloads.training import Training
from workloads.weights import weight_bytes

FORMS: dict[str, dict[str, Any]] = {
    "dense": {},
    "int8": {"weights": "int8"},
    "int8 in groups": {"weights": "int8", "weight_group": 64},
    "int4": {"weights": "int4"},
    "2:4": {"weights": "2:4"},
    "fp8": {"matmul_dtype": "fp8_e4m3"},
    "int8 products": {"matmul_dtype": "int8"},
    "fp8 of 2:4": {"weights": "2:4", "matmul_dtype": "fp8_e4m3"},
    "head too": {"weights": "int4", "compress_head": True},
    "adapters": {"lora_rank": 16},
    "adapters beside int4": {"weights": "int4", "lora_rank": 8, "lora_adapters": 4},
    "factors": {"low_rank": 256},
}
LAYERS = 2


def h200() -> Gpu:
    return load_gpu("h200_sxm")


def asked(phase: str = "decode", model: str = "llama3-8b", batch: int = 4, **execution: Any) -> Llm:
    """A model of two layers."""
    few = load_model(f"{model}-{LAYERS}layers")
    return Llm(few, phase, batch, tokens=512, context=512, execution=Execution(**execution))


def products(step: Step) -> list[Gemm]:
    return [each.work for each in step.operations if isinstance(each.work, Gemm)]


def named(step: Step, name: str) -> Operation:
    return next(each for each in step.operations if each.name == name)


def ran(gpu: Gpu | None = None, **what: Any) -> LlmResult:
    return simulate_llm(asked(**what), gpu or h200(), how=How(launch="graph"))


def hbm_bytes(result: LlmResult) -> int:
    return sum(sum(kernel.bytes["hbm"].values()) for each in result.shown.ran for kernel in each.kernels)


# Exact counts.
@pytest.mark.small
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("fusion", ["none", "epilogue", "full"])
def test_weights_of_a_step_are_those_of_the_memory_plan(form: str, fusion: str) -> None:
    request = asked(fusion=fusion, **FORMS[form])
    planned = weight_bytes(request.model, request.weight_format)
    assert request.step().bytes_of("weight") == sum(planned.values()) == request.memory().largest("weights")


@pytest.mark.small
@pytest.mark.parametrize(
    "form", [form for form in FORMS if form not in ("adapters", "adapters beside int4", "factors")]
)
def test_formats_keep_the_flops(form: str) -> None:
    assert asked(**FORMS[form]).step().model_flops == asked().step().model_flops


@pytest.mark.small
def test_bytes_of_llama() -> None:
    """218,103,808 weights in linear layers of each layer, of 43,008 outputs."""
    linear, outputs, plain = 218_103_808, 43_008, asked().step().bytes_of("weight")
    rest = plain - 2 * LAYERS * linear
    expected = {
        "int8": linear + 2 * outputs,
        "int8 in groups": linear + 2 * linear // 64,
        "int4": linear // 2 + 4 * linear // 128,
        "2:4": linear + linear // 8,
        "fp8": linear + 4 * outputs,
        "int8 products": linear + 4 * outputs,
        "fp8 of 2:4": linear // 2 + linear // 8 + 4 * outputs,
    }
    for form, each in expected.items():
        assert asked(**FORMS[form]).step().bytes_of("weight") == rest + LAYERS * each, form


@pytest.mark.small
def test_adapters_add_their_flops_and_factors_have_theirs() -> None:
    model, m = load_model("llama3-8b"), 4
    sides = [(model.d_model, model.q_width), (model.d_model, model.kv_width), (model.d_model, model.kv_width)]
    sides += [(model.q_width, model.d_model), *[(model.d_model, model.d_ff)] * 2, (model.d_ff, model.d_model)]
    plain, dense = asked().step().model_flops, sum(2 * m * n * k for n, k in sides)
    for fusion in ("none", "full"):
        thin = [2 * m * 16 * (n + k) for n, k in sides]
        assert asked(fusion=fusion, lora_rank=16).step().model_flops == plain + LAYERS * sum(thin)
        assert asked(fusion=fusion, low_rank=16).step().model_flops == plain + LAYERS * (sum(thin) - dense)


@pytest.mark.small
def test_several_adapters_share_the_rows() -> None:
    step = asked(batch=8, lora_rank=16, lora_adapters=4).step()
    down = named(step, "q: adapter down").work
    assert isinstance(down, Gemm)
    assert (down.batch, down.m, down.n, down.k) == (4, 2, 16, 4096)
    names = [each.name for each in step.operations if each.name.startswith("q")]
    assert names[:4] == ["q", "q: adapter down", "q: adapter up", "q: add"]


# Quantised activations.
@pytest.mark.small
def test_eager_layers_quantise_for_themselves() -> None:
    """Seven linear layers; an int8 product leaves int32, which a kernel rescales."""
    step = asked(matmul_dtype="int8").step()
    quantised = [each for each in step.operations if isinstance(each.work, Stream) and each.work.op == "quantize"]
    assert len(quantised) == 7 * LAYERS
    assert sum(each.name.endswith(": rescale") for each in step.operations) == 7 * LAYERS
    q = named(step, "q")
    assert (dict(q.reads)["a"], q.writes) == ("y.quantised", ("q.accumulated",))


@pytest.mark.small
def test_fused_programs_quantise_once_and_in_the_kernel_before() -> None:
    shared = [each.name for each in asked(fusion="epilogue", matmul_dtype="fp8_e4m3").step().operations]
    assert [name for name in shared if "quantise" in name] == LAYERS * [
        "q: quantise", "out: quantise", "gate: quantise", "down: quantise"
    ]  # fmt: skip
    full = asked(fusion="full", matmul_dtype="fp8_e4m3").step()
    assert [each.name for each in full.operations if "quantise" in each.name] == LAYERS * ["out: quantise"]
    norm = named(full, "add + ffn norm")
    assert norm.writes == ("x", "y.quantised")
    width = 4096
    assert isinstance(norm.work, Stream)
    assert norm.work.write_bytes == 4 * width * (2 + 1)
    assert dict(named(full, "gate_up").reads)["a"] == "y.quantised"
    assert full.tensors["y.quantised"].n_bytes == 4 * width


@pytest.mark.small
def test_every_operand_was_written_before_it_is_read() -> None:
    for model in ("llama3-8b", "gpt2", "qwen2.5-7b", "mixtral-8x7b", "phi3-mini"):
        for fusion in ("none", "epilogue", "full"):
            for form in ("fp8", "int8 products", *(("adapters", "factors") if model != "mixtral-8x7b" else ())):
                step = asked(model=model, fusion=fusion, **FORMS[form]).step()
                there = {t.name for t in step.tensors.values() if t.kind != "activation"} | {"ffn.out", "rows"}
                for each in step.operations:
                    missing = {name for _, name in each.reads} - there
                    assert not missing, (model, fusion, form, each.name)
                    there |= set(each.writes)


@pytest.mark.small
def test_integer_products_are_rescaled_where_programs_fuse() -> None:
    step = asked(fusion="epilogue", matmul_dtype="int8").step()
    assert not any("rescale" in each.name for each in step.operations)
    assert {work.result_dtype for work in products(step) if work.dtype == "int8"} == {"bf16"}
    assert isinstance(w8a8(Gemm(1, 8, 8), "int8")[1], Gemm)


# The head.
@pytest.mark.small
def test_a_fused_head_writes_statistics_instead_of_logits() -> None:
    step = asked(fusion="full").step()
    head, pick = step.operations[-2:]
    tiles = -(-128256 // STATISTICS_COLUMNS)
    assert isinstance(head.work, Gemm)
    assert (head.work.epilogue, head.work.c_bytes) == ("row_stats", 4 * tiles * ROW_STATISTICS_BYTES)
    assert pick.reads == (("x", "statistics"),)
    assert pick.work.compulsory_bytes == head.work.c_bytes + 4 * 8
    assert {"logits", "probabilities"}.isdisjoint(step.tensors)
    plan = asked(fusion="full").memory()
    assert plan.largest("logits") == head.work.c_bytes < asked().memory().largest("logits")


@pytest.mark.small
def test_losses_need_logits() -> None:
    step = asked("training", fusion="full").step()
    assert not any(work.epilogue == "row_stats" for work in products(step))


def test_statistics_are_written_by_every_tile() -> None:
    gpu, gemm = h200(), Gemm(256, 4096, 1024, epilogue="row_stats")
    for block_n in (64, 128):
        config = complete(gemm, gpu, family="multistage", block_m=64, block_n=block_n, block_k=64)
        kernels = Kernels(gpu, Options())
        kernels.choose(gemm, config)
        written = sum(kernel.bytes["l2"]["write"] for kernel in kernels.of(gemm))
        assert written == 256 * (4096 // block_n) * ROW_STATISTICS_BYTES
    with pytest.raises(ConfigError, match="split_k = 2"):
        complete(gemm, gpu, family="split_k", split_k=2, block_m=64, block_n=64, block_k=64)
    for extra in ({"ldc": 4096}, {"out_dtype": "bf16"}):
        with pytest.raises(ConfigError, match="row_stats"):
            dataclasses.replace(gemm, **extra)


def test_a_misaligned_vocabulary_does_not_hurt_a_head_without_logits() -> None:
    gpu = h200()
    times = {
        e: sum(k.time_s for k in Kernels(gpu, Options()).of(Gemm(1, 50257, 768, epilogue=e)))
        for e in ("none", "row_stats")
    }
    assert times["row_stats"] < times["none"]


# Physical limits.
@pytest.mark.parametrize("form", ["int8", "int4", "2:4", "fp8", "int8 products"])
def test_decoding_gains_no_more_than_its_bytes(form: str) -> None:
    plain, packed = ran(batch=1, fusion="full"), ran(batch=1, fusion="full", **FORMS[form])
    ratio = hbm_bytes(plain) / hbm_bytes(packed)
    assert 1.0 < plain.shown.kernels_s / packed.shown.kernels_s <= ratio


def test_fp8_gains_at_most_twice_in_a_prefill() -> None:
    plain, fp8 = (ran(phase="prefill", fusion="full", **form) for form in ({}, FORMS["fp8"]))
    assert 1.2 < plain.shown.kernels_s / fp8.shown.kernels_s <= 2.0


def test_weights_alone_gain_nothing_in_a_prefill() -> None:
    plain, int4 = (ran(phase="prefill", batch=8, fusion="full", **form) for form in ({}, FORMS["int4"]))
    assert int4.shown.kernels_s >= plain.shown.kernels_s


def test_adapters_cost_time_and_factors_save_it() -> None:
    plain, adapted, factors = (ran(fusion="full", **form) for form in ({}, FORMS["adapters"], FORMS["factors"]))
    assert factors.shown.kernels_s < plain.shown.kernels_s < adapted.shown.kernels_s


# What fits, and advice.
def test_what_would_fit_and_what_would_help_names_precision() -> None:
    big = Llm(load_model("llama3-70b"), "decode", 8, context=4096)
    with pytest.raises(ConfigError, match=r"fits with .*--weights int8, or --weights int4, or --matmul-dtype fp8_e4m3"):
        simulate_llm(big, load_gpu("h200_sxm"))
    with pytest.raises(ConfigError) as refusal:
        simulate_llm(dataclasses.replace(big, batch=1), load_gpu("a100_sxm_80gb"))
    assert "--weights int8" in str(refusal.value)
    assert "fp8_e4m3" not in str(refusal.value).partition("--weights")[2]
    advice = simulate_llm(asked(fusion="full", batch=1), h200(), how=How(launch="graph"), advise=True).advice
    assert any("int4" in each["change"] for each in advice)


# Refusals.
@pytest.mark.parametrize(
    ("gpu", "form", "reason"),
    [("a100_sxm_80gb", "fp8", "fp8"), ("v100_sxm2_32gb", "2:4", "no sparse tensor cores")],
)
def test_what_the_gpu_lacks_is_refused(gpu: str, form: str, reason: str) -> None:
    dtype = "fp16"
    with pytest.raises(ConfigError, match=reason):
        ran(load_gpu(gpu), dtype=dtype, **FORMS[form])


@pytest.mark.small
@pytest.mark.parametrize(
    ("execution", "reason"),
    [
        ({"weights": "int5"}, "weights = 'int5'"),
        ({"weights": "int4", "dtype": "fp32"}, "dtype = 'fp32'"),
        ({"weight_group": 128}, "weight_group = 128: only for"),
        ({"weights": "int4", "weight_group": 0}, "weight_group = 0"),
        ({"weights": "int4", "matmul_dtype": "int8"}, "not with int4 weights"),
        ({"matmul_dtype": "bf16"}, "matmul_dtype = 'bf16'"),
        ({"matmul_dtype": "int8", "dtype": "fp32"}, "dtype = 'fp32'"),
        ({"compress_head": True}, "compress_head = True: needs"),
        ({"compress_head": 1, "weights": "int4"}, "compress_head = 1"),
        ({"lora_rank": 0}, "lora_rank = 0"),
        ({"lora_adapters": 2}, "needs lora_rank"),
        ({"low_rank": 8, "weights": "int4"}, "low_rank = 8: alone"),
        ({"low_rank": 8, "lora_rank": 8}, "low_rank = 8: alone"),
        ({"program": "measured", "weights": "int8"}, "must be eager"),
    ],
)
def test_contradictions_are_refused(execution: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Execution(**execution)


@pytest.mark.small
def test_what_a_model_does_not_take_is_refused() -> None:
    for model, execution, reason in (
        ("gpt2", {"weights": "int4", "compress_head": True}, "is its embedding"),
        ("mixtral-8x7b", {"lora_rank": 8}, "mixtures of experts"),
        ("llama3-8b", {"lora_rank": 8, "lora_adapters": 5}, "adapters = 5"),
        ("llama3-8b", {"low_rank": 1025}, "rank = 1025"),
        ("llama3-8b", {"weights": "int4", "weight_group": 96}, "weight_group = 96: must divide"),
    ):
        with pytest.raises(ConfigError, match=reason):
            asked(model=model, **execution).step()
    with pytest.raises(ConfigError, match="phase = 'training'"):
        Llm(load_model("gpt2"), "training", tokens=64, execution=Execution(weights="int8"), training=Training())
