"""Transformer models as data: published parameter counts, counts against lists of tensors, FLOPs and KV bytes."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwmodels.errors import ConfigError
from workloads import Model, list_models, load_model
from workloads.models.catalog import BUILT_IN, published_parameters, source_of
from workloads.models.counts import (
    active_parameters,
    attention_of,
    check_context,
    check_tokens,
    describe,
    experts_used,
    forward_flops,
    kv_bytes_per_token,
    kv_cache_bytes,
    layer_parameters,
    parameters,
    training_flops,
)
from workloads.models.model import ACTIVATIONS, FLAGS
from workloads.models.tensors import layer_tensors, outer_tensors, tensors

pytestmark = pytest.mark.small

PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-72b": 72_706_203_648,
    "gemma2-9b": 9_241_705_984,
    "phi3-mini": 3_821_079_552,
    "opt-125m": 125_239_296,
    "opt-350m": 331_196_416,
    "opt-1.3b": 1_315_758_080,
    "opt-2.7b": 2_651_596_800,
    "opt-6.7b": 6_658_473_984,
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
}

each_model = pytest.mark.parametrize("name", list_models())


def tiny(**changes: Any) -> Model:
    """A small Llama-like model with some fields changed."""
    shape: dict[str, Any] = {
        "name": "tiny",
        "family": "llama",
        "n_layers": 3,
        "d_model": 24,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 8,
        "d_ff": 40,
        "vocabulary": 101,
        "max_context": 64,
        "gated": True,
        "activation": "silu",
        "norm": "rms_norm",
    }
    return Model(**{**shape, **changes})


def encoder(**changes: Any) -> Model:
    """A small BERT-like model with some fields changed."""
    style = {"norm": "layer_norm", "norm_bias": True, "positions": "learned", "norm_first": False, "final_norm": False}
    return tiny(**{**style, "encoder_only": True, "head": "none", "pooler": True, "token_types": 2, **changes})


VARIANTS = [
    tiny(),
    tiny(tied=True, kv_heads=1, head_dim=6),
    tiny(gated=False, activation="relu", qkv_bias=True, out_bias=True, ffn_bias=True, head_bias=True),
    tiny(norm="layer_norm", norm_bias=True, positions="learned", extra_positions=2, embedding_norm=True),
    tiny(norms_per_layer=4, window=8, window_layers=(0, 2), attention_softcap=True, logits_softcap=True),
    tiny(parallel=True, norms_per_layer=1),
    tiny(parallel=True, norms_per_layer=2),
    tiny(n_experts=8, top_k=2),
    tiny(n_experts=8, top_k=3, n_shared_experts=2, ffn_bias=True),
    tiny(embedding_dim=10, tied=True, final_norm=False, norm_first=False),
    tiny(embedding_dim=10),
    tiny(head="none"),
    encoder(),
    encoder(pooler=False, head="masked_lm", head_bias=True, tied=True),
]


# Parameters.
@pytest.mark.parametrize(("name", "published"), PUBLISHED.items())
def test_published_parameter_counts(name: str, published: int):
    assert parameters(load_model(name)).total == published


@each_model
def test_stated_parameter_counts(name: str):
    stated = published_parameters(name)
    assert stated in (None, parameters(load_model(name)).total)
    assert source_of(name)


def test_gpt3_meets_the_paper_s_table():
    """Brown et al. 2020, Table D.1: 174,600 million parameters."""
    total = parameters(load_model("gpt3-175b")).total
    assert total == 174_604_259_328
    assert round(total / 1e6, -2) == 174_600


@pytest.mark.parametrize("name", [name for name in list_models() if "405b" not in name])
def test_parameters_are_the_sum_of_all_tensors(name: str):
    check_against_tensors(load_model(name))


@pytest.mark.parametrize("model", VARIANTS)
def test_parameters_of_variants_are_the_sum_of_all_tensors(model: Model):
    check_against_tensors(model)


def check_against_tensors(model: Model) -> None:
    listed = tensors(model)
    assert len({tensor.name for tensor in listed}) == len(listed)
    counted = parameters(model)._asdict()
    for part, count in counted.items():
        assert sum(tensor.size for tensor in listed if tensor.part == part) == count, part
    assert layer_parameters(model) == sum(tensor.size for tensor in layer_tensors(model))
    assert parameters(model).total == model.n_layers * layer_parameters(model) + sum(
        tensor.size for tensor in outer_tensors(model)
    )


def test_shapes_of_grouped_query_attention():
    shapes = {tensor.name: tensor.shape for tensor in layer_tensors(load_model("llama3-8b"), 7)}
    assert shapes["layers.7.attention.q.weight"] == (4096, 4096)
    assert shapes["layers.7.attention.k.weight"] == (1024, 4096)
    assert shapes["layers.7.ffn.down.weight"] == (4096, 14336)


def test_gemma_s_heads_are_wider_than_its_stream():
    gemma = load_model("gemma2-9b")
    assert (gemma.d_model, gemma.q_width, gemma.kv_width) == (3584, 4096, 2048)
    assert gemma.norms_per_layer == 4
    assert (gemma.window_of(0), gemma.window_of(1)) == (4096, None)


def test_mixtral_s_active_parameters():
    """Jiang et al. 2024: 47 billion parameters, of which a token uses 13 billion."""
    mixtral = load_model("mixtral-8x7b")
    assert active_parameters(mixtral) == 46_702_792_704 - 32 * 6 * 3 * 4096 * 14336 == 12_879_925_248
    assert active_parameters(load_model("llama3-8b")) == 8_030_261_248


def test_experts_used_by_enumeration():
    """Two tokens, each with every pair of four experts."""
    pairs = list(combinations(range(4), 2))
    used = [len({*first, *second}) for first in pairs for second in pairs]
    assert experts_used(tiny(n_experts=4, top_k=2), 2) == pytest.approx(sum(used) / len(used), rel=1e-12)
    assert experts_used(tiny(n_experts=4, top_k=2), 1) == 2
    assert experts_used(tiny(n_experts=4, top_k=4), 3) == 4
    assert experts_used(tiny(), 3) == 0
    with pytest.raises(ConfigError, match="n_tokens = 0"):
        experts_used(tiny(), 0)


def test_a_description_survives_json():
    found = describe(load_model("gemma2-9b"))
    assert json.loads(json.dumps(found))["parameters"] == 9_241_705_984
    assert sum(found["parameters_by_part"].values()) == found["parameters"]
    assert found["kv_bytes_per_token"] == 42 * 2 * 2048 * 2


# FLOPs.
def test_decode_flops_are_twice_the_parameters_and_attention():
    model = load_model("llama3-8b")
    flops = forward_flops(model, batch=1, q_len=1, context=4095)
    table = model.vocabulary * model.d_model
    norms = parameters(model).norms
    assert flops.matmuls == 2 * (parameters(model).total - table - norms)
    assert flops.attention == 32 * 2 * 2 * 4096 * 4096


def test_prefill_flops_by_hand():
    flops = forward_flops(tiny(), batch=2, q_len=5)
    assert flops.projections == 3 * 2 * 10 * 24 * (32 + 16 + 16 + 32)
    assert flops.ffn == 3 * 2 * 10 * 3 * 24 * 40
    assert flops.attention == 3 * 2 * 2 * 2 * 4 * 8 * 15
    assert flops.head == 2 * 10 * 24 * 101
    assert forward_flops(tiny(), 2, 5, last_only=True).head == 2 * 2 * 24 * 101
    assert training_flops(tiny(), 2, 5) == 3 * flops.total


def test_gpt3_training_cost_of_the_paper():
    """Table D.1 counts 6 FLOPs for each parameter and token: 3.14e23 for 300 billion tokens."""
    model = load_model("gpt3-175b")
    per_token = 3 * forward_flops(model, 1, 2048).matmuls / 2048
    assert per_token * 300e9 == pytest.approx(3.14e23, rel=2e-3)


def linear_flops(model: Model, n_tokens: int) -> int:
    """Matrix products of the layers, from the list of tensors, each expert as often as it is used."""
    total = 0
    for tensor in tensors(model):
        if len(tensor.shape) == 2 and tensor.name.startswith("layers."):
            is_routed = ".experts." in tensor.name
            total += (
                2 * n_tokens * tensor.size * (model.top_k if is_routed else 1) // (model.n_experts if is_routed else 1)
            )
    return total


@pytest.mark.parametrize("model", VARIANTS)
def test_flops_of_layers_from_their_tensors(model: Model):
    flops = forward_flops(model, batch=4, q_len=6)
    assert flops.projections + flops.ffn + flops.router == linear_flops(model, 24)
    assert flops.matmuls + flops.attention == flops.total


@pytest.mark.parametrize("model", VARIANTS)
@pytest.mark.parametrize(("q_len", "context"), [(1, 0), (1, 17), (12, 0), (9, 11)])
def test_attention_pairs_one_by_one(model: Model, q_len: int, context: int):
    if model.encoder_only and context:
        return
    n_pairs = 0
    for layer in range(model.n_layers):
        window = model.window_of(layer)
        for query in range(context, context + q_len):
            seen = range(q_len) if model.encoder_only else range(query + 1)
            n_pairs += sum(1 for key in seen if window is None or query - key < window)
    expected = 2 * 2 * 3 * model.q_width * n_pairs
    assert forward_flops(model, 3, q_len, context).attention == expected


def test_heads_of_encoders():
    assert forward_flops(encoder(), 3, 7).head == 2 * 3 * 24 * 24
    masked = encoder(pooler=False, head="masked_lm", head_bias=True, tied=True)
    assert forward_flops(masked, 3, 7).head == 2 * 21 * (24 * 24 + 24 * 101)


def test_narrow_embeddings_are_projected():
    assert forward_flops(tiny(embedding_dim=10), 1, 1).head == 2 * (10 * 101 + 24 * 10 + 10 * 24)


# KV cache.
def test_kv_bytes():
    assert kv_bytes_per_token(load_model("llama2-7b"), "fp16") == 524_288
    assert kv_bytes_per_token(load_model("llama3-8b")) == 131_072
    assert kv_bytes_per_token(load_model("llama3-8b"), "fp8_e4m3") == 65_536
    assert kv_bytes_per_token(load_model("llama3-8b"), "int8", scale_bytes=2) == 65_536 + 2 * 32 * 8 * 2
    assert kv_bytes_per_token(load_model("bert-base")) == 0
    assert kv_cache_bytes(load_model("llama3-8b"), 8, 4096) == 8 * 4096 * 131_072
    assert kv_cache_bytes(load_model("bert-base"), 8, 512) == 0


def test_kv_cache_rolls_in_windows():
    mistral, gemma = load_model("mistral-7b"), load_model("gemma2-9b")
    assert kv_cache_bytes(mistral, 1, 32768) == kv_cache_bytes(mistral, 1, 4096)
    assert kv_cache_bytes(mistral, 1, 32768, rolling=False) == 32768 * kv_bytes_per_token(mistral)
    assert kv_cache_bytes(gemma, 1, 8192) * 4 == kv_cache_bytes(gemma, 1, 8192, rolling=False) * 3


# The built-in list.
ISSUE_S_LIST = [
    *("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "gpt3-175b", "llama2-7b", "llama2-13b", "llama2-70b"),
    *("llama3-8b", "llama3-70b", "llama3-405b", "mistral-7b", "mixtral-8x7b", "qwen2.5-7b", "qwen2.5-14b"),
    *("qwen2.5-72b", "gemma2-9b", "phi3-mini", "opt-1.3b", "opt-6.7b", "opt-13b", "opt-30b", "opt-66b"),
    *("bert-base", "bert-large"),
]


def test_all_models_are_there():
    assert set(ISSUE_S_LIST) <= set(list_models())


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("Llama-3-8B", "llama3-8b"),
        ("llama_3 8b", "llama3-8b"),
        ("meta-llama/Meta-Llama-3-8B", "llama3-8b"),
        ("Llama-2-7b-hf", "llama2-7b"),
        ("llama3.1-405b", "llama3-405b"),
        ("GPT2", "gpt2"),
        ("gpt2-small", "gpt2"),
        ("GPT-3-175B", "gpt3-175b"),
        ("Qwen/Qwen2.5-7B", "qwen2.5-7b"),
        ("gemma-2-9b", "gemma2-9b"),
        ("Phi-3-mini", "phi3-mini"),
        ("bert-base-uncased", "bert-base"),
        ("OPT-6.7B", "opt-6.7b"),
    ],
)
def test_spellings(spelling: str, name: str):
    assert load_model(spelling).name == name


def test_no_spelling_means_two_models():
    table = tomllib.loads(BUILT_IN.read_text(encoding="utf-8"))
    spellings: dict[str, set[str]] = {}
    for name, entry in table.items():
        repository = entry.get("repository", name)
        for spelling in (name, *entry.get("aliases", ()), repository, repository.rpartition("/")[2]):
            spellings.setdefault(re.sub(r"[-_\s]", "", spelling.lower()), set()).add(name)
    assert [found for found in spellings.values() if len(found) > 1] == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("llama3-8", "did you mean llama3-8b?"),
        ("lama3-8b", "did you mean llama3-8b"),
        ("mixtrl-8x7b", "did you mean mixtral-8x7b"),
        ("gpt2-extra", "did you mean gpt2"),
        ("opt", "did you mean opt-125m or"),
        ("zzz", "known: gpt2, "),
        ("", "known: gpt2, "),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(text: str, said: str):
    with pytest.raises(ConfigError) as refused:
        load_model(text)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", [None, 7, b"gpt2", ["gpt2"]])
def test_names_that_are_no_text(name: Any):
    with pytest.raises(ConfigError, match="must be text or a path"):
        load_model(name)


def test_the_first_layers_only():
    short = load_model("llama3-70b-8layers")
    assert (short.name, short.n_layers) == ("llama3-70b-8layers", 8)
    assert dataclasses.replace(short, name="llama3-70b", n_layers=80) == load_model("llama3-70b")
    assert load_model("Llama-3-70B-1layer").n_layers == 1
    assert load_model("gemma2-9b-3layers").window_layers == (0, 2)
    for wrong in ("llama3-70b-81layers", "llama3-70b-0layers"):
        with pytest.raises(ConfigError, match="from 1 to 80"):
            load_model(wrong)
    with pytest.raises(ConfigError, match="unknown model"):
        load_model("llama9-70b-2layers")


@each_model
def test_models_are_hashable_and_equal(name: str):
    assert hash(load_model(name)) == hash(load_model(name.upper()))


# What is refused.
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": ""}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"family": 3}, "family"),
        ({"n_layers": 0}, "n_layers = 0: must be an integer from 1 to 1024"),
        ({"n_layers": True}, "n_layers = True"),
        ({"d_model": 24.0}, "d_model = 24.0"),
        ({"d_model": -1}, "d_model = -1"),
        ({"heads": 4, "kv_heads": 3}, "heads = 4: must be a multiple of kv_heads = 3"),
        ({"kv_heads": 8}, "kv_heads = 8: must be an integer from 1 to 4"),
        ({"heads": 4096, "kv_heads": 1, "head_dim": 1024}, "heads x head_dim"),
        ({"vocabulary": 10**9}, "vocabulary"),
        ({"activation": "mish"}, "activation = 'mish': must be one of gelu"),
        ({"norm": "batch_norm"}, "norm = 'batch_norm'"),
        ({"norm_bias": True}, "norm_bias = True: must be False with norm = rms_norm"),
        ({"norms_per_layer": 3}, "norms_per_layer = 3: must be 2 or 4"),
        ({"norms_per_layer": 1}, "norms_per_layer = 1: must be 2 or 4"),
        ({"norms_per_layer": 4, "parallel": True}, "norms_per_layer = 4: must be 1 or 2"),
        ({"gated": 1}, "gated = 1: must be true or false"),
        ({"positions": "sinusoidal"}, "positions"),
        ({"extra_positions": 2}, "extra_positions = 2: must be 0"),
        ({"embedding_dim": 0}, "embedding_dim = 0"),
        ({"window": 0}, "window = 0"),
        ({"window_layers": (0,)}, "needs a window"),
        ({"window": 8, "window_layers": [0]}, "must be a tuple"),
        ({"window": 8, "window_layers": (3,)}, "window_layers = 3: must be an integer from 0 to 2"),
        ({"window": 8, "window_layers": (1, 0)}, "must rise"),
        ({"n_experts": 4}, "top_k = 0: must be an integer from 1 to 4"),
        ({"n_experts": 4, "top_k": 5}, "top_k = 5: must be an integer from 1 to 4"),
        ({"top_k": 1}, "top_k = 1: must be an integer from 0 to 0"),
        ({"n_shared_experts": 1}, "n_shared_experts = 1"),
        ({"token_types": 2}, "token_types = 2: must be an integer from 0 to 0"),
        ({"pooler": True}, "pooler"),
        ({"head": "masked_lm"}, "head = 'masked_lm'"),
        ({"encoder_only": True}, "head = 'lm'"),
        ({"head": "none", "tied": True}, "tied"),
    ],
)
def test_impossible_models_are_refused(changes: dict[str, Any], said: str):
    with pytest.raises(ConfigError) as refused:
        tiny(**changes)
    assert said in str(refused.value)


def test_every_flag_is_checked():
    assert len(FLAGS) == 15
    for name in FLAGS:
        with pytest.raises(ConfigError, match=f"{name} = None: must be true or false"):
            tiny(**{name: None})


def test_sizes_of_a_pass_are_checked():
    model = tiny()
    for wrong in ({"batch": 0}, {"q_len": 0}, {"context": -1}, {"batch": 2.0}):
        with pytest.raises(ConfigError):
            check_tokens(model, **{"batch": 1, "q_len": 1, "context": 0, **wrong})
    with pytest.raises(ConfigError, match="must be 0 in an encoder"):
        check_tokens(encoder(), 1, 1, 4)
    with pytest.raises(ConfigError, match="must be at most 64"):
        check_context(model, 65)
    with pytest.raises(ConfigError, match="must be at most 1024"):
        forward_flops(load_model("gpt2"), 1, 1, 1024)
    with pytest.raises(ConfigError, match="kv_dtype"):
        kv_bytes_per_token(model, "int4")


def test_attention_of_a_layer():
    attention = attention_of(load_model("gemma2-9b"), 0, batch=2, q_len=1, context=8000)
    assert (attention.heads, attention.kv_heads, attention.head_dim) == (16, 8, 256)
    assert (attention.kv_len, attention.window, attention.causal) == (8001, 4096, True)
    assert not attention_of(load_model("bert-base"), 0, 1, 8).causal


models = st.builds(
    tiny,
    n_layers=st.integers(1, 5),
    heads=st.sampled_from([2, 4, 6]),
    kv_heads=st.sampled_from([1, 2]),
    head_dim=st.integers(1, 9),
    activation=st.sampled_from(ACTIVATIONS),
    gated=st.booleans(),
    tied=st.booleans(),
    qkv_bias=st.booleans(),
    ffn_bias=st.booleans(),
    embedding_dim=st.none() | st.integers(1, 30),
    positions=st.sampled_from(["learned", "rope", "alibi", "none"]),
    n_experts=st.just(0),
)


@given(model=models)
def test_any_model_s_parts_are_its_tensors(model: Model):
    check_against_tensors(model)


@given(model=models, batch=st.integers(1, 4), first=st.integers(1, 20), more=st.integers(1, 20))
def test_a_pass_in_two_pieces_costs_the_same(model: Model, batch: int, first: int, more: int):
    """Chunked prefill: causal attention over a cache is what one pass over all tokens does."""
    whole = forward_flops(model, batch, first + more)
    pieces = forward_flops(model, batch, first), forward_flops(model, batch, more, first)
    assert whole.total == sum(piece.total for piece in pieces)


def test_each_pair_of_variants_differs():
    assert all(a != b for a, b in combinations(VARIANTS, 2))


def test_pruning_leaves_smaller_dense_shapes():
    """Llama-3-8B: half of 14,336 is 7,168; a quarter of its 8 groups of 4 heads leaves 6."""
    whole = load_model("llama3-8b")
    half = whole.pruned(ffn=0.5, heads=0.25)
    assert (half.d_ff, half.heads, half.kv_heads, half.head_dim) == (7168, 24, 6, 128)
    fewer = parameters(whole).ffn + parameters(whole).attention - parameters(half).ffn - parameters(half).attention
    assert fewer == 32 * (3 * 4096 * 7168 + 2 * 4096 * 8 * 128 + 2 * 4096 * 2 * 128)
    assert whole.pruned() == whole
    assert whole.pruned(ffn=0.3).d_ff % 64 == 0
    assert whole.pruned(heads=0.99).kv_heads == 1
    assert [whole.pruned(heads=n / 16).kv_heads for n in (1, 3, 5, 7)] == [7, 6, 5, 4], "halves round one way"
    assert [whole.pruned(ffn=n / 448).d_ff for n in (1, 3)] == [14336 - 64, 14336 - 128]
    for fraction in (1, -0.1, True, float("nan")):
        with pytest.raises(ConfigError, match="must be a fraction"):
            whole.pruned(ffn=fraction)
