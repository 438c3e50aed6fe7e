"""Models from the `config.json` of a Hugging Face repository. Data only: nothing in it is executed or fetched.

A key that is absent has the default of the library's configuration class, which is how the library itself would read
the file. Keys without influence on shapes (dropout, initialisation, token ids, rope scaling, quantisation of stored
weights) are passed over.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from hwmodels.errors import ConfigError
from workloads.models.json_file import read_json, shown
from workloads.models.model import MAX_LAYERS, Model

ACTIVATION_NAMES = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""The library's name -> ours."""


class _Config:
    """The keys of one configuration, each checked for its type as it is read."""

    def __init__(self, keys: Mapping[str, Any], origin: str) -> None:
        self.keys, self.origin = keys, origin

    def refusal(self, text: str) -> ConfigError:
        return ConfigError(f"{self.origin}: {text}")

    def integer(self, key: str, default: int) -> int:
        found = self.keys.get(key, default)
        if type(found) is not int:
            raise self.refusal(f"{key} = {shown(found)}: must be an integer")
        return found

    def optional(self, key: str, default: int | None = None) -> int | None:
        return None if self.keys.get(key, default) is None else self.integer(key, default or 0)

    def flag(self, key: str, default: bool) -> bool:
        found = self.keys.get(key, default)
        if type(found) is not bool:
            raise self.refusal(f"{key} = {shown(found)}: must be true or false")
        return found

    def activation(self, key: str, default: str) -> str:
        found = self.keys.get(key, default)
        if isinstance(found, str) and found in ACTIVATION_NAMES:
            return ACTIVATION_NAMES[found]
        raise self.refusal(f"{key} = {shown(found)}: must be one of {', '.join(ACTIVATION_NAMES)}")

    def is_capped(self, key: str, default: float) -> bool:
        found = self.keys.get(key, default)
        if found is None:
            return False
        if type(found) not in (int, float) or not found > 0:
            raise self.refusal(f"{key} = {shown(found)}: must be a number above 0 or null")
        return True

    def only(self, key: str, allowed: Any, why: str) -> None:
        """Refuse any value but the one that is modelled, which is the default too."""
        if self.keys.get(key, allowed) != allowed:
            raise self.refusal(f"{key} = {shown(self.keys[key])}: must be {shown(allowed)}; {why}")

    def refuse_variants(self) -> None:
        self.only("is_encoder_decoder", False, "encoder-decoder models are not modelled")
        self.only("add_cross_attention", False, "cross-attention is not modelled")
        self.only("quantization_config", None, "leave it out and state the format of the weights with --weights")

    def divided(self, whole: int, heads: int) -> int:
        """head_dim where it is not stated."""
        if heads < 1 or whole % heads:
            raise self.refusal(f"hidden size {whole}: must be a multiple of the number of heads, {heads}")
        return whole // heads


def load_config(path: str | os.PathLike[str]) -> Model:
    """The model that a `config.json` describes, or the one in that directory; named after its directory.

    Raises `ConfigError`, in one line, for a file that cannot be read, is over 1 MB, is no JSON, has a key twice, is of
    an unknown architecture, or has values of the wrong type or out of range.
    """
    keys, name, origin = read_json(path)
    return from_config(keys, name=name, origin=origin)


def from_config(keys: Mapping[str, Any], *, name: str, origin: str = "configuration") -> Model:
    """The model that the keys of a configuration describe. `origin` names them in messages."""
    config = _Config(keys, origin)
    config.refuse_variants()
    read = ARCHITECTURES[_architecture(config)]
    try:
        return Model(name=name, **read(config))
    except ConfigError as error:
        text = str(error)
        raise error if text.startswith(f"{origin}: ") else config.refusal(text) from None


def _architecture(config: _Config) -> str:
    """The architecture that is named, or that of the model type where none is."""
    named = config.keys.get("architectures")
    known = f"known: {', '.join(ARCHITECTURES)}"
    if named is None:
        kind = config.keys.get("model_type")
        if isinstance(kind, str) and kind in MODEL_TYPES:
            return MODEL_TYPES[kind]
        if kind is None:
            raise config.refusal(f"names no architecture; {known}")
        raise config.refusal(f"unknown model_type {shown(kind)}; known: {', '.join(MODEL_TYPES)}")
    if not isinstance(named, list) or not named or not all(isinstance(item, str) for item in named):
        raise config.refusal(f"architectures = {shown(named)}: must be a list of names; {known}")
    for item in ARCHITECTURES:
        if item in named:
            return item
    raise config.refusal(f"unknown architecture {shown(named[0])}; {known}")


