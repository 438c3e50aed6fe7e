"""A model's step as operations: FLOPs, weights and tensors are those of the model, whatever the program fuses."""

from __future__ import annotations

import pytest

from hwmodels.errors import ConfigError
from workloads import list_models, load_model
from workloads.attention import Attention
from workloads.execution import Execution
from workloads.forward import decode, prefill
from workloads.fusion import with_chains
from workloads.gemm import Gemm
from workloads.llm import Llm
from workloads.models.counts import experts_used, forward_flops, kv_cache_bytes, parameters, training_flops
from workloads.operations import Operation, Step, Tensor
from workloads.stream import Stream
from workloads.training import Training, backward_step, forward_step, optimizer_step, training_step
from workloads.weights import product_weight_bytes

PROGRAMS = (Execution(), Execution(fusion="epilogue"), Execution(fusion="full"))
DECODERS = [name for name in list_models() if not load_model(name).encoder_only]
LLAMA = load_model("llama3-8b")

pytestmark = pytest.mark.small


@pytest.mark.parametrize("execution", PROGRAMS, ids=lambda each: each.fusion)
@pytest.mark.parametrize("name", list_models())
def test_a_prefill_has_the_models_flops_and_weights(name: str, execution: Execution):
    model = load_model(name)
    step = prefill(model, execution, 2, 128)
    assert step.model_flops == forward_flops(model, 2, 128, last_only=not model.encoder_only).total
    unused = (model.n_experts - min(model.n_experts, 2 * 128 * model.top_k)) if model.n_experts else 0
    assert unused == 0
    assert step.bytes_of("weight") == 2 * parameters(model).total


@pytest.mark.parametrize("name", DECODERS)
def test_a_decode_step_has_the_models_flops_and_reads_its_cache(name: str):
    model = load_model(name)
    step = decode(model, Execution(), 4, 500)
    assert step.model_flops == forward_flops(model, 4, 1, context=500, last_only=True).total
    assert step.bytes_of("cache") == kv_cache_bytes(model, 4, 501, "bf16")


def test_every_tensor_that_is_read_was_written_before_or_was_there():
    for execution in PROGRAMS:
        written: set[str] = set()
        step = prefill(LLAMA, execution, 1, 64)
        for operation in step.operations:
            for _, name in operation.reads:
                assert name in written or step.tensors[name].kind in ("weight", "input"), (operation.name, name)
            written.update(operation.writes)


def test_the_measured_program_is_that_of_the_protocol():
    step = decode(LLAMA, Execution("measured"), 8, 512)
    names = [operation.name for operation in step.operations if operation.layer == 0]
    assert names == [
        "attention norm", "qkv", "cache k", "cache v", "attention", "out", "residual",
        "ffn norm", "gate_up", "silu", "multiply", "down", "residual",
    ]  # fmt: skip
    assert step.operations[0].name == "embedding"
    assert [operation.name for operation in step.operations[-2:]] == ["final norm", "head"]
    assert step.operations[-1].work == Gemm(8, 128256, 4096)


@pytest.mark.parametrize("name", list_models())
def test_weights_of_products_are_what_products_read(name: str):
    model = load_model(name)
    step = prefill(model, Execution(), 2, 128)
    read = {name for operation in step.operations for role, name in operation.reads if role == "b"}
    n_bytes = sum(step.tensors[name].n_bytes for name in read if step.tensors[name].kind == "weight")
    assert n_bytes == product_weight_bytes(model)


def test_fusing_launches_less_and_moves_less():
    steps = [prefill(LLAMA, execution, 1, 256) for execution in PROGRAMS]
    n_operations = [len(step.operations) for step in steps]
    moved = [sum(operation.work.compulsory_bytes for operation in step.operations) for step in steps]
    assert n_operations[0] > n_operations[1] > n_operations[2]
    assert moved[0] > moved[1] > moved[2]


