"""Memory plans: weights in every format, activations against published formulas, timelines, and a measured step."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwmodels.errors import ConfigError
from tests.test_models import VARIANTS, encoder, tiny
from workloads import Model, load_model
from workloads.activations import (
    Activations,
    layer_activation_bytes,
    layer_steps,
    live_bytes,
    recomputed_activations,
    saved_activations,
)
from workloads.execution import Execution
from workloads.llm import Llm
from workloads.memory import RECIPES, MemoryPlan, Recipe, inference_plan, training_plan
from workloads.models.counts import kv_cache_bytes, layer_parameters, parameters
from workloads.training import Training
from workloads.weights import FORMATS, WeightFormat, layer_weight_bytes, weight_bytes

pytestmark = pytest.mark.small

UNFUSED = Activations(dtype="fp16", attention="unfused", dropout=True)
EVERY = [
    Activations(attention=attention, checkpointing=checkpointing, dropout=dropout, fused_activation=dropout)
    for attention in ("fused", "unfused")
    for checkpointing in ("none", "selective", "full")
    for dropout in (False, True)
]


# Weights.
def test_weights_of_each_type():
    model = load_model("llama3-8b")
    assert sum(weight_bytes(model).values()) == 2 * 8_030_261_248
    assert sum(weight_bytes(model, "fp32").values()) == 4 * 8_030_261_248
    assert layer_weight_bytes(model) == 2 * layer_parameters(model) == 2 * 218_112_000
    assert list(weight_bytes(model)) == list(parameters(model)._asdict())


def test_quantised_weights_with_their_scales():
    """Linear layers of Llama-3-8B: 218,103,808 weights a layer and 53,248 outputs."""
    model = load_model("llama3-8b")
    outside = 2 * (8_030_261_248 - 32 * 218_103_808)
    n_outputs = 4096 + 1024 + 1024 + 4096 + 14336 + 14336 + 4096
    assert sum(weight_bytes(model, "int8").values()) == outside + 32 * (218_103_808 + 2 * n_outputs)
    assert sum(weight_bytes(model, "fp8").values()) == outside + 32 * (218_103_808 + 4 * n_outputs)
    assert sum(weight_bytes(model, "int4").values()) == outside + 32 * (218_103_808 // 2 + 218_103_808 // 128 * 4)


def test_groups_and_odd_sizes_are_filled_up():
    stored = WeightFormat(bits=4, group=16, zero_bits=4)
    model = tiny(n_layers=1, d_model=21, heads=1, kv_heads=1, head_dim=3, d_ff=5, gated=False)
    n_scales = 3 * 3 * 2 + 21 * 1 + 5 * 2 + 21 * 1  # q, k, v; out; up; down
    n_bytes = 3 * 32 + 32 + 53 + 53  # 63 weights of 4 bits are 32 bytes, 105 are 53
    zeros = 3 * 3 + 11 + 5 + 11
    assert layer_weight_bytes(model, stored) == n_bytes + zeros + 2 * n_scales + 2 * 21 * 2


def test_only_an_untied_head_is_quantised():
    stored = WeightFormat(bits=8, head=True)
    untied, tied = weight_bytes(tiny(), stored), weight_bytes(tiny(tied=True), stored)
    assert untied["head"] == 101 * 24 + 101 * 2
    assert tied["embedding"] == 2 * 101 * 24
    assert weight_bytes(tiny(n_experts=4, top_k=1), stored)["router"] == 3 * 4 * 24 * 2


@pytest.mark.parametrize(
    "fields",
    [
        {"bits": 3},
        {"bits": True},
        {"group": 128},
        {"zero_bits": 4},
        {"bits": 4, "group": 0},
        {"dtype": "int8"},
        {"bits": 8, "scale_dtype": "int8"},
    ],
)
def test_impossible_formats_are_refused(fields: dict[str, Any]):
    with pytest.raises(ConfigError):
        WeightFormat(**fields)
    with pytest.raises(ConfigError, match="weights = 'int3'"):
        weight_bytes(tiny(), "int3")


# Activations that training keeps.
@pytest.mark.parametrize(("name", "batch", "seq"), [("gpt3-175b", 1, 2048), ("gpt2-xl", 4, 1024), ("gpt2", 3, 17)])
def test_korthikanti_s_formula(name: str, batch: int, seq: int):
    """Equation 2: s b h (34 + 5 a s / h); equation 6: s b h 34; table 2: 2 s b h. Statistics of norms are apart."""
    model = load_model(name)
    a, h, s, b = model.heads, model.d_model, seq, batch
    statistics = 2 * s * b * 8
    assert layer_activation_bytes(model, b, s, UNFUSED) == 34 * s * b * h + 5 * a * s * s * b + statistics
    selective = dataclasses.replace(UNFUSED, checkpointing="selective")
    assert layer_activation_bytes(model, b, s, selective) == 34 * s * b * h + statistics
    assert recomputed_activations(model, b, s, selective) == 5 * a * s * s * b
    full = dataclasses.replace(UNFUSED, checkpointing="full")
    assert layer_activation_bytes(model, b, s, full) == 2 * s * b * h


def test_fused_attention_keeps_one_number_a_row():
    model = load_model("llama2-7b")
    saved = saved_activations(model, 1, 2048, Activations())
    assert saved["attention.row_sums"] == 4 * 32 * 2048
    assert "attention.probabilities" not in saved
    without = {
        name: n_bytes for name, n_bytes in saved.items() if name not in ("attention.row_sums", "norms.statistics")
    }
    assert sum(without.values()) == 2048 * 2 * (8 * 4096 + 4 * 11008)


def test_grouped_keys_and_fused_activation_keep_less():
    wide, grouped = tiny(kv_heads=4), tiny(kv_heads=1)
    n_tokens = 2 * 16
    less = layer_activation_bytes(wide, 2, 16) - layer_activation_bytes(grouped, 2, 16)
    assert less == n_tokens * 2 * 3 * 8 * 2
    fused = Activations(fused_activation=True)
    assert layer_activation_bytes(wide, 2, 16) - layer_activation_bytes(wide, 2, 16, fused) == n_tokens * 40 * 2


def test_composed_norms_keep_fp32_copies():
    composed = Activations(fused_norms=False)
    more = layer_activation_bytes(tiny(), 2, 16, composed) - layer_activation_bytes(tiny(), 2, 16)
    assert more == 2 * 2 * 16 * 24 * (4 + 4 - 2)


def test_experts_keep_top_k_rows():
    dense, mixed = tiny(), tiny(n_experts=8, top_k=2)
    n_tokens = 16
    more = layer_activation_bytes(mixed, 1, 16) - layer_activation_bytes(dense, 1, 16)
    assert more == n_tokens * (4 * 40 * 2 + 2 * 2 * 24 * 2 + 8 * 4)


@pytest.mark.parametrize("model", VARIANTS)
def test_checkpointing_trades_what_is_kept_for_what_is_computed_again(model: Model):
    sums: dict[tuple[str, bool], set[int]] = {}
    for how in EVERY:
        kept, again = layer_activation_bytes(model, 2, 9, how), recomputed_activations(model, 2, 9, how)
        sums.setdefault((how.attention, how.dropout), set()).add(kept + again)
        assert (again == 0) == (
            how.checkpointing == "none" or (how.checkpointing, how.attention) == ("selective", "fused")
        )
    assert all(len(found) == 1 for found in sums.values())


@pytest.mark.parametrize(
    "fields",
    [{"dtype": "int8"}, {"attention": "flash"}, {"checkpointing": "some"}, {"dropout": 0.1}, {"fused_norms": None}],
)
def test_impossible_activations_are_refused(fields: dict[str, Any]):
    with pytest.raises(ConfigError):
        Activations(**fields)


# Inference.
@pytest.mark.parametrize("model", VARIANTS)
@pytest.mark.parametrize("how", [Activations(), Activations(attention="unfused", fused_activation=True)])
def test_a_layer_ends_with_its_residual_stream_alone(model: Model, how: Activations):
    """Everything that is allocated is freed, but the successor of the stream."""
    alive = {"input": 1}
    for step in layer_steps(model, 2, 5, 0, how):
        assert not alive.keys() & step.allocates.keys()
        alive |= step.allocates
        for name in step.frees:
            del alive[name]
    assert list(alive.values()) == [2 * 5 * 24 * 2]


def test_live_bytes_by_hand():
    """Bytes for each token: stream 48, normed 48, QKV 128, attended 64, gate and up 160, activated 80."""
    steps = layer_steps(tiny(), 1, 1, 0, Activations())
    assert dict(live_bytes(steps, {"input": 48})) == {
        "attention_norm": 96,
        "qkv": 48 + 48 + 128,
        "attention": 48 + 128 + 64,
        "out": 48 + 64 + 48,
        "attention_add": 48 + 48 + 48,
        "ffn_norm": 96,
        "gate_up": 48 + 48 + 160,
        "activation": 48 + 160 + 80,
        "multiply": 48 + 160 + 80 + 80,
        "down": 48 + 80 + 48,
        "ffn_add": 48 + 48 + 48,
    }


def test_decode_plan():
    model = load_model("llama3-8b")
    plan = inference_plan(model, batch=8, q_len=1, context=4095)
    assert plan.phase == "decode"
    assert plan.largest("weights") == 16_060_522_496
    assert plan.largest("kv_cache") == kv_cache_bytes(model, 8, 4096) == 4_294_967_296
    assert plan.largest("logits") == 8 * 128_256 * 6
    assert plan.peak.operation == "head"
    assert plan.peak_bytes == 16_060_522_496 + 4_294_967_296 + 8 * 128_256 * 6 + 2 * 8 * 4096 * 2
    assert len(plan.points) == 1 + 32 * 11 + 1


def test_prefill_plan():
    model = load_model("llama3-8b")
    plan = inference_plan(model, 1, 8192, weights="int4", kv_dtype="fp8_e4m3", cache_tokens=8192, workspace_bytes=1000)
    assert plan.phase == "prefill"
    assert plan.largest("kv_cache") == 8192 * 65_536
    assert plan.largest("activations") == 8192 * 2 * (4096 + 4 * 14336)
    assert plan.peak.operation == "layer 0 multiply"
    assert plan.peak.parts["workspace"] == 1000
    assert plan.largest("logits") == 128_256 * 6
    every = inference_plan(model, 1, 8192, last_only=False)
    assert every.largest("logits") == 8192 * 128_256 * 6


def test_unfused_attention_holds_its_matrices():
    model = load_model("gpt2")
    plan = inference_plan(model, 4, 1024, how=Activations(attention="unfused"))
    assert plan.largest("activations") == 2 * (4 * 1024 * (768 + 3 * 768) + 2 * 4 * 12 * 1024 * 1024)


def test_an_encoder_has_no_cache():
    plan = inference_plan(load_model("bert-base"), 8, 512)
    assert plan.largest("kv_cache") == plan.largest("logits") == 0
    assert inference_plan(encoder(), 2, 4).largest("activations") > 0


def test_windows_bound_the_cache():
    mistral = load_model("mistral-7b")
    assert inference_plan(mistral, 1, 1, 32767).largest("kv_cache") == 4096 * 131_072


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"batch": 0}, "batch = 0"),
        ({"q_len": 8193}, "must be at most 8192"),
        ({"context": 8192}, "must be at most 8192"),
        ({"cache_tokens": 3}, "cache_tokens = 3: must be an integer from 4"),
        ({"cache_tokens": 9000}, "must be at most 8192"),
        ({"kv_dtype": "int4"}, "kv_dtype = 'int4'"),
        ({"workspace_bytes": -1}, "workspace_bytes = -1"),
        ({"last_only": 1}, "last_only = 1"),
        ({"weights": "int2"}, "weights = 'int2'"),
    ],
)
def test_impossible_plans_are_refused(arguments: dict[str, Any], said: str):
    with pytest.raises(ConfigError) as refused:
        inference_plan(load_model("llama3-8b"), **{"batch": 1, "q_len": 4, **arguments})
    assert said in str(refused.value)


def test_beyond_the_context_if_asked():
    plan = inference_plan(load_model("llama3-8b"), 1, 1, 32768, beyond_context=True)
    assert plan.largest("kv_cache") == 32769 * 131_072


def test_a_generation_s_plan_is_its_prefill_s_and_its_last_step_s():
    model = load_model("llama3-8b")
    plan = Llm(model, "generate", batch=8, tokens=4096, new_tokens=17).memory()
    first, last = inference_plan(model, 8, 4096), inference_plan(model, 8, 1, 4096 + 15)
    assert plan.phase == "generate"
    assert [point.parts for point in plan.points] == [point.parts for point in (*first.points, *last.points)]
    assert plan.peak_bytes == first.peak_bytes > last.peak_bytes
    assert plan.largest("kv_cache") == kv_cache_bytes(model, 8, 4112)
    alone = Llm(model, "generate", batch=8, tokens=4096, new_tokens=1).memory()
    assert [point.parts for point in alone.points] == [point.parts for point in first.points]


def test_a_program_with_unfused_attention_holds_its_matrices():
    request = Llm(load_model("gpt2"), "prefill", batch=4, tokens=1024)
    more = request.memory("unfused").largest("activations")
    assert more == 2 * (4 * 1024 * (768 + 3 * 768) + 2 * 4 * 12 * 1024 * 1024) > request.memory().largest("activations")


# Training.
def test_a_program_s_training_has_its_recipe():
    model = load_model("gpt2")
    request = Llm(
        model, "training", tokens=256, execution=Execution(dtype="fp32"), training=Training(optimizer="adamw")
    )
    assert request.memory().points[-1].total == 16 * 124_439_808
    assert request.but(dtype="bf16").memory().points[-1].total == 8 * 124_439_808
    layers = request.but(layers_only=True).memory()
    assert layers.points[-1].total == 16 * 12 * layer_parameters(model)
    assert not layers.largest("logits")
    with pytest.raises(ConfigError, match="optimizer = 'adamw_mixed': must be adamw with dtype = 'fp32'"):
        request.but(optimizer="adamw_mixed")


def test_bytes_of_each_parameter():
    found = {name: recipe.bytes_per_parameter for name, recipe in RECIPES.items()}
    assert found == {"mixed": 16, "mixed_fp32_gradients": 18, "bf16": 8, "fp32": 16}
    assert Recipe(n_moments=0, master=None).bytes_per_parameter == 4


def test_the_optimizer_s_point():
    model = load_model("gpt2")
    plan = training_plan(model, 2, 1024)
    last = plan.points[-1]
    assert last.operation == "optimizer"
    assert last.total == 16 * 124_439_808
    assert [point.operation for point in plan.points[:2]] == ["forward layer 0", "forward layer 1"]
    assert len(plan.points) == 12 + 2 + 12 + 1


def test_activations_pile_up_and_shrink():
    model, how = load_model("llama2-7b-4layers"), Activations()
    plan = training_plan(model, 1, 2048, how=how)
    kept = layer_activation_bytes(model, 1, 2048, how)
    backward = [point for point in plan.points if point.operation.startswith("backward")]
    assert [point.parts["activations"] for point in backward] == [4 * kept, 3 * kept, 2 * kept, kept]
    gradients = [point.parts["gradients"] // 2 for point in backward]
    assert gradients[0] == layer_parameters(model) + 32000 * 4096 + 4096
    assert gradients[3] == parameters(model).total - 32000 * 4096
    accumulated = training_plan(model, 1, 2048, how=how, accumulated=True)
    assert {point.parts["gradients"] for point in accumulated.points} == {2 * parameters(model).total}


def test_logits_of_the_loss():
    model = load_model("llama3-8b-2layers")
    assert training_plan(model, 1, 1024).largest("logits") == 1024 * 128_256 * 8
    assert training_plan(model, 1, 1024, loss_rows=128).largest("logits") == 128 * 128_256 * 8
    assert training_plan(load_model("bert-base"), 1, 128).largest("logits") == 0


def test_checkpointing_lowers_the_peak():
    model = load_model("llama3-8b")
    peaks = [
        training_plan(model, 4, 4096, how=Activations(attention="unfused", checkpointing=name), loss_rows=1).peak_bytes
        for name in ("none", "selective", "full")
    ]
    assert peaks == sorted(peaks, reverse=True)


MEASURED_PEAK_BYTES = {
    (1, 512, "none"): 9_790_679_040,
    (1, 512, "full"): 13_028_825_088,
    (1, 2048, "none"): 13_161_214_976,
    (1, 2048, "full"): 13_161_214_976,
    (4, 2048, "none"): 17_057_660_928,
    (4, 2048, "full"): 14_560_850_944,
    (1, 8192, "none"): 17_057_660_928,
    (1, 8192, "full"): 14_560_850_944,
}
"""(batch, seq, checkpointing) -> allocator's high-water mark of four layers of Llama-2-7B on an H200, AdamW on bf16
parameters. It includes what earlier cases left: at most their weights, gradients and moments, 8 bytes a parameter."""


@pytest.mark.parametrize(("case", "measured_bytes"), MEASURED_PEAK_BYTES.items())
def test_measured_steps(case: tuple[int, int, str], measured_bytes: int):
    batch, seq, checkpointing = case
    how = Activations(checkpointing=checkpointing, fused_norms=False)
    plan = training_plan(
        load_model("llama2-7b-4layers"), batch, seq, recipe="bf16", how=how, layers_only=True, beyond_context=True
    )
    left = 8 * 4 * layer_parameters(load_model("llama2-7b"))
    assert plan.peak_bytes < measured_bytes < plan.peak_bytes + left


@pytest.mark.parametrize("fields", [{"weights": "int8"}, {"master": "bf16"}, {"n_moments": 3}])
def test_impossible_recipes_are_refused(fields: dict[str, Any]):
    with pytest.raises(ConfigError):
        Recipe(**fields)
    with pytest.raises(ConfigError, match="recipe = 'adam'"):
        training_plan(tiny(), 1, 1, recipe="adam")


# Any plan.
def check(plan: MemoryPlan) -> None:
    assert plan.peak_bytes == max(sum(point.parts.values()) for point in plan.points)
    assert all(n_bytes >= 0 for point in plan.points for n_bytes in point.parts.values())
    assert plan.model == "tiny"


@pytest.mark.parametrize("model", VARIANTS)
@pytest.mark.parametrize("how", EVERY)
def test_plans_of_every_variant(model: Model, how: Activations):
    check(training_plan(model, 2, 8, how=how))
    check(inference_plan(model, 2, 8, how=how))


@given(
    batch=st.integers(1, 8),
    q_len=st.integers(1, 30),
    context=st.integers(0, 30),
    weights=st.sampled_from(sorted(FORMATS)),
)
def test_more_of_anything_never_takes_less(batch: int, q_len: int, context: int, weights: str):
    def peak(batch: int, q_len: int, context: int) -> int:
        return inference_plan(tiny(), batch, q_len, context, weights=weights).peak_bytes

    here = peak(batch, q_len, context)
    assert here < min(peak(batch + 1, q_len, context), peak(batch, q_len + 1, context), peak(batch, q_len, context + 1))
