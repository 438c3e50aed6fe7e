"""`tilewalk llm`, `kernels` and `models`: what is printed, that every option arrives, what is refused and how."""

from __future__ import annotations

import contextlib
import io
import json
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

import sim.llm
from hwmodels.catalog import load_gpu
from hwmodels.errors import ConfigError
from sim.llm import SCHEMA, How
from sim.program import LAUNCH_MODES
from sim.schedule.attention import BACKENDS, WIDEST
from tests.command_line import ROOT, one_error, process, tilewalk
from tests.sample_llm import ASKED, sample_llm
from viz.commands import llm as commands
from viz.commands import llm_options, llm_request, progress
from viz.commands.app import app
from viz.llm import facts, terminal
from viz.llm.kernels import kernels_json, print_kernels, sections
from workloads.llm import PHASES, Llm
from workloads.models.catalog import list_models, load_model
from workloads.models.counts import parameters
from workloads.training import CHECKPOINTING, OPTIMIZERS

COMMANDS = typer.main.get_command(app)


class FakeSimulate:
    """Stands in for `simulate_llm`: remembers what it was asked and answers with a small result of that phase."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.advised: list[bool] = []
        self.first_tokens: list[bool] = []
        self.steadies: list[bool] = []

    def __call__(
        self,
        llm: Any,
        gpu: Any,
        options: Any,
        how: Any,
        *,
        advise: bool = False,
        first_token: bool = False,
        steady: bool = False,
        progress: Any = None,
    ) -> Any:
        self.asked.append((llm, gpu, options, how))
        self.first_tokens.append(first_token)
        self.steadies.append(steady)
        self.advised.append(advise)
        return sample_llm(llm.phase)


def replace_simulate(monkeypatch: pytest.MonkeyPatch, by: Any) -> None:
    monkeypatch.setattr(sim.llm, "simulate_llm", by)
    monkeypatch.setattr(commands, "engine_needs_compiling", lambda: False)


@pytest.fixture
def simulate(monkeypatch: pytest.MonkeyPatch) -> FakeSimulate:
    fake = FakeSimulate()
    replace_simulate(monkeypatch, fake)
    return fake


# The screen.
def printed(name: str, width: int = 100, encoding: str = "utf-8", **options: Any) -> str:
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding=encoding, newline="") as out:
        terminal.print_llm(sample_llm(name), Console(file=out, width=width), **options)
        out.flush()
        return raw.getvalue().decode(encoding)


@pytest.mark.parametrize("name", ASKED)
def test_one_screen(name: str) -> None:
    lines = printed(name, price_per_hour=2.5).splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100


def test_a_narrow_list_of_models_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tilewalk("models").stdout
    monkeypatch.setenv("COLUMNS", "60")
    narrow = tilewalk("models").stdout
    assert set(whole.split()) == set(narrow.split())
    assert max(map(len, narrow.splitlines())) <= 60


@pytest.mark.parametrize("name", ASKED)
def test_narrow_consoles_lose_no_figures(name: str) -> None:
    text = printed(name, 60)
    assert max(map(len, text.splitlines())) <= 60
    assert "…" not in text


def test_ascii_consoles_get_ascii() -> None:
    assert printed("decode", encoding="ascii").isascii()


def test_the_screen_tells_the_story() -> None:
    text = printed("decode", price_per_hour=2.5)
    for part in ("4 sequences behind 1,000 tokens", "tokens/s", "Model FLOPs", "HBM bandwidth", "for a million tokens"):
        assert part in text
    for part in ("gate", "attention", "idle between kernels", "Kernels limited by", "KV cache", "of 141 GB", "MHz"):
        assert part in text


def test_each_phase_tells_its_times() -> None:
    assert "to the first token" in printed("prefill")
    assert re.search(r"first token after .* then .* a token", printed("generate"))
    assert " a step · " in printed("training")
    assert " a pass · " in printed("encoder")
    assert "Tokens choose experts at random (--balance even: as even as can be): 5.5 of 8 get any" in " ".join(
        printed("experts").split()
    )
    assert "weights over PCIe" in printed("streamed")
    assert "the board's power leaves" in printed("capped")


def test_a_decode_step_tells_the_time_to_its_first_token() -> None:
    result = sample_llm("answered")
    assert result.prefill is not None
    assert (result.prefill.request.phase, result.prefill.request.tokens) == ("prefill", result.request.context)
    alone = sim.llm.simulate_llm(result.request.but(phase="prefill", tokens=100), load_gpu("h200_sxm"))
    assert result.time_to_first_token_s == alone.time_s
    assert "First token after" in printed("answered")
    assert "a prefill of 2 × 100 tokens" in printed("answered")
    found = terminal.to_json(result)
    assert (found["time_to_first_token_us"], found["first_token_batch"]) == (alone.time_s * 1e6, 2)
    assert sample_llm("decode").time_to_first_token_s is None


def test_a_first_token_at_a_clock_that_the_board_does_not_hold_is_marked() -> None:
    for name, is_burst in (("hungry", True), ("prefill", False)):
        result = replace(sample_llm("answered"), prefill=sample_llm(name))
        (line,) = [str(each) for each in terminal._headline(result, None) if str(each).startswith("First token")]
        assert (f" in a burst of {sample_llm(name).power_w:,.0f} W: a prefill" in line) is is_burst
        assert len(line) <= 100
        assert terminal.to_json(result)["first_token_burst"] is is_burst


def test_where_the_whole_batch_does_not_fit_one_sequence_is_read() -> None:
    small = load_gpu("h200_sxm", ("hbm.capacity_gb=0.6",))
    request = Llm(load_model("gpt2"), "decode", 8, context=1000)
    result = sim.llm.simulate_llm(request, small, first_token=True)
    assert result.prefill is not None
    assert result.prefill.request.batch == 1


@pytest.mark.parametrize(("words", "wanted"), [("", True), ("--json", True), ("--json -q", True), ("--quiet", False)])
def test_the_first_token_and_long_load_are_simulated_where_they_are_shown(
    words: str, wanted: bool, simulate: FakeSimulate
) -> None:
    tilewalk("llm", "--model", "gpt2", *words.split())
    assert (simulate.first_tokens, simulate.steadies) == ([wanted], [wanted])


def test_a_burst_that_the_board_does_not_hold_is_marked_and_what_it_becomes_is_told() -> None:
    result = sample_llm("hungry")
    assert result.steady is not None
    assert result.power_w > result.held_w > 0.9 * result.steady.power_w
    text = printed("hungry", price_per_hour=2.0)
    assert f"{result.power_w:,.0f} W in a burst (the board holds 692 W)" in text
    cost = result.steady.cost_per_million_tokens(2.0)
    assert re.search(rf"Under long load .* {result.steady.power_w:,.0f} W, .* {cost:.3g} for a million tokens", text)
    assert text.count("for a million tokens") == 1
    quiet = terminal.time_line(result, 2.0)
    assert "in a burst" in quiet
    assert "Under long load" in quiet
    found = terminal.to_json(result, 2.0)
    assert found["burst"] is True
    assert found["cost_per_million_tokens"] == cost
    assert found["steady"]["power_w"] == result.steady.power_w
    for name in ("decode", "capped"):
        assert "in a burst (the" not in printed(name)
        assert not terminal.to_json(sample_llm(name))["burst"]


def test_shares_of_the_table_add_up_to_the_step() -> None:
    for name in ASKED:
        result = sample_llm(name)
        rows = terminal._folded(result)
        assert sum(share.time_s for share, _ in rows) == pytest.approx(result.shown.wall_s)
        assert sum(share.n_kernels for share, _ in rows) == result.shown.n_kernels


def test_advice_is_printed() -> None:
    result = sample_llm("prefill", advise=True)
    out = io.StringIO()
    terminal.print_llm(result, Console(file=out, width=100))
    assert result.advice
    assert f"{result.advice[0]['speedup']:.2f} × by: {result.advice[0]['change']}" in out.getvalue()


def test_memory_of_streamed_weights_is_not_in_hbm() -> None:
    """But the embedding's table and the norms, which no product takes."""
    result = sample_llm("streamed")
    assert "weights" in result.memory.peak.parts
    assert facts.memory_peak(result).parts["weights"] == 2 * (128_256 * 4096 + 5 * 4096)
    assert terminal.to_json(result)["memory"]["peak_bytes"] < result.memory.peak_bytes