def test_a_fused_cache_s_write_is_of_the_cache_s_type():
    for dtype, size in ((None, 2), ("fp8_e4m3", 1)):
        step = decode(LLAMA, Execution(fusion="full", kv_dtype=dtype), 4, 100)
        work = next(each.work for each in step.operations if each.name == "rope + cache")
        assert isinstance(work, Stream)
        assert work.read_bytes == 2 * 4 * (4096 + 2 * 1024)
        assert work.write_bytes == 4 * (2 * 4096 + size * 2 * 1024)


def test_relu_is_relu():
    model = load_model("opt-125m").with_layers(1)
    eager, fused = (prefill(model, Execution(fusion=fusion), 1, 64) for fusion in ("none", "epilogue"))
    alone = next(each.work for each in eager.operations if each.name == "relu")
    assert alone.flops == 64 * 3072
    up = next(each.work for each in fused.operations if each.name == "up")
    assert isinstance(up, Gemm)
    assert (up.epilogue, up.epilogue_flops) == ("bias_relu", 2 * 64 * 3072)
    assert "relu" not in [each.name for each in fused.operations]


def test_a_cap_of_logits_is_three_kernels_or_one():
    model = load_model("gemma2-9b").with_layers(1)
    elements = 4 * model.vocabulary
    found = []
    for execution in PROGRAMS:
        works = [each.work for each in decode(model, execution, 4, 10).operations if each.name.startswith("logits")]
        assert all(work.compulsory_bytes == 4 * elements for work in works)
        found.append((len(works), sum(work.flops for work in works)))
    assert found == [(3, 3 * elements), (1, 3 * elements), (0, 0)]  # part of the head's statistics


def test_experts_results_are_summed_by_one_kernel():
    step = prefill(load_model("mixtral-8x7b").with_layers(1), Execution(fusion="full"), 1, 100)
    combine = next(each for each in step.operations if each.name == "combine")
    assert combine.work == Stream("reduce", 100, 4096, fan_in=2)
    assert combine.reads == (("x", "expert.out"),)


def test_an_8_bit_cache_is_half_as_large_and_is_read_as_such():
    wide, narrow = (decode(LLAMA, Execution(kv_dtype=dtype), 2, 1000) for dtype in (None, "fp8_e4m3"))
    assert 2 * narrow.bytes_of("cache") == wide.bytes_of("cache")
    attention = next(each.work for each in narrow.operations if isinstance(each.work, Attention))
    assert attention.kv_bytes == 2 * 2 * 8 * 1001 * 128


def test_windows_limit_what_attention_sees():
    step = prefill(load_model("mistral-7b"), Execution(), 1, 8192)
    attention = next(each.work for each in step.operations if isinstance(each.work, Attention))
    assert attention.window == 4096


def test_a_windows_cache_is_as_large_as_in_the_memory_plan():
    request = Llm(load_model("mistral-7b"), "decode", batch=64, context=30_000)
    step = request.step()
    assert step.bytes_of("cache") == request.memory().largest("kv_cache") == 64 * 4096 * 131_072
    attention = next(each.work for each in step.operations if isinstance(each.work, Attention))
    assert (attention.kv_len, attention.window) == (4096, None)
    assert 32 * attention.kv_bytes == step.bytes_of("cache")
    gemma = decode(load_model("gemma2-9b"), Execution(), 2, 6000)
    assert gemma.bytes_of("cache") == kv_cache_bytes(load_model("gemma2-9b"), 2, 6001)


def test_attention_reads_the_keys_that_are_seen():
    chunk = Attention(1, 32, 8, 128, 512, 8192, causal=True, window=4096)
    assert chunk.kv_bytes == 2 * 2 * 8 * 128 * (4096 + 511)
    assert chunk.all_kv_bytes == 2 * 2 * 8 * 128 * 8192
    assert chunk.flops == 4 * 32 * 128 * 512 * 4096
    assert Attention(1, 32, 8, 128, 4096, 4096, causal=True, window=4096).kv_bytes == 2 * 2 * 8 * 128 * 4096


