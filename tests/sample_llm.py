"""Small language models, really simulated, for the tests of what a person sees of them; each is simulated once."""

from __future__ import annotations

from functools import cache

from hwmodels import load_gpu
from sim.call import Options
from sim.llm import How, LlmResult, simulate_llm
from workloads.execution import Execution
from workloads.llm import Llm
from workloads.models.catalog import load_model

ASKED = {
    "prefill": Llm(load_model("gpt2-2layers"), "prefill", 2, tokens=256),
    "decode": Llm(load_model("llama3-8b-4layers"), "decode", 4, context=1000),
    "generate": Llm(load_model("gpt2-2layers"), "generate", 2, tokens=64, new_tokens=12),
    "training": Llm(load_model("gpt2-3layers"), "training", 2, tokens=128),
    "experts": Llm(load_model("mixtral-8x7b-2layers"), "decode", 4, context=500),
    "fused": Llm(load_model("gemma2-9b-4layers"), "prefill", 1, tokens=512, execution=Execution(fusion="full")),
    "encoder": Llm(load_model("bert-base-2layers"), "prefill", 2, tokens=128),
    "capped": Llm(load_model("llama3-8b-3layers"), "prefill", 1, tokens=4096),
    "answered": Llm(load_model("gpt2-2layers"), "decode", 2, context=100),
    "hungry": Llm(load_model("llama3-8b-3layers"), "prefill", 1, tokens=4096),
    "eager": Llm(load_model("gpt2-2layers"), "decode", 1, context=100),
    "streamed": Llm(load_model("llama3-8b-2layers"), "decode", 1, context=100),
}
"""What is asked, by a name for it."""
OPTIONS = {"capped": Options(sustained=True)}
HOWS = {"streamed": How(stream_weights=True), "fused": How(launch="graph"), "eager": How(launch="eager")}


@cache
def sample_llm(name: str, advise: bool = False) -> LlmResult:
    """The result of one of `ASKED` on an H200."""
    what = ASKED[name], load_gpu("h200_sxm"), OPTIONS.get(name), HOWS.get(name)
    return simulate_llm(*what, advise=advise, first_token=name == "answered", steady=name == "hungry")
