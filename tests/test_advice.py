"""What is advised of changes whose speed is given, and what is said of them; nothing is simulated."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hwmodels import load_gpu
from sim.advice import advice
from sim.llm import How
from workloads.execution import Execution
from workloads.llm import Llm
from workloads.models.catalog import load_model
from workloads.training import Training

LLAMA = load_model("llama3-8b-4layers")
GPU = load_gpu("h200_sxm")


def told(request: Llm, speed: Any, gpu: Any = GPU) -> list[str]:
    """Changes that are advised where `speed` says how many tokens a second a request makes; as it is, 100."""
    result: Any = SimpleNamespace(request=request, how=How(), tokens_per_s=100.0)

    def simulate(request: Llm, how: How) -> Any:
        return SimpleNamespace(tokens_per_s=speed(request, how), time_s=1.0)

    return [each["change"] for each in advice(result, gpu, simulate, lambda *_: None)]


@pytest.mark.parametrize(("with_cache", "advised"), [(130.1, False), (140.0, True)])
def test_a_small_cache_is_told_with_attention_where_it_adds_to_that(with_cache: float, advised: bool) -> None:
    def speed(request: Llm, how: How) -> float:
        if how.attention != "cudnn":
            return 100.0
        return with_cache if request.execution.kv_dtype else 130.0

    changes = told(Llm(LLAMA, "decode", context=100), speed)
    assert "attention from cuDNN (measured on h200_sxm)" in changes
    wanted = ["attention from cuDNN, and the cache in fp8 (not measured)"] if advised else []
    assert [text for text in changes if "cache" in text] == wanted


def test_measured_is_said_of_the_shipped_gpu_with_its_own_cache_alone() -> None:
    def speed(request: Llm, how: How) -> float:
        return 130.0 if how.attention == "cudnn" else 100.0

    request = Llm(LLAMA, "decode", context=100)
    fp8 = replace(request, execution=Execution(kv_dtype="fp8_e4m3"))
    changed = load_gpu("h200_sxm", ("hbm.bandwidth_gb_per_s=*2",))
    assert "attention from cuDNN (measured on h200_sxm)" in told(request, speed)
    for asked, gpu in ((fp8, GPU), (request, changed), (request, load_gpu("h100_sxm"))):
        assert "attention from cuDNN (not measured)" in told(asked, speed, gpu)


@pytest.mark.parametrize(("by_checkpointing", "wanted"), [(131.0, ""), (140.0, ", by checkpointing full")])
def test_twice_the_batch_is_told_without_checkpointing_unless_that_is_faster(
    by_checkpointing: float, wanted: str
) -> None:
    def speed(request: Llm, how: How) -> float:
        if request.batch == 1:
            return 100.0
        return {"none": 130.0, "full": by_checkpointing}.get(request.training.checkpointing, 120.0)

    request = Llm(LLAMA, "training", tokens=128, training=Training(checkpointing="none"))
    assert [text for text in told(request, speed) if "batch" in text] == [f"twice the batch{wanted}"]