# One reader for each architecture. All return the fields of `Model` but its name.
def _gpt2(config: _Config) -> dict[str, Any]:
    d_model, heads = config.integer("n_embd", 768), config.integer("n_head", 12)
    inner = config.optional("n_inner")
    return {
        "family": "gpt2",
        "n_layers": config.integer("n_layer", 12),
        "d_model": d_model,
        "heads": heads,
        "kv_heads": heads,
        "head_dim": config.divided(d_model, heads),
        "d_ff": 4 * d_model if inner is None else inner,
        "vocabulary": config.integer("vocab_size", 50257),
        "max_context": config.integer("n_positions", 1024),
        "activation": config.activation("activation_function", "gelu_new"),
        "tied": config.flag("tie_word_embeddings", True),
        **_LAYER_NORM_STYLE,
    }


_LAYER_NORM_STYLE = {
    "gated": False,
    "norm": "layer_norm",
    "norm_bias": True,
    "positions": "learned",
    "qkv_bias": True,
    "out_bias": True,
    "ffn_bias": True,
}


def _llama_like(config: _Config, family: str, **defaults: Any) -> dict[str, Any]:
    """What Llama and its relatives share. `defaults`: of the keys in which their configuration classes differ."""
    d_model = config.integer("hidden_size", defaults.get("hidden_size", 4096))
    heads = config.integer("num_attention_heads", defaults.get("num_attention_heads", 32))
    kv_heads = config.optional("num_key_value_heads", defaults.get("num_key_value_heads"))
    head_dim = config.optional("head_dim", defaults.get("head_dim"))
    return {
        "family": family,
        "n_layers": config.integer("num_hidden_layers", defaults.get("num_hidden_layers", 32)),
        "d_model": d_model,
        "heads": heads,
        "kv_heads": heads if kv_heads is None else kv_heads,
        "head_dim": config.divided(d_model, heads) if head_dim is None else head_dim,
        "d_ff": config.integer("intermediate_size", defaults["intermediate_size"]),
        "vocabulary": config.integer("vocab_size", defaults.get("vocab_size", 32000)),
        "max_context": config.integer("max_position_embeddings", defaults["max_position_embeddings"]),
        "gated": True,
        "activation": config.activation("hidden_act", "silu"),
        "norm": "rms_norm",
        "tied": config.flag("tie_word_embeddings", defaults.get("tie_word_embeddings", False)),
    }


def _llama(config: _Config) -> dict[str, Any]:
    shared = _llama_like(config, "llama", intermediate_size=11008, max_position_embeddings=2048)
    bias = config.flag("attention_bias", False)
    return {**shared, "qkv_bias": bias, "out_bias": bias, "ffn_bias": config.flag("mlp_bias", False)}


def _mistral(config: _Config) -> dict[str, Any]:
    shared = _llama_like(
        config, "mistral", num_key_value_heads=8, intermediate_size=14336, max_position_embeddings=131072
    )
    return {**shared, "window": config.optional("sliding_window", 4096)}


def _mixtral(config: _Config) -> dict[str, Any]:
    shared = _llama_like(
        config, "mixtral", num_key_value_heads=8, intermediate_size=14336, max_position_embeddings=131072
    )
    return {
        **shared,
        "window": config.optional("sliding_window"),
        "n_experts": config.integer("num_local_experts", 8),
        "top_k": config.integer("num_experts_per_tok", 2),
    }


def _qwen2(config: _Config) -> dict[str, Any]:
    """Q, K and V have biases, whatever the configuration says; a window holds from layer max_window_layers on."""
    shared = _llama_like(
        config,
        "qwen2",
        vocab_size=151936,
        intermediate_size=22016,
        num_key_value_heads=32,
        max_position_embeddings=32768,
    )
    first = config.integer("max_window_layers", 28)
    window = config.optional("sliding_window", 4096) if config.flag("use_sliding_window", False) else None
    later = tuple(range(max(first, 0), _bounded(shared["n_layers"])))
    return {**shared, "qkv_bias": True, **_windows(config, window, later, shared["n_layers"])}