def test_experts_share_tokens_evenly():
    step = prefill(load_model("mixtral-8x7b").with_layers(1), Execution(), 1, 100)
    downs = [each.work for each in step.operations if each.name.endswith("down")]
    assert len(downs) == 8
    assert {work.m for work in downs if isinstance(work, Gemm)} == {25}
    one = decode(load_model("mixtral-8x7b").with_layers(1), Execution(), 1, 10)
    assert sum(each.name.endswith("down") for each in one.operations) == 2


def test_at_random_as_many_experts_are_read_as_are_expected():
    """8 (1 - (3/4)^4) = 5.47 of 8 for 4 tokens that pick 2 each: layers take turns, and no pick is lost."""
    mixtral = load_model("mixtral-8x7b")
    for fusion, even in (("none", 8), ("full", 8)):
        steps = {
            balance: decode(mixtral, Execution(fusion=fusion, balance=balance), 4, 10) for balance in ("random", "even")
        }
        read = {balance: sum(_experts(step).values()) / 32 for balance, step in steps.items()}
        assert read["even"] == even
        assert read["random"] == pytest.approx(experts_used(mixtral, 4), abs=0.5 / 32)
    eager = decode(mixtral, Execution(), 4, 10)
    rows = [each.work.m for each in eager.operations if each.name.endswith("down") and isinstance(each.work, Gemm)]
    assert sum(rows) == 32 * 4 * 2
    assert {sum(_experts(prefill(mixtral, Execution(), 1, 512)).values())} == {32 * 8}
    assert set(_experts(decode(mixtral, Execution(), 1, 10)).values()) == {2}


def _experts(step: Step) -> dict[int, int]:
    """Layer -> experts whose last product runs."""
    found: dict[int, int] = {}
    for each in step.operations:
        if each.name.endswith("down") and isinstance(each.work, Gemm):
            found[each.layer] = found.get(each.layer, 0) + each.work.batch
    return found


# Chains.
def elementwise(name: str, op: str, reads: tuple[str, ...], to: str, width: int = 8) -> Operation:
    return Operation(name, Stream(op, 4, width), tuple(("x", read) for read in reads), (to,))


def chained(*operations: Operation) -> Step:
    names = {n for each in operations for n in (*(name for _, name in each.reads), *each.writes)}
    return with_chains(Step("s", operations, {name: Tensor(name, 64, "activation") for name in names}))


def test_a_chain_reads_and_writes_only_what_others_see():
    step = chained(
        elementwise("one", "mul", ("a", "b"), "t"),
        elementwise("two", "silu", ("t",), "u"),
        elementwise("three", "add", ("u", "c"), "out"),
        elementwise("norm", "rms_norm", ("out", "u"), "end"),
    )
    chain, norm = step.operations
    assert isinstance(chain.work, Stream)
    assert chain.work.chain == ("mul", "silu", "add")
    assert [name for _, name in chain.reads] == ["a", "b", "c"]
    assert set(chain.writes) == {"u", "out"}
    assert chain.work.read_bytes == 3 * 64
    assert chain.work.write_bytes == 2 * 64
    assert chain.work.flops == (1 + 3 + 1) * 32
    assert norm.name == "norm"


def test_a_chain_ends_where_shapes_or_links_do():
    step = chained(
        elementwise("one", "add", ("a", "b"), "t"),
        elementwise("other", "add", ("c", "d"), "e"),
        elementwise("wide", "add", ("t", "t"), "u", width=4),
        elementwise("soft", "softmax", ("u",), "v", width=4),
    )
    assert [each.name for each in step.operations] == ["one", "other", "wide", "soft"]


@pytest.mark.parametrize("name", ["llama3-8b", "mixtral-8x7b", "gpt2", "gemma2-9b"])
def test_chains_compute_the_same(name: str):
    step = prefill(load_model(name).with_layers(2), Execution(), 1, 64)
    fused = with_chains(step)
    assert fused.flops == step.flops
    assert len(fused.operations) <= len(step.operations)
    assert with_chains(fused) == fused


# Training.
TINY = LLAMA.with_layers(2)