@pytest.mark.parametrize("name", ASKED)
def test_every_kernel_has_its_place_in_time(name: str) -> None:
    step = sample_llm(name).shown
    placed = facts.placed(step)
    assert sum(len(each.kernels) for each in placed) == step.n_kernels
    assert all(a.end_s <= b.start_s + 1e-12 for a, b in pairwise(placed))
    for each in placed:
        assert each.end_s - each.start_s == pytest.approx(sum(kernel.time_s for kernel in each.kernels), rel=1e-6)


def test_streamed_weights_are_blamed_on_the_link_not_on_launches() -> None:
    text, result = " ".join(printed("streamed").split()), sample_llm("streamed")
    assert "launch-bound" not in text
    assert "bound by PCIe, the GPU idle" in text
    unused = 141e9 - facts.memory_peak(result).total
    assert f"{unused / 1e9:.0f} GB of HBM unused" in text
    found = terminal.to_json(result)
    assert found["shown"]["idle_cause"] == "pcie"
    assert found["memory"]["unused_bytes"] == unused


def test_the_cause_of_idle_time_is_always_named() -> None:
    """In a stream that keeps up, as in a graph, gaps are left."""
    causes = {name: facts.idle_cause(sample_llm(name).shown) for name in ASKED}
    assert causes["fused"] == causes["capped"] == "gaps"
    for name in ASKED:
        row = next(line for line in printed(name).splitlines() if line.startswith(facts.IDLE))
        assert row.rstrip().endswith(facts.IDLE_CAUSES[causes[name]])


def test_a_slow_host_is_blamed_for_its_launches() -> None:
    step = sample_llm("eager").shown
    assert facts.idle_cause(step) == "launches"
    assert "launch-bound, the GPU idle" in printed("eager")
    assert "launch-bound" not in printed("training"), "the host keeps up, and a graph would save nothing"