def _gemma2(config: _Config) -> dict[str, Any]:
    """Every second layer, from the first, has a window; four norms; scores and logits are capped."""
    activation = "hidden_activation" if config.keys.get("hidden_activation") is not None else "hidden_act"
    shared = _llama_like(
        config,
        "gemma2",
        hidden_size=2304,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=256,
        num_hidden_layers=26,
        intermediate_size=9216,
        vocab_size=256000,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    bias = config.flag("attention_bias", False)
    every_second = tuple(range(0, _bounded(shared["n_layers"]), 2))
    return {
        **shared,
        "activation": config.activation(activation, "gelu_pytorch_tanh"),
        "norms_per_layer": 4,
        "qkv_bias": bias,
        "out_bias": bias,
        "attention_softcap": config.is_capped("attn_logit_softcapping", 50.0),
        "logits_softcap": config.is_capped("final_logit_softcapping", 30.0),
        **_windows(config, config.optional("sliding_window", 4096), every_second, shared["n_layers"]),
    }


def _phi3(config: _Config) -> dict[str, Any]:
    shared = _llama_like(
        config, "phi3", hidden_size=3072, intermediate_size=8192, vocab_size=32064, max_position_embeddings=4096
    )
    return {**shared, "window": config.optional("sliding_window")}


def _opt(config: _Config) -> dict[str, Any]:
    """The table of positions has two rows that are never used; models with norms behind have no final norm."""
    for key, allowed in (("layer_norm_elementwise_affine", True), ("_remove_final_layer_norm", False)):
        config.only(key, allowed, "other variants of OPT are not modelled")
    d_model, heads = config.integer("hidden_size", 768), config.integer("num_attention_heads", 12)
    width, before = config.optional("word_embed_proj_dim"), config.flag("do_layer_norm_before", True)
    bias = config.flag("enable_bias", True)
    return {
        **_LAYER_NORM_STYLE,
        "family": "opt",
        "n_layers": config.integer("num_hidden_layers", 12),
        "d_model": d_model,
        "heads": heads,
        "kv_heads": heads,
        "head_dim": config.divided(d_model, heads),
        "d_ff": config.integer("ffn_dim", 3072),
        "vocabulary": config.integer("vocab_size", 50272),
        "max_context": config.integer("max_position_embeddings", 2048),
        "extra_positions": 2,
        "activation": config.activation("activation_function", "relu"),
        "norm_first": before,
        "final_norm": before,
        "embedding_dim": None if width == d_model else width,
        "tied": config.flag("tie_word_embeddings", True),
        **dict.fromkeys(("qkv_bias", "out_bias", "ffn_bias"), bias),
    }


def _bert(config: _Config) -> dict[str, Any]:
    """The encoder with its pooler."""
    config.only("is_decoder", False, "BERT is modelled as an encoder")
    config.only("position_embedding_type", "absolute", "relative positions are not modelled")
    d_model, heads = config.integer("hidden_size", 768), config.integer("num_attention_heads", 12)
    return {
        **_LAYER_NORM_STYLE,
        "family": "bert",
        "n_layers": config.integer("num_hidden_layers", 12),
        "d_model": d_model,
        "heads": heads,
        "kv_heads": heads,
        "head_dim": config.divided(d_model, heads),
        "d_ff": config.integer("intermediate_size", 3072),
        "vocabulary": config.integer("vocab_size", 30522),
        "max_context": config.integer("max_position_embeddings", 512),
        "activation": config.activation("hidden_act", "gelu"),
        "norm_first": False,
        "final_norm": False,
        "embedding_norm": True,
        "encoder_only": True,
        "token_types": config.integer("type_vocab_size", 2),
        "pooler": True,
        "head": "none",
    }


def _bert_masked(config: _Config) -> dict[str, Any]:
    """The encoder without pooler, and a head for masked tokens."""
    tied = config.flag("tie_word_embeddings", True)
    return {**_bert(config), "pooler": False, "head": "masked_lm", "head_bias": True, "tied": tied}


def _windows(config: _Config, window: int | None, layers: tuple[int, ...], n_layers: int) -> dict[str, Any]:
    """The window's fields: `layers` have it, unless `layer_types` says otherwise."""
    types = config.keys.get("layer_types")
    if types is not None:
        known = ("full_attention", "sliding_attention")
        if not isinstance(types, list) or len(types) != n_layers or any(item not in known for item in types):
            raise config.refusal(
                f"layer_types = {shown(types)}: must name {n_layers} layers, each {' or '.join(known)}"
            )
        layers = tuple(i for i, item in enumerate(types) if item == "sliding_attention")
    if window is None or not layers:
        return {}
    return {"window": window, "window_layers": None if len(layers) == n_layers else layers}


def _bounded(n_layers: int) -> int:
    """So that an absurd number of layers is refused as such, before a list of them is made."""
    return min(n_layers, MAX_LAYERS)


ARCHITECTURES: dict[str, Callable[[_Config], dict[str, Any]]] = {
    "GPT2LMHeadModel": _gpt2,
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
    "MixtralForCausalLM": _mixtral,
    "Qwen2ForCausalLM": _qwen2,
    "Gemma2ForCausalLM": _gemma2,
    "Phi3ForCausalLM": _phi3,
    "OPTForCausalLM": _opt,
    "BertModel": _bert,
    "BertForMaskedLM": _bert_masked,
}
MODEL_TYPES = {
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "opt": "OPTForCausalLM",
    "bert": "BertModel",
}