def test_backward_has_twice_the_products_and_two_and_a_half_times_attention():
    forward = forward_step(TINY, Execution(), Training(), 1, 256)
    both = backward_step(TINY, Execution(), Training(), 1, 256)

    def flops(step: Step, kind: type) -> int:
        return sum(each.work.flops for each in step.operations if isinstance(each.work, kind))

    assert flops(both, Gemm) == 3 * flops(forward, Gemm)
    assert 2 * flops(both, Attention) == 7 * flops(forward, Attention)


def test_full_checkpointing_runs_layers_again_and_selective_attention():
    flops = {}
    for how in ("none", "selective", "full"):
        step = backward_step(TINY, Execution(), Training(how, layers_only=True), 1, 256)
        flops[how] = step.flops
    forward = forward_step(TINY, Execution(), Training(layers_only=True), 1, 256)
    attention = sum(each.work.flops for each in forward.operations if isinstance(each.work, Attention))
    assert flops["full"] - flops["none"] == forward.flops
    assert flops["selective"] - flops["none"] == attention


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
@pytest.mark.parametrize("name", ["llama3-8b", "gpt2", "mixtral-8x7b"])
def test_a_models_flops_leave_out_what_is_computed_again(name: str, checkpointing: str):
    model = load_model(name).with_layers(2)
    step = training_step(model, Execution(), Training(checkpointing), 1, 256)
    assert step.model_flops == training_flops(model, 1, 256)


def test_packed_gradients_are_concatenated_and_shared_ones_added():
    step = backward_step(TINY, Execution("measured"), Training(layers_only=True), 1, 256)
    names = [each.name for each in step.operations if each.layer == 0 and each.name.startswith(("conc", "add"))]
    assert names == ["add d x", "concatenate d gate_up", "add d x", "concatenate d qkv"]


def test_the_gradient_of_the_loss_is_that_of_fp32_log_probabilities():
    step = backward_step(TINY, Execution(), Training(), 1, 64)
    names = [each.name for each in step.operations]
    start = names.index("log_softmax")
    assert names[start - 1 : start + 3] == ["head", "log_softmax", "gradient of the loss", "log_softmax: backward"]
    assert names[start + 3 :][:2] == ["head: d weight", "head: d input"]
    softmax, seed, backward = (each.work for each in step.operations[start : start + 3])
    elements = 64 * 128_256
    assert isinstance(softmax, Stream)
    assert isinstance(seed, Stream)
    assert isinstance(backward, Stream)
    assert (softmax.read_bytes, softmax.write_bytes) == (2 * elements, 4 * elements)
    assert seed.compulsory_bytes == 4 * elements
    assert (backward.read_bytes, backward.write_bytes) == (8 * elements, 2 * elements)
    assert not any("pick" in name for name in names)


def embedding_gradient(name: str) -> list[tuple[str, int]]:
    step = backward_step(load_model(name).with_layers(1), Execution(), Training(), 1, 64)
    found = [each for each in step.operations if each.name.startswith("embedding: ")]
    assert found[-1].writes == ("embedding gradient",)
    return [(each.work.op, each.work.elements) for each in found if isinstance(each.work, Stream)]


def test_the_table_s_gradient_is_dense_and_added_to_a_tied_head_s():
    table, rows = 128_256 * 4096, 64 * 4096
    assert embedding_gradient("llama3-8b") == [("fill", table), ("embedding_backward", rows)]
    table, rows = 50_257 * 768, 64 * 768
    assert embedding_gradient("gpt2") == [("fill", table), ("embedding_backward", rows), ("add", table)]


@pytest.mark.parametrize("execution", PROGRAMS, ids=lambda each: each.fusion)
@pytest.mark.parametrize("name", list_models())
def test_accumulation_and_the_optimizer_take_every_parameter_once(name: str, execution: Execution):
    model = load_model(name).with_layers(2)
    step = training_step(model, execution, Training(accumulated=2), 1, 128)
    added = [each for each in step.operations if each.name.startswith("accumulate")]
    n = parameters(model).total
    assert sum(each.work.elements for each in added if isinstance(each.work, Stream)) == n
    for last in (step.operations[-1], optimizer_step(model, execution, Training()).operations[0]):
        assert isinstance(last.work, Stream)
        assert last.work.elements == n