# JSON.
KEYS = """
model parameters gpu phase batch execution how options time_us time_per_token_us time_to_first_token_us n_tokens
notes tokens_per_s model_flops_utilisation bandwidth_utilisation energy_j power_w power_held_w burst
cost_per_million_tokens shown by_operation by_limiter steps memory advice versions schema
"""


def test_json_is_one_object_with_the_promised_keys(simulate: FakeSimulate) -> None:
    done = tilewalk("llm", "--model", "gpt2", "--json", "--price", "3.6")
    found = json.loads(done.stdout)
    result = sample_llm("prefill")
    assert found.keys() == {*KEYS.split(), "tokens"}
    assert found["schema"] == SCHEMA
    assert found["time_us"] == pytest.approx(result.time_s * 1e6)
    assert found["cost_per_million_tokens"] == pytest.approx(0.001 / result.tokens_per_s * 1e6)
    assert found["parameters"] == parameters(result.request.model).total
    assert found["shown"]["kernels_us"] + found["shown"]["idle_us"] == pytest.approx(result.shown.wall_s * 1e6)
    assert done.stderr == ""


@pytest.mark.parametrize("name", ASKED)
def test_json_adds_up(name: str) -> None:
    found = json.loads(json.dumps(terminal.to_json(sample_llm(name))))
    shown = found["shown"]
    for shares in (found["by_operation"], found["by_limiter"]):
        assert sum(share["time_us"] for share in shares) == pytest.approx(shown["kernels_us"])
        assert sum(share["n_kernels"] for share in shares) == shown["n_kernels"]
        assert sum(share["hbm_bytes"] for share in shares) == sum(shown["hbm_bytes"].values())
    assert sum(found["memory"]["parts"].values()) == found["memory"]["peak_bytes"]
    assert found["power_w"] == pytest.approx(found["energy_j"] / found["time_us"] * 1e6)


@pytest.mark.parametrize("name", ASKED)
def test_scripts_get_codes_and_people_get_words(name: str) -> None:
    """The same limiters in both: "hbm_latency" and "HBM latency"."""
    result = sample_llm(name)
    codes = {each["name"] for each in terminal.to_json(result)["by_limiter"]}
    assert codes == {each["limiter"] for each in kernels_json(result.shown)["kernels"]}
    assert all(re.fullmatch(r"[a-z0-9_]+", code) for code in codes)
    rows = terminal._limiters(result, 100).columns[0].cells
    assert not {str(row) for row in rows} & {"hbm", "smem", "tensor", "sm_port", "cuda_cores", "l2"}


def test_quiet_prints_one_line(simulate: FakeSimulate) -> None:
    done = tilewalk("llm", "--model", "gpt2", "--quiet", "--price", "2")
    assert re.fullmatch(
        r".* to the first token · .* tokens/s read · .* for a million tokens at 2 an hour\n", done.stdout
    )
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("words", "advised"),
    [("", True), ("--json", False), ("--quiet", False), ("--no-advise", False), ("--json --advise", True)],
)
def test_advice_is_simulated_where_it_is_shown(words: str, advised: bool, simulate: FakeSimulate) -> None:
    tilewalk("llm", "--model", "gpt2", *words.split())
    assert simulate.advised == [advised]


# What arrives.
def test_defaults(simulate: FakeSimulate) -> None:
    tilewalk("llm", "--model", "Llama-3-8B")
    llm, gpu, options, how = simulate.asked[0]
    assert (llm.model.name, llm.phase, llm.batch, llm.tokens) == ("llama3-8b", "prefill", 1, 2048)
    assert (gpu.name, options.clock_mhz, options.sustained, how) == ("h200_sxm", None, False, How(launch="stream"))


def test_defaults_fit_short_contexts(simulate: FakeSimulate) -> None:
    tilewalk("llm", "--model", "bert-base")
    tilewalk("llm", "--model", "gpt2", "--phase", "decode")
    tilewalk("llm", "--model", "gpt2", "--phase", "generate", "--new-tokens", "500")
    assert simulate.asked[0][0].tokens == 512
    assert simulate.asked[1][0].context == 1023
    assert (simulate.asked[2][0].tokens, simulate.asked[2][0].longest) == (525, 1024)


ARRIVING = {
    "--batch 3": ("llm.batch", 3),
    "--tokens 77": ("llm.tokens", 77),
    "--phase decode --context 55": ("llm.context", 55),
    "--phase generate --new-tokens 9": ("llm.new_tokens", 9),
    "--program measured": ("llm.execution.program", "measured"),
    "--fusion epilogue": ("llm.execution.fusion", "epilogue"),
    "--dtype fp16": ("llm.execution.dtype", "fp16"),
    "--kv-dtype fp8_e4m3": ("llm.execution.kv_dtype", "fp8_e4m3"),
    "--page 16": ("llm.execution.page", 16),
    "--phase training --checkpointing full": ("llm.training.checkpointing", "full"),
    "--phase training --optimizer adamw": ("llm.training.optimizer", "adamw"),
    "--phase training --accumulated 4": ("llm.training.accumulated", 4),
    "--attention cudnn": ("how.attention", "cudnn"),
    "--launch graph": ("how.launch", "graph"),
    "--cold": ("how.cold", True),
    "--stream-weights": ("how.stream_weights", True),
    "--clock 1500": ("options.clock_mhz", 1500.0),
    "--sustained": ("options.sustained", True),
    "--gpu h100_sxm": ("gpu.name", "h100_sxm"),
    "--set hbm.bandwidth_gb_per_s=*2": ("gpu.hbm.bandwidth_gb_per_s", 9600),
}


