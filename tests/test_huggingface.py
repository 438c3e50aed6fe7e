"""Reading config.json: every architecture as its library reads it, and one clear refusal for everything else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels.errors import ConfigError
from workloads import Model, load_model
from workloads.models.counts import parameters
from workloads.models.huggingface import ARCHITECTURES, MODEL_TYPES, from_config, load_config
from workloads.models.json_file import LARGEST_FILE_BYTES

LLAMA3 = {
    "_name_or_path": "somewhere/else",
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 128256,
}
GEMMA2 = {
    "architectures": ["Gemma2ForCausalLM"],
    "attention_bias": False,
    "attn_logit_softcapping": 50.0,
    "cache_implementation": "hybrid",
    "final_logit_softcapping": 30.0,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 3584,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "model_type": "gemma2",
    "num_attention_heads": 16,
    "num_hidden_layers": 42,
    "num_key_value_heads": 8,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_size": 4096,
    "vocab_size": 256000,
}


def config(architecture: str, **keys: Any) -> Model:
    return from_config({"architectures": [architecture], **keys}, name="model", origin="config.json")


def written(folder: Path, text: str | bytes, name: str = "config.json") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refusal(path: Any) -> str:
    """The one line with which a file is refused."""
    with pytest.raises(ConfigError) as refused:
        load_config(path)
    text = str(refused.value)
    assert "\n" not in text
    assert len(text) < 600
    return text


# What is read.
@pytest.mark.parametrize(("keys", "name"), [(LLAMA3, "llama3-8b"), (GEMMA2, "gemma2-9b")])
def test_a_file_as_published_is_the_built_in_model(tmp_path: Path, keys: dict[str, Any], name: str):
    folder = tmp_path / name
    folder.mkdir()
    path = written(folder, json.dumps(keys))
    assert load_config(path) == load_model(name) == load_model(str(path))
    assert load_config(folder) == load_model(name) == load_model(folder)


def test_a_file_of_another_name_names_the_model(tmp_path: Path):
    assert load_config(written(tmp_path, json.dumps(LLAMA3), "mine-8b.json")).name == "mine-8b"


DEFAULTS = {
    "GPT2LMHeadModel": 124_439_808,
    "LlamaForCausalLM": 6_738_415_616,
    "MistralForCausalLM": 7_241_732_096,
    "MixtralForCausalLM": 46_702_792_704,
    "Gemma2ForCausalLM": 2_614_341_888,
    "Phi3ForCausalLM": 3_821_079_552,
    "OPTForCausalLM": 125_239_296,
    "BertModel": 109_482_240,
    "BertForMaskedLM": 109_514_298,
}


@pytest.mark.parametrize(("architecture", "total"), DEFAULTS.items())
def test_absent_keys_have_the_library_s_defaults(architecture: str, total: int):
    """The defaults are a published model's shapes, Gemma-2's those of its 2B model."""
    assert parameters(config(architecture)).total == total


def test_qwen2_s_defaults():
    model = config("Qwen2ForCausalLM")
    assert (model.d_ff, model.vocabulary, model.kv_heads, model.max_context) == (22016, 151936, 32, 32768)
    assert (model.qkv_bias, model.out_bias, model.window) == (True, False, None)


def test_every_architecture_is_tried():
    assert {*DEFAULTS, "Qwen2ForCausalLM"} == set(ARCHITECTURES)
    assert set(MODEL_TYPES.values()) < set(ARCHITECTURES)


def test_the_model_type_speaks_where_no_architecture_is_named():
    assert from_config({"model_type": "gpt2"}, name="model") == config("GPT2LMHeadModel")


def test_windows():
    assert config("MistralForCausalLM").window == 4096
    assert config("MistralForCausalLM", sliding_window=None).window is None
    assert config("MixtralForCausalLM").window is None
    assert config("Phi3ForCausalLM", sliding_window=2047).window == 2047
    assert config("Gemma2ForCausalLM").window_layers == tuple(range(0, 26, 2))
    qwen = config("Qwen2ForCausalLM", use_sliding_window=True, max_window_layers=30)
    assert (qwen.window, qwen.window_layers) == (4096, (30, 31))
    assert config("Qwen2ForCausalLM", use_sliding_window=True, max_window_layers=0).window_layers is None
    assert config("Qwen2ForCausalLM", use_sliding_window=True, max_window_layers=40).window is None
    kinds = ["full_attention"] * 25 + ["sliding_attention"]
    assert config("Gemma2ForCausalLM", layer_types=kinds).window_layers == (25,)


def test_variants_of_opt():
    small = config("OPTForCausalLM", word_embed_proj_dim=512, hidden_size=1536, do_layer_norm_before=False)
    assert (small.embedding_dim, small.norm_first, small.final_norm) == (512, False, False)
    assert config("OPTForCausalLM", word_embed_proj_dim=768).embedding_dim is None
    assert config("OPTForCausalLM", enable_bias=False).qkv_bias is False


def test_biases_and_head_dim_of_llama():
    model = config("LlamaForCausalLM", attention_bias=True, mlp_bias=True, head_dim=64)
    assert (model.qkv_bias, model.out_bias, model.ffn_bias, model.q_width) == (True, True, True, 2048)


def test_inner_width_of_gpt2():
    assert config("GPT2LMHeadModel", n_inner=None).d_ff == 3072
    assert config("GPT2LMHeadModel", n_inner=100).d_ff == 100
    assert config("GPT2LMHeadModel", activation_function="relu").activation == "relu"


# What is refused.
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "broken JSON"),
        (b"{", "line 1: broken JSON"),
        (b'{"a": 1,\n}', "line 2: broken JSON"),
        (b"[]", "must hold one JSON object, not []"),
        (b"null", "must hold one JSON object"),
        (b'"text"', "must hold one JSON object"),
        (b"{} {}", "broken JSON: Extra data"),
        (b"\xff\xfe\x00", "line 1: not UTF-8 text (byte 0xff)"),
        (b'\xef\xbb\xbf{"a": 1}', "broken JSON"),
        (bytes(range(256)), "line 2: not UTF-8 text (byte 0x80)"),
        (b'{"a": 1, "a": 2}', "key 'a' stands twice"),
        (b'{"b": {"a": 1, "a": 2}}', "key 'a' stands twice"),
        (b'{"a": NaN}', "NaN is no number"),
        (b'{"a": -Infinity}', "-Infinity is no number"),
        (b'{"a": 1e999}', "1e999 is too large a number"),
        (b'{"a": ' + b"9" * 5000 + b"}", "broken JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b" " * (LARGEST_FILE_BYTES + 1), "is larger than 1,000,000 bytes"),
        (b"{}", "names no architecture; known: GPT2LMHeadModel, LlamaForCausalLM"),
    ],
)
def test_files_that_are_no_configuration(tmp_path: Path, text: bytes, said: str):
    assert said in refusal(written(tmp_path, text))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"architectures": ["FalconForCausalLM"]}, "unknown architecture 'FalconForCausalLM'; known: GPT2LMHeadModel"),
        ({"architectures": []}, "architectures = []: must be a list of names"),
        ({"architectures": "LlamaForCausalLM"}, "must be a list of names"),
        ({"architectures": [7]}, "must be a list of names"),
        ({"architectures": None, "model_type": "t5"}, "unknown model_type 't5'; known: gpt2, llama"),
        ({"architectures": None, "model_type": ["llama"]}, "unknown model_type ['llama']"),
        ({"hidden_size": "4096"}, "hidden_size = '4096': must be an integer"),
        ({"hidden_size": 4096.0}, "hidden_size = 4096.0: must be an integer"),
        ({"hidden_size": True}, "hidden_size = True: must be an integer"),
        ({"hidden_size": None}, "hidden_size = None: must be an integer"),
        ({"hidden_size": -4096}, "d_model = -4096: must be an integer from 1"),
        ({"hidden_size": 10**30}, "d_model = 1000000000000000000000000000000: must be"),
        ({"hidden_size": 4097}, "hidden size 4097: must be a multiple of the number of heads, 32"),
        ({"num_attention_heads": 0}, "the number of heads, 0"),
        ({"num_key_value_heads": 5}, "heads = 32: must be a multiple of kv_heads = 5"),
        ({"num_key_value_heads": 64}, "kv_heads = 64: must be an integer from 1 to 32"),
        ({"num_hidden_layers": 10**9}, "n_layers = 1000000000: must be an integer from 1 to 1024"),
        ({"vocab_size": 0}, "vocabulary = 0"),
        ({"head_dim": 0}, "head_dim = 0"),
        ({"hidden_act": "mish"}, "hidden_act = 'mish': must be one of gelu, gelu_new"),
        ({"hidden_act": ["silu"]}, "hidden_act = ['silu']: must be one of"),
        ({"attention_bias": 1}, "attention_bias = 1: must be true or false"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings = 'no': must be true or false"),
        ({"is_encoder_decoder": True}, "encoder-decoder models are not modelled"),
        ({"add_cross_attention": True}, "cross-attention is not modelled"),
        ({"quantization_config": {"bits": 4}}, "state the format of the weights"),
        ({"architectures": ["BertModel"], "is_decoder": True}, "BERT is modelled as an encoder"),
        ({"architectures": ["BertModel"], "position_embedding_type": "relative_key"}, "relative positions"),
        ({"architectures": ["OPTForCausalLM"], "_remove_final_layer_norm": True}, "other variants of OPT"),
        ({"architectures": ["Gemma2ForCausalLM"], "attn_logit_softcapping": -1}, "must be a number above 0 or null"),
        ({"architectures": ["Gemma2ForCausalLM"], "layer_types": ["full_attention"]}, "must name 32 layers"),
        ({"architectures": ["Gemma2ForCausalLM"], "num_hidden_layers": 10**12}, "n_layers = 1000000000000"),
        ({"architectures": ["MixtralForCausalLM"], "num_experts_per_tok": 9}, "top_k = 9"),
    ],
)
def test_configurations_that_are_refused(tmp_path: Path, keys: dict[str, Any], said: str):
    text = refusal(written(tmp_path, json.dumps({**LLAMA3, **keys})))
    assert said in text
    assert text.startswith(str(tmp_path))


def test_files_that_cannot_be_read(tmp_path: Path):
    assert "no such file" in refusal(tmp_path / "absent.json")
    assert "no such file (config.json)" in refusal(tmp_path)
    (tmp_path / "config.json").mkdir()
    assert "is a directory or device" in refusal(tmp_path)
    assert "'': is a directory or device" in refusal("")
    assert "no such file" in refusal("a\0b")
    assert "cannot be read" in refusal("x" * 5000)
    assert "must be text or a path" in refusal(None)
    assert "must be text or a path" in refusal(b"config.json")
    assert "is a directory or device" in refusal("/dev/null")


def outcome(read: Callable[[], Model]) -> Model | str:
    """The model, or the text of the refusal; anything else is raised."""
    try:
        return read()
    except ConfigError as error:
        return str(error)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = sorted({*LLAMA3, *GEMMA2, "n_embd", "n_head", "ffn_dim", "num_local_experts", "layer_types", "n_inner"})


@given(
    keys=st.dictionaries(st.sampled_from(KEYS), json_values, max_size=5),
    architecture=st.sampled_from(list(ARCHITECTURES)),
    size=st.sampled_from([1, 2, 7, 64, 4096, 2**31, -1]),
    key=st.sampled_from(KEYS),
)
def test_any_keys_are_read_or_refused_in_one_line(keys: dict[str, Any], architecture: str, size: int, key: str):
    found = outcome(lambda: from_config({**keys, key: size, "architectures": [architecture]}, name="m", origin="file"))
    assert isinstance(found, Model) or re.fullmatch("file: .*", found)
    assert not isinstance(found, Model) or parameters(found).total > 0


@settings(max_examples=200)
@given(text=st.binary(max_size=60) | json_values.map(json.dumps).map(str.encode))
def test_any_bytes_are_read_or_refused_in_one_line(tmp_path_factory: pytest.TempPathFactory, text: bytes):
    path = written(tmp_path_factory.getbasetemp(), text)
    found = outcome(lambda: load_config(path))
    assert isinstance(found, Model) or re.fullmatch(".*config.json: .*", found)


def test_nothing_in_a_name_reaches_messages_raw():
    assert "\n" not in refusal("a\nb.json")
    assert "\x1b" not in refusal("a\x1b[31m.json")