def test_biases_have_gradients_of_their_own():
    step = backward_step(load_model("gpt2").with_layers(1), Execution(), Training(), 2, 64)
    found = {each.writes[0]: each.work for each in step.operations if each.name.endswith("d bias")}
    assert {name: step.tensors[name].n_bytes for name in found} == {
        "0.qkv.bias gradient": 2 * 3 * 768,
        "0.out.bias gradient": 2 * 768,
        "0.up.bias gradient": 2 * 4 * 768,
        "0.down.bias gradient": 2 * 768,
    }
    assert all(work.read_bytes == 128 * step.tensors[name].n_bytes for name, work in found.items()
               if isinstance(work, Stream))  # fmt: skip


def test_every_weight_gets_a_gradient():
    step = backward_step(TINY, Execution(), Training(), 1, 64)
    weights = {name for name, tensor in step.tensors.items() if tensor.kind == "weight" and name.endswith("weight")}
    gradients = {name.removesuffix(" gradient") for name in step.tensors if name.endswith(" gradient")}
    assert weights <= gradients


def test_the_optimizer_touches_every_parameter_once():
    step = optimizer_step(TINY, Execution(), Training(optimizer="adamw"))
    (operation,) = step.operations
    assert isinstance(operation.work, Stream)
    assert operation.work.elements == parameters(TINY).total
    assert operation.work.compulsory_bytes == 14 * parameters(TINY).total


def test_accumulated_passes_add_their_gradients():
    one = training_step(TINY, Execution(), Training(), 1, 64)
    three = training_step(TINY, Execution(), Training(accumulated=3), 1, 64)
    assert three.model_flops == 3 * one.model_flops
    assert sum(each.name.startswith("accumulate") for each in three.operations) > 0


# Refusals.
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Llm(LLAMA, "decode", batch=0), "batch = 0"),
        (lambda: Llm(LLAMA, "prefill", tokens=8193), "8193 tokens"),
        (lambda: Llm(LLAMA, "chat"), "phase = 'chat'"),
        (lambda: Llm(load_model("bert-base"), "decode", context=100), "phase = 'decode'"),
        (lambda: Execution(fusion="some"), "fusion = 'some'"),
        (lambda: Execution("measured", "full"), "fusion = 'full'"),
        (lambda: Training("half"), "checkpointing = 'half'"),
        (lambda: training_step(TINY, Execution(page=16), Training(), 1, 64), "page"),
        (lambda: Step("s", (Operation("o", Gemm(1, 1, 1), (("a", "x"),), ("y",)),), {}), "tensor 'x'"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(make, said: str):
    with pytest.raises(ConfigError, match=said):
        make()


def test_a_step_knows_its_tensors():
    step = Step("one", (Operation("o", Gemm(1, 1, 1), (("a", "x"),), ("x",)),), {"x": Tensor("x", 2, "activation")})
    assert step.flops == step.model_flops == 2
    assert step.bytes_of("activation") == 2


@pytest.mark.parametrize("execution", [*PROGRAMS, Execution("measured")], ids=str)
def test_decode_in_a_window_sees_the_whole_cache_that_is_kept(execution: Execution):
    """No mask: the layer keeps no more keys than its window, and a step costs no more behind more tokens."""
    model = load_model("mistral-7b").with_layers(1)

    def attention(context: int, tokens: int = 1) -> Attention:
        works = [each.work for each in decode(model, execution, 4, context, tokens).operations]
        return next(work for work in works if isinstance(work, Attention))

    assert (attention(100).kv_len, attention(100).window) == (101, None)
    assert attention(4095) == attention(4096) == attention(20_000)
    assert attention(20_000).all_kv_bytes == attention(20_000).kv_bytes
    assert attention(20_000, tokens=2).window == 4096