@pytest.mark.parametrize("command", ["llm", "kernels"])
@pytest.mark.parametrize("words", ARRIVING)
def test_options_arrive(words: str, command: str, simulate: FakeSimulate) -> None:
    path, value = ARRIVING[words]
    tilewalk(command, "--model", "gpt2", *words.split())
    found: Any = dict(zip(("llm", "gpu", "options", "how"), simulate.asked[0], strict=True))[path.split(".")[0]]
    for name in path.split(".")[1:]:
        found = getattr(found, name)
    assert found == value


def test_names_repeated_for_a_quick_start_are_those_of_their_modules() -> None:
    assert llm_options.PHASES == PHASES
    assert llm_options.BACKENDS == BACKENDS
    assert llm_options.CHECKPOINTING == CHECKPOINTING
    assert llm_options.OPTIMIZERS == OPTIMIZERS
    assert set(facts.LAUNCHED) == set(LAUNCH_MODES)


INTERFACE = """
--model --gpu --phase --batch --tokens --context --new-tokens --program --fusion --dtype --kv-dtype --page --attention
--launch --checkpointing --optimizer --accumulated --stream-weights --sustained --cold --clock --set --json
"""


@pytest.mark.parametrize(
    ("command", "own"), [("llm", "--price --figure --trace --inside --advise --quiet"), ("kernels", "--all")]
)
def test_help_has_every_option(command: str, own: str) -> None:
    text = tilewalk(command, "--help").stdout
    assert [option for option in f"{INTERFACE} {own}".split() if f"{option} " not in text] == []


