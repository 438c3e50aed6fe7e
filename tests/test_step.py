"""A step on a GPU: what kernels leave in L2, how the host plays it, what clock the board's power leaves."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest

from hwmodels import load_gpu
from hwmodels.errors import ConfigError
from sim.advice import N_ADVICE, N_LOSSY, precisions
from sim.call import Options
from sim.fitting import peak_bytes, points_in_hbm
from sim.llm import How, LlmResult, simulate_llm
from sim.operation import Kernels
from sim.power import limit_w
from sim.residency import STEPS, L2Contents, distinct_bytes, kept_part
from sim.result import main_kernel
from sim.schedule.names import parse_kernel_name
from sim.step import StepResult, run_step
from tests.test_models import tiny
from workloads import load_model
from workloads.execution import FUSIONS, Execution
from workloads.forward import decode, prefill
from workloads.gemm import Gemm
from workloads.llm import Llm
from workloads.operations import Operation, Tensor
from workloads.stream import Stream
from workloads.training import Training

gpu = lru_cache(load_gpu)
LLAMA = load_model("llama3-8b")
SMALL = LLAMA.with_layers(2)
MIB = 2**20


@lru_cache
def decoded(launch: str = "graph", cold: bool = False, batch: int = 8) -> StepResult:
    return run_step(decode(SMALL, Execution("measured"), batch, 512), gpu("h200_sxm"), launch=launch, cold=cold)


# L2 from one kernel to the next.
def touching(contents: L2Contents, *sizes_mib: float) -> dict[str, Tensor]:
    tensors = {f"t{i}": Tensor(f"t{i}", int(size * MIB), "activation") for i, size in enumerate(sizes_mib)}
    for tensor in tensors.values():
        contents.touch(tensor, tensor.n_bytes)
    return tensors


def reading(*names: str, rows: int = 1) -> Operation:
    return Operation("read", Gemm(1, 1, 1), tuple(zip("ab", names, strict=False)), ())


def test_what_was_just_used_is_there_and_what_it_pushed_out_is_not():
    contents = L2Contents(gpu("h200_sxm"))  # 60 MiB, of which 40 hold distinct lines where half of them lie twice
    tensors = touching(contents, 20, 18, 6)
    assert contents.before(reading("t1", "t2"), tensors) == {"a": 1.0, "b": 1.0}
    assert contents.before(reading("t0"), tensors) == {"a": 16 * STEPS // 20 / STEPS}


def test_a_tensor_larger_than_l2_leaves_a_part_and_nothing_else():
    contents = L2Contents(gpu("h200_sxm"))
    tensors = touching(contents, 4, 100)
    assert contents.before(reading("t0", "t1"), tensors) == {"b": 0.375}  # 40 of 100 MiB, in eighths


@pytest.mark.parametrize(
    ("read_mib", "waves", "kept"),
    [
        (400, 1.0, 1.0),  # all is written at the end
        (400, 1.7, 0.7 / 1.7),  # one wave of 1.7 wrote, then 165 MiB were read
        (400, 4.0, 0.25),
        (60, 4.0, 0.75),  # 45 MiB behind the first wave, 30 behind the second
        (39, 4.0, 1.0),
        (0, 4.0, 1.0),
    ],
)
def test_what_early_waves_wrote_is_pushed_out_by_what_later_ones_read(read_mib: int, waves: float, kept: float):
    room = distinct_bytes(gpu("h200_sxm"))
    assert room == 40 * MIB
    assert kept_part(read_mib * MIB, waves, room) == pytest.approx(kept)
    contents = L2Contents(gpu("h200_sxm"))
    tensors = {"w": Tensor("w", read_mib * MIB, "weight"), "y": Tensor("y", MIB, "activation")}
    contents.after(Operation("up", Gemm(1, 1, 1), (("b", "w"),), ("y",)), tensors, waves)
    assert contents.before(reading("y"), tensors).get("a", 0.0) == int(kept * STEPS) / STEPS


def test_a_product_in_two_waves_leaves_its_activation_a_cold_operand():
    """Gate and up of 8 rows, 28,672 wide: 224 tiles on 132 SMs, or 112 tiles (decoder_stack_kernels.csv)."""
    step = decode(LLAMA.with_layers(1), Execution("measured"), 8, 512)
    product = next(op.work for op in step.operations if op.name.endswith("gate_up"))
    silu_us = []
    for tile, grid in (("128x8_64x12_2x1_v", "2x66x1"), ("256x8_64x6_2x1_v", "2x56x1")):
        kernels = Kernels(gpu("h200_sxm"), Options())
        kernels.choose(product, parse_kernel_name(f"nvjet_sm90_tst_{tile}_bz_TNT", product, grid=grid))
        ran = run_step(step, gpu("h200_sxm"), kernels=kernels).ran
        silu_us.append(next(each.time_s for each in ran if each.operation.name.endswith("silu")) * 1e6)
    assert silu_us == pytest.approx([3.8, 2.9], abs=0.15)  # measured: 3.78 to 3.84, and 2.88 to 2.94 of 8 x 22,016


def test_a_slice_written_into_a_cache_does_not_bring_the_rest():
    contents = L2Contents(gpu("h200_sxm"))
    cache = Tensor("cache", 8 * MIB, "cache")
    copy = Operation("cache k", Stream("copy", 8, 1024, strided=True), (), ("cache",))
    contents.after(copy, {"cache": cache})
    assert contents.before(reading("cache"), {"cache": cache}) == {}


def test_activations_hit_and_weights_do_not_at_decode():
    for ran in decoded().ran:
        if isinstance(ran.operation.work, Gemm):
            assert ran.resident.get("a") == 1.0, ran.operation.name
            assert "b" not in ran.resident, ran.operation.name
    assert decoded(cold=True).kernels_s > decoded().kernels_s
    assert not any(ran.resident for ran in decoded(cold=True).ran)


# The host.
def test_wall_time_is_kernels_and_gaps():
    result = decoded()
    gaps_s = (result.n_kernels - 1) * gpu("h200_sxm").launch.graph_us * 1e-6
    assert result.wall_s == pytest.approx(result.kernels_s + gaps_s, rel=1e-9)


def test_an_eager_program_is_bound_by_its_host_where_kernels_are_short():
    eager, stream, graph = (decoded(launch) for launch in ("eager", "stream", "graph"))
    assert eager.wall_s > stream.wall_s >= graph.wall_s
    first_of_each = len(eager.ran) * gpu("h200_sxm").launch.eager_us * 1e-6
    assert eager.host.end_to_end_s >= first_of_each
    assert eager.kernels_s == graph.kernels_s


def test_equal_layers_are_simulated_once():
    kernels = Kernels(gpu("h200_sxm"), Options())
    step = decode(LLAMA, Execution("measured"), 8, 512)
    result = run_step(step, gpu("h200_sxm"), kernels=kernels)
    layers = [[ran.kernels for ran in result.ran if ran.operation.layer == layer] for layer in range(2, LLAMA.n_layers)]
    assert all(layer == layers[0] for layer in layers)
    assert all(one is other for one, other in zip(layers[0], layers[-1], strict=True))


def test_a_step_is_deterministic():
    step = decode(SMALL, Execution(), 3, 100)
    one, other = (run_step(step, gpu("h200_sxm"), kernels=Kernels(gpu("h200_sxm"), Options())) for _ in range(2))
    assert one.ran == other.ran
    assert one.wall_s == other.wall_s


# Power.
def test_long_load_lowers_the_clock_until_the_board_keeps_its_power():
    step = prefill(SMALL, Execution("measured"), 1, 2048)
    burst = run_step(step, gpu("h200_sxm"))
    long = run_step(step, gpu("h200_sxm"), Options(sustained=True))
    assert burst.clock_cap_mhz is None
    assert long.clock_cap_mhz is not None
    assert long.kernels_s > burst.kernels_s
    assert long.energy_j / long.wall_s <= 1.01 * limit_w(gpu("h200_sxm"))
    fastest = max(kernel.sm_mhz for ran in long.ran for kernel in ran.kernels)
    assert fastest <= long.clock_cap_mhz * 1.001


def test_a_board_of_more_power_keeps_its_clock():
    strong = load_gpu("h200_sxm", ("power.board_w=2000",))
    step = prefill(SMALL, Execution("measured"), 1, 2048)
    assert run_step(step, strong, Options(sustained=True)).clock_cap_mhz is None


# Whole phases.
@lru_cache
def asked(phase: str, **more: object) -> LlmResult:
    return simulate_llm(Llm(SMALL, phase, **more), gpu("h200_sxm"), how=How(launch="graph"))  # type: ignore[arg-type]


def test_breakdowns_add_up_to_the_kernels():
    result = asked("decode", batch=4, context=1000)
    for shares in (result.by_operation(), result.by_limiter()):
        assert sum(share.time_s for share in shares) == pytest.approx(result.first.kernels_s)
        assert sum(share.n_kernels for share in shares) == result.first.n_kernels
    assert sum(share.flops for share in result.by_operation()) == result.first.step.flops


@pytest.mark.parametrize("name", ["llama3-8b", "llama2-7b", "qwen2.5-7b", "gemma2-9b", "gpt2"])
@pytest.mark.parametrize(("phase", "batch"), [("prefill", 1), ("decode", 1), ("decode", 64)])
def test_what_more_is_fused_never_takes_longer(name: str, phase: str, batch: int):
    model = load_model(name).with_layers(2)
    steps = (Llm(model, phase, batch, 1000, 1000, execution=Execution(fusion=fusion)) for fusion in FUSIONS)
    none, epilogue, full = (simulate_llm(step, gpu("h200_sxm"), how=How(launch="graph")).time_s for step in steps)
    assert full < epilogue < none


def test_rates_follow_from_time():
    result = asked("prefill", batch=2, tokens=512)
    assert result.tokens == 1024
    assert result.tokens_per_s == pytest.approx(1024 / result.time_s)
    assert result.cost_per_million_tokens(3.6) == pytest.approx(1e-3 * result.time_s / 1024 * 1e6)
    assert 0 < result.model_flops_utilisation < 1
    assert 0 < result.bandwidth_utilisation < 1
    assert result.time_to_first_token_s == result.time_s


def test_a_generation_is_its_prefill_and_its_steps():
    result = asked("generate", tokens=256, new_tokens=40)
    assert len(result.step_times_s) == 39
    assert result.contexts[0] == 256
    assert result.contexts[-1] == 256 + 38
    assert result.time_s == pytest.approx(result.first.host.end_to_end_s + sum(result.step_times_s))
    alone = simulate_llm(Llm(SMALL, "decode", context=256), gpu("h200_sxm"), how=How(launch="graph"))
    assert result.step_times_s[0] == alone.time_s
    assert result.step_times_s[-1] >= result.step_times_s[0]


def test_more_bandwidth_helps_decode_and_hardly_prefill():
    fast = load_gpu("h200_sxm", ("hbm.bandwidth_gb_per_s=*2",))
    for phase, least, most in (("decode", 1.15, 2.0), ("prefill", 0.99, 1.1)):
        request = Llm(SMALL, phase, batch=1, tokens=2048, context=2048)
        slow, quick = (simulate_llm(request, each, how=How(launch="graph")) for each in (gpu("h200_sxm"), fast))
        assert least <= slow.time_s / quick.time_s <= most, phase


def test_a_model_that_does_not_fit_is_refused_with_what_would():
    request = Llm(load_model("llama3-70b"), "decode", batch=64, context=4096)
    with pytest.raises(
        ConfigError, match=r"HBM of h200_sxm: .* GB needed by llama3-70b .*at most hbm.capacity_gb = 141"
    ):
        simulate_llm(request, gpu("h200_sxm"))
    with pytest.raises(ConfigError, match="fits with --checkpointing full"):
        simulate_llm(Llm(LLAMA, "training", 4, 8192, training=Training(optimizer="adamw")), gpu("h200_sxm"))


@pytest.mark.parametrize("size", ["batch", "context"])
def test_the_largest_size_that_fits_is_named(size: str):
    request = Llm(LLAMA, "decode", batch=256, context=4096)
    with pytest.raises(ConfigError) as refused:
        simulate_llm(request, gpu("h200_sxm"))
    found = re.search(rf"--{size} (\d+)", str(refused.value))
    assert found is not None
    most = int(found[1])
    assert peak_bytes(request.but(**{size: most}), How()) <= 141e9 < peak_bytes(request.but(**{size: most + 1}), How())


def test_where_one_gpu_is_not_enough_it_says_how_many_are():
    with pytest.raises(
        ConfigError, match=r"no option makes it fit one GPU: .* memory of 9 of them, 5 with --optimizer"
    ):
        simulate_llm(Llm(load_model("llama3-70b"), "training"), gpu("h200_sxm"))
    with pytest.raises(ConfigError, match=r"fits with --attention flash, or .*--batch"):
        simulate_llm(Llm(LLAMA, batch=16, tokens=8192), gpu("h200_sxm"), how=How(attention="math"))


def test_only_changes_that_can_be_built_are_named():
    odd = tiny(d_model=2112, d_ff=8448)  # no whole groups of 128
    small = load_gpu("h200_sxm", ("hbm.capacity_gb=0.25",))
    with pytest.raises(ConfigError, match="fits with") as refused:
        simulate_llm(Llm(odd, "decode", context=4), small)
    assert "--weights int8" in str(refused.value)
    assert "int4" not in str(refused.value)


def test_where_no_change_is_enough_two_are_named():
    request = Llm(load_model("llama3-70b"), "decode", batch=128, context=4096)
    with pytest.raises(ConfigError, match=r"fits with .*--kv-dtype fp8_e4m3 --weights int4"):
        simulate_llm(request, gpu("h200_sxm"))


def test_tables_stay_where_weights_are_streamed():
    request = Llm(load_model("llama3-8b"), "decode", context=64)
    plan = request.memory()
    kept = points_in_hbm(request, plan, How(stream_weights=True))[0].parts["weights"]
    assert kept == 2 * (128_256 * 4096 + 65 * 4096)
    assert points_in_hbm(request, plan, How()) == plan.points


def test_attention_that_is_not_fused_needs_room_for_its_scores():
    small = load_gpu("h200_sxm", ("hbm.capacity_gb=3",))
    request = Llm(load_model("gpt2-2layers"), "prefill", batch=32, tokens=1024)
    assert simulate_llm(request, small).memory.peak_bytes < 1e9
    with pytest.raises(ConfigError, match="needed by gpt2-2layers"):
        simulate_llm(request.but(batch=128), small, how=How(attention="unfused"))


@pytest.mark.parametrize("name", ["t4", "v100_sxm2_32gb", "v100_pcie_32gb"])
@pytest.mark.parametrize("attention", ["unfused", "math"])
def test_gpus_without_flash_attention_train_too(name: str, attention: str):
    model, how = load_model("gpt2").with_layers(2), How(launch="graph", attention=attention)
    half = Execution(dtype="fp16")

    def trained(checkpointing: str) -> LlmResult:
        request = Llm(model, "training", 1, tokens=256, execution=half, training=Training(checkpointing))
        return simulate_llm(request, gpu(name), how=how)

    kept, selective = trained("none"), trained("selective")
    flops = {share.name: share.flops for share in kept.by_operation()}
    assert flops["attention: backward"] == 2 * flops["attention"]
    again = {share.name: share for share in selective.by_operation()}
    assert again["attention"].flops == 2 * flops["attention"]
    assert selective.time_s > kept.time_s
    probabilities = 2 * 12 * 256 * 256 * 2  # of two layers
    held = [each.memory.largest("activations") for each in (kept, selective)]
    assert held[0] - held[1] >= probabilities


def test_streamed_weights_wait_for_the_link():
    request = Llm(SMALL, "decode", batch=1, context=64)
    result = simulate_llm(request, gpu("h200_sxm"), how=How(launch="graph", stream_weights=True))
    copied = sum(span.bytes for span in result.first.host.spans if span.lane == "copy h2d")
    linear = sum(
        tensor.n_bytes
        for name, tensor in result.first.step.tensors.items()
        if name.endswith(".weight") and "norm" not in name
    )
    assert copied >= linear
    assert result.time_s >= copied / (gpu("h200_sxm").pcie.pinned_h2d_gb_per_s * 1e9)


def test_advice_is_simulated_and_helps():
    result = simulate_llm(Llm(SMALL, "decode", context=512), gpu("h200_sxm"), how=How(launch="eager"), advise=True)
    changes = [change["change"] for change in result.advice]
    assert "launch as a graph" in changes
    assert len(changes) <= N_ADVICE + N_LOSSY
    graph = next(change for change in result.advice if change["change"] == "launch as a graph")
    again = simulate_llm(result.request, gpu("h200_sxm"), how=replace(result.how, launch="graph"))
    assert graph["time_s"] == again.time_s
    assert graph["speedup"] == pytest.approx(result.time_s / again.time_s)


def test_the_library_of_attention_is_advised_and_a_small_cache_with_it():
    request = Llm(LLAMA, "decode", batch=128, context=8000, execution=Execution(fusion="full", weights="int4"))
    result = simulate_llm(request, gpu("h200_sxm"), how=How(launch="graph"), advise=True)
    lossless, lossy = ([each for each in result.advice if each["lossless"] is flag] for flag in (True, False))
    attention = next(each for each in lossless if "cuDNN (measured on h200_sxm)" in each["change"])
    again = simulate_llm(request, gpu("h200_sxm"), how=How(launch="graph", attention="cudnn"))
    assert attention["speedup"] == pytest.approx(result.time_s / again.time_s)
    cache = next(each for each in lossy if "cache in fp8" in each["change"])
    assert cache["speedup"] > attention["speedup"] > 1.3
    assert "cuDNN" in cache["change"]


def test_advice_names_each_kind_once_and_lossless_first():
    request = Llm(LLAMA, "decode", batch=8, context=1000)
    told = simulate_llm(request, gpu("h200_sxm"), advise=True).advice
    assert sum("weights in" in each["change"] or "multiply" in each["change"] for each in told) == 1
    assert [each["lossless"] for each in told] == sorted((each["lossless"] for each in told), reverse=True)


def test_training_is_advised_to_keep_activations():
    request = Llm(load_model("gpt2-3layers"), "training", 2, tokens=128, training=Training(checkpointing="full"))
    changes = [each["change"] for each in simulate_llm(request, gpu("h200_sxm"), advise=True).advice]
    assert "keep all activations" in changes


def test_sparsity_is_tried_only_where_tensor_cores_have_it():
    request = Llm(SMALL, execution=Execution(dtype="fp16"))
    for name, has in (("h200_sxm", True), ("v100_sxm2_32gb", False)):
        assert any("2:4" in text for text, _ in precisions(request, gpu(name))) is has


def test_experts_that_get_no_token_are_not_run():
    mixtral = load_model("mixtral-8x7b").with_layers(1)
    one, many = (simulate_llm(Llm(mixtral, "decode", batch=batch), gpu("h200_sxm")) for batch in (1, 64))
    assert many.first.n_kernels > one.first.n_kernels
    assert many.tokens_per_s > one.tokens_per_s


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"clock_mhz": -5.0}, "clock = -5 MHz: must be from 100 to 10000"),
        ({"clock_mhz": math.nan}, "clock = nan MHz: must be from 100 to 10000"),
        ({"clock_mhz": "fast"}, "clock_mhz = 'fast': must be a number or None"),
        ({"data": "ones"}, "data = 'ones': must be one of random, zeros"),
        ({"without": frozenset({"friction"})}, "without = 'friction': must be one of"),
    ],
)
def test_options_that_there_are_none_of_are_refused(wrong: dict[str, Any], said: str):
    with pytest.raises(ConfigError, match=said):
        run_step(decode(SMALL, Execution("measured"), 8, 512), gpu("h200_sxm"), Options(**wrong))


def test_a_context_that_no_pass_can_read_at_once_is_read_by_one_sequence():
    """129 x 2,048 tokens are more rows than a product takes (262,144)."""
    request = Llm(SMALL, "decode", batch=129, context=2048)
    found = simulate_llm(request, gpu("h200_sxm"), first_token=True)
    assert found.prefill is not None
    assert (found.prefill.request.batch, found.prefill.request.tokens) == (1, 2048)


def test_a_kernel_chosen_later_replaces_the_one_that_ran():
    gemm, kernels = Gemm(4096, 4096, 4096), Kernels(gpu("h200_sxm"), Options())
    before = main_kernel(kernels.of(gemm)).name
    kernels.choose(gemm, parse_kernel_name("nvjet_sm90_tst_64x64_64x13_2x1_v_bz_TNT", gemm))
    assert main_kernel(kernels.of(gemm)).name != before