@pytest.mark.parametrize("words", ["llm --model qwen2.5-1", "models qwen2.5-1", "kernels --model qwen2.5-1"])
def test_the_shell_completes_models(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TILEWALK_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"tilewalk {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    assert tilewalk().stdout.split() == ["qwen2.5-14b"]


# Kernels.
def test_equal_layers_are_folded_and_nothing_is_lost() -> None:
    for name in ASKED:
        step = sample_llm(name).shown
        folded = sum(section.times * row.times for section in sections(step) for row in section.rows)
        every = [row for section in sections(step, every=True) for row in section.rows]
        assert folded == len(every) == step.n_kernels
        assert [row.kernel for row in every] == [kernel for ran in step.ran for kernel in ran.kernels]


def test_folded_times_add_up() -> None:
    step = sample_llm("decode").shown
    found = kernels_json(step)
    assert sum(row["times"] * row["time_us"] for row in found["kernels"]) == pytest.approx(found["kernels_us"])
    assert max(row["times"] for row in found["kernels"]) >= 3


def test_experts_are_folded() -> None:
    step = sample_llm("experts").shown
    assert (
        max(row.times for section in sections(step) for row in section.rows) == 4
    )  # of 8 picks on 6 experts, 4 have one


def test_kernels_are_listed_with_all_columns_in_a_pipe(simulate: FakeSimulate) -> None:
    lines = tilewalk("kernels", "--model", "gpt2", "--phase", "decode").stdout.splitlines()
    assert lines[1].split() == ["operation", "shape", "kernel", "tile", "CTAs", "time", "times", "limited", "by"]
    assert any(line.startswith("Layers ") and "(× " in line for line in lines)
    every = tilewalk("kernels", "--model", "gpt2", "--phase", "decode", "--all").stdout.splitlines()
    assert len([line for line in every if line.startswith("  ")]) == sample_llm("decode").shown.n_kernels


def test_kernels_in_json(simulate: FakeSimulate) -> None:
    found = json.loads(tilewalk("kernels", "--model", "gpt2", "--json").stdout)
    assert found.keys() == {"step", "gpu", "n_kernels", "kernels_us", "wall_us", "kernels", "schema"}
    assert {"operation", "kernel", "work", "config", "time_us", "limiter", "layers", "times"} <= found["kernels"][
        0
    ].keys()


def test_narrow_terminals_get_fewer_columns() -> None:
    out = io.StringIO()
    print_kernels(sample_llm("decode").shown, Console(file=out, width=90, force_terminal=True, color_system=None))
    assert max(map(len, out.getvalue().splitlines())) <= 90
    assert "shape" not in out.getvalue()


# Models.
def test_models_are_listed() -> None:
    lines = tilewalk("models").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(list_models())
    assert max(map(len, lines)) <= 100


def test_one_model_is_shown() -> None:
    text = tilewalk("models", "llama3-8b").stdout
    assert re.search(r"^parameters +8,030,261,248$", text, re.MULTILINE)
    assert json.loads(tilewalk("models", "llama3-8b", "--json").stdout)["parameters"] == 8_030_261_248
    assert len(json.loads(tilewalk("models", "--json").stdout)) == len(list_models())


# Refusals.
LLAMA = "llm --model llama3-8b"
REFUSED = {
    "llm": ("--model",),
    "llm --model llama3-9b": ("unknown model", "llama3-8b"),
    "models llama3-9b": ("unknown model", "llama3-8b"),
    f"{LLAMA} --batch 0": ("--batch", "'0'", "1 to 65536"),
    f"{LLAMA} --batch -1": ("--batch", "'-1'"),
    f"{LLAMA} --tokens 1.5": ("--tokens", "'1.5'", "integer"),
    f"{LLAMA} --tokens 8193": ("8193 tokens", "8192", "llama3-8b"),
    f"{LLAMA} --phase decode --context 8192": ("8193 tokens", "8192"),
    f"{LLAMA} --phase generate --tokens 8192 --new-tokens 2": ("8193 tokens", "8192"),
    f"{LLAMA} --phase sleep": ("--phase", "'sleep'", "prefill, decode, generate, training"),
    f"{LLAMA} --context 5": ("--context with --phase prefill", "decode"),
    f"{LLAMA} --phase decode --tokens 5": ("--tokens with --phase decode", "prefill, generate and training"),
    f"{LLAMA} --phase decode --new-tokens 5": ("--new-tokens with --phase decode", "generate"),
    f"{LLAMA} --phase training --kv-dtype fp8_e4m3": ("--kv-dtype with --phase training",),
    f"{LLAMA} --phase training --stream-weights": ("--stream-weights with --phase training",),
    f"{LLAMA} --checkpointing full": ("--checkpointing with --phase prefill", "training"),
    f"{LLAMA} --program measured --fusion full": ("--fusion full", "--program measured"),
    f"{LLAMA} --low-rank 64 --weights int4": ("--low-rank 64: alone",),
    f"{LLAMA} --compress-head": ("--compress-head: needs", "--matmul-dtype"),
    f"{LLAMA} --lora-adapters 4": ("--lora-adapters 4: needs --lora-rank",),
    f"{LLAMA} --matmul-dtype int8 --weights int4": ("--matmul-dtype int8: not with int4",),
    f"{LLAMA} --clock 1500 --sustained": ("--clock with --sustained",),
    f"{LLAMA} --advise --quiet": ("--advise with --quiet",),
    f"{LLAMA} --clock 5": ("--clock", "'5'", "100 to 10000 MHz"),
    f"{LLAMA} --price nan": ("--price", "'nan'", "0.001 to 1000000"),
    f"{LLAMA} --price 0": ("--price", "'0'"),
    f"{LLAMA} --dtype fp8": ("--dtype fp8", "bf16, fp16, fp32"),
    f"{LLAMA} --kv-dtype int4": ("--kv-dtype int4",),
    f"{LLAMA} --page 0": ("--page", "'0'"),
    f"{LLAMA} --launch often": ("--launch", "'often'", "graph"),
    f"{LLAMA} --attention none": ("--attention", "'none'", "flash"),
    f"{LLAMA} --fusion some": ("--fusion some",),
    f"{LLAMA} --gpu h200_sx": ("GPU", "'h200_sx'", "h200_sxm"),
    f"{LLAMA} --figure out.bmp": ("--figure", ".png, .svg, .pdf"),
    f"{LLAMA} --inside down": ("--inside 'down'", "needs --trace"),
    f"{LLAMA} --trace /": ("--trace", "not of a folder"),
    f"{LLAMA} --phase training --checkpointing half": ("checkpointing", "half"),
    f"{LLAMA} --phase training --accumulated 0": ("--accumulated", "'0'"),
    f"{LLAMA} more": ("unexpected extra argument",),
    "llm --model bert-base --phase decode": ("--phase decode", "bert-base", "no cache"),
    f"{LLAMA} --prune-ffn 1": ("--prune-ffn", "'1'", "0 to 0.99"),
    f"{LLAMA} --prune-heads half": ("--prune-heads", "'half'"),
    f"{LLAMA} --prune-heads 0.05": ("--prune-heads", "'0.05'", "0.0625 at least", "7 of 8 heads of keys"),
    f"{LLAMA} --prune-ffn 1e-300": ("--prune-ffn", "'1e-300'", "0.002233 at least", "14,272 of 14,336 wide"),
    f"{LLAMA} --balance even": ("--balance with llama3-8b", "no experts"),
    "llm --model mixtral-8x7b --balance odd": ("--balance odd", "random, even"),
    "llm --model bert-base --page 16": ("--page with bert-base",),
    "llm --model bert-base --kv-dtype int8": ("--kv-dtype with bert-base",),
    "kernels --model bert-base --phase generate": ("bert-base",),
    "kernels --model llama3-8b --price 3": ("no such option", "--price"),
}


@pytest.mark.parametrize("line", REFUSED)
def test_a_refusal_says_what_and_why_before_anything_is_simulated(line: str, simulate: FakeSimulate) -> None:
    error = one_error(tilewalk(*line.split()))
    assert [text for text in REFUSED[line] if text not in error] == []
    assert simulate.asked == []


def test_an_empty_name_is_quoted(simulate: FakeSimulate, tmp_path: Path) -> None:
    assert "--inside '': needs --trace" in one_error(tilewalk(*LLAMA.split(), "--inside", ""))
    words = (*LLAMA.split(), "--trace", str(tmp_path / "t.json"), "--inside", "")
    assert "--inside '': must be one of" in one_error(tilewalk(*words))


def test_type_and_attention_follow_the_gpu_where_nothing_is_said(simulate: FakeSimulate) -> None:
    text = tilewalk("llm", "--model", "gpt2", "--gpu", "t4").stdout
    llm, _, _, how = simulate.asked[0]
    assert (llm.execution.dtype, how.attention) == ("fp16", "unfused")
    assert "In fp16, as t4 has no bf16." in text
    assert "Attention is not fused, as no FlashAttention is known for t4, which lacks cp.async." in text
    done = tilewalk("llm", "--model", "gpt2", "--dtype", "fp32", "--quiet")
    assert simulate.asked[1][3].attention == "unfused"
    assert "FlashAttention takes no fp32" in done.stderr
    tilewalk("llm", "--model", "gpt2", "--gpu", "t4", "--attention", "math", "--dtype", "fp32")
    assert (simulate.asked[2][0].execution.dtype, simulate.asked[2][3].attention) == ("fp32", "math")


def test_the_balance_of_experts_arrives(simulate: FakeSimulate) -> None:
    tilewalk("llm", "--model", "mixtral-8x7b", "--balance", "even")
    tilewalk("llm", "--model", "mixtral-8x7b")
    assert [asked[0].execution.balance for asked in simulate.asked] == ["even", "random"]


def test_pruning_arrives_and_is_told(simulate: FakeSimulate) -> None:
    text = tilewalk("llm", "--model", "llama3-8b", "--prune-ffn", "0.5", "--prune-heads", "0.25").stdout
    model = simulate.asked[0][0].model
    assert (model.d_ff, model.heads, model.kv_heads) == (7168, 24, 6)
    words = " ".join(text.split())
    assert "Pruned: 7,168 of 14,336 wide in the feed-forward, 24 of 32 heads, 6 of 8 heads of keys." in words
    told = tilewalk("llm", "--model", "llama3-8b", "--prune-ffn", "0.5", "-q").stderr
    assert told == "tilewalk: Pruned: 7,168 of 14,336 wide in the feed-forward.\n"
    told = tilewalk("llm", "--model", "gpt2", "--prune-heads", "0.5", "-q").stderr
    assert told == "tilewalk: Pruned: 6 of 12 heads.\n"


@pytest.mark.parametrize("command", ["llm", "kernels"])
def test_pruning_is_told_in_json(command: str, simulate: FakeSimulate) -> None:
    words = (command, "--model", "llama3-8b", "--json")
    found = json.loads(tilewalk(*words, "--prune-heads", "0.25").stdout)
    assert found["pruned"] == {"prune_heads": 0.25, "d_ff": 14336, "heads": 24, "kv_heads": 6}
    assert "pruned" not in json.loads(tilewalk(*words, "--prune-heads", "0").stdout)


@pytest.mark.parametrize("fields", [{}, {"d_ff": 100, "heads": 12, "kv_heads": 3}, {"d_ff": 64, "kv_heads": 1}])
def test_the_least_that_can_be_pruned_is(fields: dict[str, Any]) -> None:
    model = replace(load_model("llama3-8b"), **fields)
    for name, of in llm_request.LEFT_OUT.items():
        text = llm_request._least_pruned(name, model)
        if found := re.match(r"0 or ([\d.]+) at least, which leaves ([\d,]+) of", text):
            pruned = model.pruned(**{name.removeprefix("prune_"): float(found[1])})
            assert getattr(pruned, of) == int(found[2].replace(",", "")) < getattr(model, of)
        else:
            assert getattr(model.pruned(0.99, 0.99), of) == getattr(model, of)


def test_the_widest_head_is_that_of_the_kernels() -> None:
    assert llm_request.WIDEST == WIDEST


FITS_NOT = {
    "--model gpt3-175b": ("359", "hbm.capacity_gb = 141", "--stream-weights"),
    "--model llama3-70b --phase decode --batch 64 --context 8000": ("KV", "141"),
    "--model gpt2 --batch 1000 --tokens 1000": ("batch x tokens = 1000 x 1000", "262144"),
    "--model gpt2 --phase generate --batch 65536 --tokens 8": ("batch x tokens = 65536 x 8", "262144"),
    "--model gpt2 --attention unfused --batch 20000 --tokens 2": (
        "batch = 20000",
        "5461",
        "12 heads and --attention unfused",
    ),
    "--model llama3-8b --lora-rank 5000": ("--lora-rank 5000", "from 1 to 4096"),
    "--model llama3-8b --phase decode --lora-rank 100000": ("--lora-rank 100000", "from 1 to"),
    "--model llama3-8b --phase decode --batch 4 --lora-rank 8 --lora-adapters 5": ("--lora-adapters 5", "from 1 to 4"),
    "--model llama3-8b --phase decode --batch 2 --lora-rank 8 --lora-adapters 4": (
        "--lora-adapters 4: must be an integer from 1 to 2 (one for each of 2 rows at most, command line)",
    ),
    "--model llama3-8b --weights int4 --weight-group 100": (
        "--weight-group 100: must divide the 4096 inputs of a layer (command line)",
    ),
    "--model llama3-8b --phase decode --lora-rank 2000": (
        "--lora-rank 2000: must be an integer from 1 to 1024 (k of 4096 inputs, 1024 outputs, command line)",
    ),
    "--model gpt2 --matmul-dtype fp8_e4m3 --dtype fp32": ("(with --matmul-dtype, command line)",),
    "--model llama3-8b --phase training --batch 8": ("optimizer", "141", "--batch 2", "--tokens 535"),
    "--model gpt2 --gpu t4 --dtype bf16": ("--dtype bf16", "t4", "fp16"),
    "--model gpt2 --dtype fp32 --attention flash": ("--dtype fp32 with --attention flash", "math"),
    "--model gpt2 --gpu t4 --attention flash": ("--attention flash: must be unfused or math on t4",),
    "--model llama3-8b --page 16 --attention math": ("--page 16: must not be given with --attention math",),
    "--model llama3-8b --low-rank 5000": ("--low-rank 5000", "1 to 4096"),
    "--model llama3-8b --matmul-dtype fp8_e4m3 --gpu a100_sxm_80gb": ("--matmul-dtype fp8_e4m3: a100",),
    "--model gpt2 --phase training --attention cudnn": ("--attention cudnn with --phase training",),
}
INNER_NAMES = (
    r"backend|workload gemm|[( ](execution|attention)\)|weights_format|must divide k|"
    r"(?<!-)\b(kv_dtype|low_rank|matmul_dtype|compress_head) ="
)


@pytest.mark.parametrize("words", FITS_NOT)
def test_what_does_not_fit_the_gpu_is_refused(words: str) -> None:
    error = one_error(tilewalk("llm", *words.split(), "--quiet")).replace("kv_cache", "KV cache")
    assert [text for text in FITS_NOT[words] if text not in error] == []
    assert not re.search(INNER_NAMES, error)


CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 512,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
}
BROKEN = {
    "heads": (json.dumps(CONFIG | {"num_key_value_heads": 3}), "multiple of kv_heads = 3"),
    "foreign": (json.dumps(CONFIG | {"architectures": ["MambaForCausalLM"]}), "MambaForCausalLM"),
    "cut": (json.dumps(CONFIG)[:60], "broken JSON"),
    "empty": ("", "JSON"),
    "list": ("[]", "object"),
    "negative": (json.dumps(CONFIG | {"hidden_size": -1}), "hidden size -1"),
    "text": (json.dumps(CONFIG | {"num_hidden_layers": "many"}), "num_hidden_layers"),
    "deep": ("[" * 100_000, "JSON"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_and_foreign_configurations_are_refused(case: str, tmp_path: Path, simulate: FakeSimulate) -> None:
    content, expected = BROKEN[case]
    path = tmp_path / "config.json"
    path.write_text(content)
    for command in ("llm --model", "kernels --model", "models"):
        error = one_error(tilewalk(*command.split(), str(path)))
        assert "config.json" in error
        assert expected in error
    assert simulate.asked == []


def test_a_huge_configuration_is_refused_at_once(tmp_path: Path, simulate: FakeSimulate) -> None:
    with (tmp_path / "config.json").open("wb") as out:
        out.truncate(10**9)
    began = time.monotonic()
    assert "1,000,000 bytes" in one_error(tilewalk("llm", "--model", str(tmp_path / "config.json")))
    assert time.monotonic() - began < 1


def test_a_configuration_of_ones_own_works(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    found = json.loads(tilewalk("llm", "--model", str(tmp_path), "--phase", "decode", "--json").stdout)
    assert (found["context"], found["batch"]) == (511, 1)


def test_one_file_for_two_outputs(simulate: FakeSimulate, tmp_path: Path) -> None:
    path = str(tmp_path / "out.svg")
    assert "--figure" in one_error(tilewalk(*LLAMA.split(), "--figure", path, "--trace", path))
    assert not list(tmp_path.iterdir())


# Files, progress, interrupts.
def test_files_are_written_and_nothing_else(
    simulate: FakeSimulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("viz.llm.sheet.save_figure", lambda result, path: path.write_text("drawn"))
    figure, trace = tmp_path / "f.png", tmp_path / "t.json"
    tilewalk("llm", "--model", "gpt2", "--figure", str(figure), "--trace", str(trace), "--quiet")
    assert figure.read_text() == "drawn"
    assert json.loads(trace.read_text())["traceEvents"]
    assert sorted(tmp_path.iterdir()) == [figure, trace]


def test_progress_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "FIRST_S", 0.05)
    monkeypatch.setattr(progress, "POLL_S", 0.01)

    def slow(*_: Any, progress: Any, **__: Any) -> Any:
        progress("simulating steps", 3, 10)
        time.sleep(0.3)
        return sample_llm("generate")

    replace_simulate(monkeypatch, slow)
    words = ("llm", "--model", "gpt2", "--phase", "generate")
    assert tilewalk(*words, "--json").stderr == "tilewalk: simulating steps, 3 of 10\n"
    assert tilewalk(*words, "--quiet").stderr == ""
    assert tilewalk("kernels", *words[1:], "--json").stderr == "tilewalk: simulating steps, 3 of 10\n"


BUSY = """
import sys, ctypes
sys.path.insert(0, {root!r})
import sim.llm
from hwmodels.catalog import load_gpu
from viz.commands import llm
llm.engine_needs_compiling = lambda: False
def simulate(*_, **__):
    print("ready", file=sys.stderr, flush=True)
    ctypes.CDLL(None).sleep(30)  # compiled code that cannot be interrupted
sim.llm.simulate_llm = simulate
"""


@pytest.mark.parametrize("command", ["llm", "kernels"])
def test_an_interrupt_ends_it_at_once_with_one_line(command: str) -> None:
    running = process(command, "--model", "gpt2", before=BUSY.format(root=str(ROOT)))
    assert running.stderr is not None
    assert running.stderr.readline() == "ready\n"
    running.send_signal(signal.SIGINT)
    stdout, stderr = running.communicate(timeout=20)
    assert (running.returncode, stdout, stderr) == (130, "", "tilewalk: interrupted\n")


def test_a_refusal_in_the_middle_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise ConfigError("x = 1: must be 2")

    replace_simulate(monkeypatch, refuse)
    assert one_error(tilewalk("llm", "--model", "gpt2")) == "x = 1: must be 2"


# At random.
@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working directory that may fill with files, and a simulator that answers at once."""
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(tmp_path_factory.mktemp("random")):
        replace_simulate(patch, lambda llm, *_, **__: sample_llm(llm.phase))
        patch.setattr("viz.llm.sheet.save_figure", lambda result, path: path.write_text("drawn"))
        yield Path.cwd()


def check(words: list[str]) -> None:
    """Answered, or refused in one line."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as left:
        COMMANDS.main(words, prog_name="tilewalk")
    assert left.value.code in (0, None, 2)
    if left.value.code == 2:
        assert out.getvalue() == ""
        assert re.fullmatch(r"tilewalk: error: [^\n]+\n", err.getvalue())
        assert err.getvalue()[:-1].isprintable()
    else:
        assert err.getvalue() == ""


# fmt: off
WORDS = (
    "gpt2", "llama3-8b", "bert-base", "prefill", "decode", "generate", "training", "measured", "full", "epilogue",
    "fp16", "fp8_e4m3", "int8", "flash", "math", "graph", "adamw", "h100_pcie", "t4", "config.json", "out.svg",
)
NUMBERS = ("1", "16", "512", "1024", "1048576", "0", "-1", "1.5", "nan", "1e9", "9" * 30, "٣", "")
NASTY = ("\0", "\n", "\udcff", "--", "-", "../..", "/", ".", "~", "🙂", "%s%n", "$(id)", "a=b=c", "\x1b[31m", "x/y/z")
# fmt: on
word = st.sampled_from(WORDS + NUMBERS + NASTY) | st.text(max_size=8)
quickly = settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])


def options_of(name: str) -> list[str]:
    command = COMMANDS.commands[name]  # type: ignore[attr-defined]
    return sorted({option for parameter in command.params for option in parameter.opts if option.startswith("-")})


@quickly
@given(
    command=st.sampled_from(["llm", "kernels"]),
    model=st.sampled_from(["gpt2", "bert-base", "opt-125m"]) | word,
    options=st.lists(st.tuples(st.sampled_from(options_of("llm")), word), max_size=4),
)
def test_random_command_lines(folder: Path, command: str, model: str, options: list[tuple[str, str]]) -> None:
    check([command, "--model", model, *(text for pair in options for text in pair)])


@quickly
@given(st.lists(st.sampled_from(["models", "--json", "--help"]) | word, max_size=3))
def test_random_models(folder: Path, words: list[str]) -> None:
    check(["models", *words])


@quickly
@given(
    st.integers(0, len(json.dumps(CONFIG))).map(lambda i: json.dumps(CONFIG)[:i].encode())
    | st.dictionaries(st.sampled_from(sorted(CONFIG)), st.integers() | st.text(max_size=5) | st.none(), max_size=3).map(
        lambda edit: json.dumps(CONFIG | edit).encode()
    )
    | st.binary(max_size=100)
)
def test_damaged_configurations(folder: Path, content: bytes) -> None:
    (folder / "damaged.json").write_bytes(content)
    check(["models", "damaged.json"])
    check(["llm", "--model", "damaged.json", "--quiet"])
