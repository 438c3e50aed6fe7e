"""`tilewalk measure` without a GPU: what it would measure, what a run keeps, how it ends, and how it reads tools."""

from __future__ import annotations

import csv
import hashlib
import itertools
import signal
import time
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hwmodels import load_gpu, measured_path
from hwmodels.errors import ConfigError
from sim.measure import (
    attention_more,
    counters,
    driver,
    elementwise,
    extra,
    machine,
    nsight,
    programs,
    shapes,
    stack_kernels,
    stacks,
    store,
    tiles,
    training,
)
from sim.measure.catalog import TABLES
from sim.measure.table import Case, Outcome, Table, described
from sim.validation.tables import read_table
from tests.command_line import one_error, process, tilewalk
from tests.test_layers import loaded_by

PRINTED = ("microbench", "overheads", "topology", "ports", "ring", "power")
SHIPPED = (*PRINTED, "gemm", "tile_sweep", "counters", "sustained_load")
FURTHER = (
    "gemm_again",
    "gemm_more",
    "gemm_short",
    "gemm_spaced",
    "counters_more",
    "counters_launch",
    "tile_more",
    "tile_again",
    "elementwise_warm",
)
MANY_ROWS = ("hot",)
"""Further tables of several rows a case."""
each_table = pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)


# What would be measured.
@pytest.mark.parametrize("name", SHIPPED + FURTHER + MANY_ROWS)
def test_tables_have_the_columns_of_those_shipped(name: str) -> None:
    with measured_path("h200_sxm_further" if name in FURTHER + MANY_ROWS else "h200_sxm", name).open(
        newline=""
    ) as file:
        assert tuple(next(csv.reader(file))) == TABLES[name].columns


@each_table
def test_cases_are_distinct_and_named_by_columns(table: Table) -> None:
    for quick in (False, True):
        cases = table.cases(quick)
        assert cases
        assert len(set(map(described, cases))) == len(cases)
        assert all(set(case) <= set(table.columns) for case in cases)


@each_table
def test_a_quick_run_is_short(table: Table) -> None:
    assert len(table.cases(True)) * table.case_s <= 60
    assert len(table.cases(True)) <= len(table.cases(False))


def test_nothing_loads_torch_before_it_measures() -> None:
    assert loaded_by("sim.measure.catalog") & {"torch", "triton", "cupy", "numba", "simpy"} == set()


@pytest.mark.parametrize("name", FURTHER)
def test_further_tables_hold_the_cases_of_today(name: str) -> None:
    with measured_path("h200_sxm_further", name).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    cases = [{column: str(value) for column, value in case.items()} for case in TABLES[name].cases(False)]
    assert [{column: row[column] for column in case} for row, case in zip(rows, cases, strict=True)] == cases


OPERATIONS = (
    *("time_us", "time_us_min", "time_us_max", "n_kernels", "kernel", "kernel_us", "other_kernels"),
    *("grid", "block", "regs", "smem"),
)
MORE = {  # table: the one it continues
    "attention_more": "attention",
    "attention_backward": "attention",
    "elementwise_more": "elementwise",
    "extra_more": "extra_ops",
    "stacks_more": "decoder_stack",
    "stack_kernels_more": "decoder_stack_kernels",
    "training_more": "training_steps",
}


@each_table
def test_columns_are_distinct(table: Table) -> None:
    assert len(set(table.columns)) == len(table.columns)
    assert TABLES[table.name] is table


def test_operations_have_the_same_timing_columns() -> None:
    for name in ("attention", "elementwise", "extra_ops"):
        assert [column for column in TABLES[name].columns if column in OPERATIONS] == [*OPERATIONS]


@pytest.mark.parametrize(("name", "continued"), MORE.items())
def test_more_is_of_other_shapes_in_the_same_columns(name: str, continued: str) -> None:
    assert TABLES[name].columns == TABLES[continued].columns
    if name != "attention_backward":  # the same shapes, another pass
        both = [set(map(described, TABLES[each].cases(False))) for each in (name, continued)]
        assert not both[0] & both[1]


def test_stacks_and_their_kernels_are_of_the_same_steps() -> None:
    for stack, kernels in (("decoder_stack", "decoder_stack_kernels"), ("stacks_more", "stack_kernels_more")):
        for quick in (False, True):
            steps = [{c: case[c] for c in stack_kernels.KEY} for case in TABLES[stack].cases(quick)]
            assert TABLES[kernels].cases(quick) == steps


def test_stacks_fit_the_memory_and_name_their_layers() -> None:
    for case in stacks.cases(False) + stacks.other_cases(False):
        sizes = stacks.MODELS[case["model"]]
        assert case["layers"] == sizes.layers
        assert sizes.width % sizes.heads == sizes.heads % sizes.kv_heads == 0
        _, dash, n_layers = case["model"].removesuffix("layers").rpartition("-")
        assert not case["model"].endswith("layers") or (dash and int(n_layers) == sizes.layers)
        n_tokens = case["batch"] * (case["seq"] + case["ctx"])
        assert n_tokens * sizes.layers * 2 * 2 * sizes.kv_width <= stacks.MOST_CACHE_BYTES


def test_kernels_shown_are_those_of_the_shipped_table() -> None:
    """A layer of 14 kernels, after the embedding and before norm and head."""
    step = ["embedding"] + [f"{layer}.{i}" for layer in range(32) for i in range(14)] + ["norm", "head"]
    shown = stack_kernels._shown(step, 32)
    assert len(shown) == 19
    assert shown[:2] + shown[14:16] == ["embedding", "0.0", "0.13", "1.0"]
    assert shown[-3:] == ["31.13", "norm", "head"]


def test_attention_is_of_shapes_that_kernels_take() -> None:
    for case in attention_more.cases(False) + attention_more.backward_cases(False):
        assert case["heads"] % case["kv_heads"] == 0
        assert not case["causal"] or case["q_len"] == case["kv_len"]
        assert case["backend"] == "flash" or case["head_dim"] <= attention_more.CUDNN_MOST_HEAD_DIM


def test_attention_asks_every_batch_and_length_of_a_decode_step() -> None:
    decode = [case for case in attention_more.cases(False) if case["q_len"] == 1]
    assert {case["batch"] for case in decode} == set(attention_more.BATCHES)
    assert {case["kv_len"] for case in decode} == set(attention_more.CACHED)


@pytest.mark.parametrize("op", [*elementwise.OTHER_OPS, *elementwise.HALVES, "copy_strided"])
def test_each_operation_has_rows_and_widths_of_every_size(op: str) -> None:
    cases = [case for case in elementwise.other_cases(False) if case["op"] == op]
    plain = op in elementwise.OTHER_OPS
    rows = set(elementwise.OTHER_ROWS if plain else elementwise.STRIDED_ROWS) - ({1} if op == "transpose" else set())
    assert {case["rows"] for case in cases} == rows
    widths = elementwise.OTHER_WIDTHS if plain else elementwise.FFN_WIDTHS if op in elementwise.HALVES else None
    assert {case["width"] for case in cases} == set(widths or elementwise.PACKED)


def test_keys_are_the_last_but_one_part_of_packed_qkv() -> None:
    for width, packed in elementwise.PACKED.items():
        assert packed % width == width % elementwise.HEAD_DIM == 0
        assert packed >= 3 * width


def test_quantised_weights_are_of_whole_blocks() -> None:
    for case in extra.cases(False) + extra.other_cases(False):
        if case["op"] == "int4_weight_only":
            assert case["n"] % 8 == case["k"] % (16 * extra.INNER_K_TILES) == case["k"] % case["arg"] == 0
        if case["op"] == "sparse_2_4":
            assert case["m"] % 16 == case["n"] % 32 == case["k"] % 64 == 0


def test_training_runs_each_step_with_and_without_checkpointing() -> None:
    for cases in (training.cases(False), training.other_cases(False)):
        kept = [{**case, "checkpointing": True} for case in cases if not case["checkpointing"]]
        assert kept == [case for case in cases if case["checkpointing"]]


def test_random_shapes_keep_their_step() -> None:
    drawn = shapes.randoms()
    assert len(drawn) == 160
    for name, _, n, k in drawn:
        step = int(name.removeprefix("random.q"))
        assert (n % step, k % step) == (0, 0) if step > 1 else (n % 2, k % 2) == (1, 1)


def test_tiles_fit_an_sm_and_cover_every_stage_count() -> None:
    sample = tiles.tiles()
    assert {tile["stages"] for tile in sample} == {2, 3, 4, 5}
    for tile in sample:
        operands = (tile["block_m"] + tile["block_n"]) * tile["block_k"] * 2 * tile["stages"]
        assert operands <= tiles.MOST_SMEM_BYTES


PARTS = programs.MICRO + programs.OVERHEADS + programs.TOPOLOGY + programs.PORTS + programs.RING + programs.POWER


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_programs_know_their_parts(part: programs.Part) -> None:
    source = (programs.HERE / part.program).read_text(encoding="utf-8")
    words = part.arguments if part.program != "power.cu" else part.arguments[1:]
    assert all(f'"{word}"' in source for word in words)


def test_every_program_is_a_table() -> None:
    assert tuple(table.name for table in programs.TABLES) == PRINTED


@pytest.mark.parametrize("name", PRINTED)
def test_programs_print_the_benches_that_mark_them(name: str) -> None:
    """A part counts as measured when its bench is in the file, so the bench must be one that it prints."""
    printed = {row["bench"] for row in shipped(name)}
    if name == "power":  # measured later
        with measured_path("h200_sxm_further", name).open(newline="") as file:
            printed |= {row["bench"] for row in csv.DictReader(file)}
    missing = {case["bench"] for case in TABLES[name].cases(False)} - printed
    assert missing == ({"l1_read"} if name == "power" else set())  # PROTOCOL.md: dropped from the shipped run


# What the tables measured with these programs show.
def shipped(name: str) -> list[dict[str, str]]:
    with measured_path("h200_sxm", name).open(newline="") as file:
        return list(csv.DictReader(file))


def test_coalescing_accounts_for_every_sector_read_from_l2() -> None:
    """Asked of the coalescer, less what another SM's read served; the counters come from separate passes."""
    for row in shipped("traffic"):
        asked, merged, read = (
            float(row[f"lrc__{name}.sum"])
            for name in (
                "request_sectors_op_read_coalescable",
                "request_sectors_op_read_coalescing_achieved_type_hardware",
                "lts2lrc_sectors_op_read",
            )
        )
        assert merged <= 0.51 * asked
        assert read == pytest.approx(asked - merged, rel=0.01, abs=6000)  # instructions and constants are some thousand


def test_spilled_registers_are_reloaded_every_iteration() -> None:
    """Where the accumulator does not fit, by 64-bit loads: half as many a warp and k-iteration as registers spilled."""
    loads = {
        (*(int(row[name]) for name in tiles.TILE), int(row["k"])): float(row["smsp__inst_executed_op_local_ld.sum"])
        for row in shipped("spills")
        if row["smsp__inst_executed_op_local_ld.sum"]
    }
    spilled = {
        tuple(int(row[name]) for name in tiles.TILE): int(row["spills"])
        for row in shipped("spills")
        if int(row["spills"]) > 100 and int(row["warps"]) >= 4
    }
    assert len(spilled) == 9
    for tile, registers in spilled.items():
        block_m, block_n, block_k, _, warps, _ = tile
        n_warps = (4096 // block_m) * (4096 // block_n) * warps
        added = (loads[*tile, 4096] - loads[*tile, 1024]) / (3072 // block_k * n_warps)
        assert added == pytest.approx(registers / 2, rel=0.01)


@pytest.mark.parametrize("sms", [8, 10, 12, 14, 16, 18])
def test_a_gpc_reads_640_bytes_a_cycle_by_however_many_sms(sms: int) -> None:
    marked = f"set=gpc=6;order=tpc;sms={sms};mode=cp.async.bulk"
    (row,) = (row for row in shipped("ports") if row["param1"] == marked)
    assert sms * float(row["value"].split(";")[0]) == pytest.approx(640, rel=0.03)


def ring(bench: str, *, clusters: int, size: int, n_k: int, warm: int) -> list[list[float]]:
    """Values of ring.csv, line by line, of the case of 64 rows of B and 8 of A a CTA that multiplies nothing."""
    case = f"clusters={clusters};size={size};rows_a=8;rows_b=64;stages=16;n_k={n_k};mma=0;warm={warm}"
    rows = [row for row in shipped("ring") if (row["bench"], row["param1"]) == (bench, case)]
    return [[float(value) for value in row["value"].split(";")] for row in rows]


@pytest.mark.parametrize(("clusters", "size"), [(132, 1), (64, 2)])
@pytest.mark.parametrize("warm", [0, 1])
def test_a_grid_starts_one_after_another(clusters: int, size: int, warm: int) -> None:
    """By `kernel.launch_ns` each, clusters like CTAs; the timer steps by 32 ns."""
    ((_, latest),) = ring("ring_start", clusters=clusters, size=size, n_k=16, warm=warm)
    assert latest == pytest.approx(load_gpu("h200_sxm").kernel.launch_ns * (clusters - 1), abs=32)


def test_rings_of_all_ctas_fill_together() -> None:
    """Warm: asked for every 205 to 215 cycles, there every 293, and the slowest CTA has its last stage 6 % after the
    mean, where one CTA's ring after another's would fill over the whole time."""
    stages = ring("ring_stage", clusters=132, size=1, n_k=16, warm=1)
    issue, arrival, _, most = zip(*stages, strict=True)
    assert all(205 <= after - before <= 215 for before, after in itertools.pairwise(issue))
    assert (arrival[-1] - arrival[0]) / 15 == pytest.approx(293, abs=1)
    assert most[-1] < 1.06 * arrival[-1]


def test_memory_serves_later_stages_before_earlier_ones() -> None:
    """Cold: taking turns, two stages of all CTAs would take what their bytes do. The second pair takes half as long
    again, the last less than half of it."""
    stages = ring("ring_stage", clusters=132, size=1, n_k=16, warm=0)
    arrival = [values[1] for values in stages]
    hbm = load_gpu("h200_sxm").hbm
    pair_ns = 2 * (132 * 64 + 8) * 128 / (hbm.bandwidth_gb_per_s * hbm.read_fraction)
    in_turn = pair_ns * 1.98
    assert in_turn == pytest.approx(944, abs=1)
    assert arrival[2] - arrival[0] > 1.4 * in_turn
    assert arrival[15] - arrival[13] < 0.5 * in_turn


def test_energy_of_a_flop_follows_the_square_of_the_clock() -> None:
    """All SMs at the power limit against half of them below it, above what an idle board with busy SMs draws."""
    for bench in ("wgmma_bf16", "wgmma_e4m3"):
        runs = {row["params"]: row for row in shipped("power") if row["bench"] == bench}
        whole, half = (runs[f"data=normal;sms={sms}"] for sms in (132, 66))
        base_watt = {132: 145, 66: 136}
        joules = [
            (float(row["mean_watt"]) - base_watt[sms]) / float(row["rate"]) for row, sms in ((whole, 132), (half, 66))
        ]
        clocks = float(whole["sm_mhz"]) / float(half["sm_mhz"])
        assert joules[0] / joules[1] == pytest.approx(clocks**2, rel=0.03)


# A run, on a table that needs nothing.
class Fake:
    """A table of squares in batches of 4; `broken` cases raise, and `stop_at` interrupts before that case."""

    def __init__(self, n_cases: int = 10, broken: Sequence[int] = (), stop_at: int | None = None):
        self.measured: list[int] = []
        self.n_cases, self.broken, self.stop_at = n_cases, broken, stop_at

    def table(self) -> Table:
        return Table("squares", "squares", ("n", "square"), (), self.cases, self.measure, 4, 1.0)

    def cases(self, quick: bool) -> list[Case]:
        return [{"n": n} for n in range(3 if quick else self.n_cases)]

    def measure(self, batch: Sequence[Case]) -> list[Outcome]:
        numbers = [case["n"] for case in batch]
        if self.stop_at in numbers:
            raise KeyboardInterrupt
        if set(numbers) & set(self.broken):
            raise ValueError(f"no square, of one of {numbers}")
        self.measured += numbers
        return [[{"square": n**2, "unknown": 1}] for n in numbers]


def run(folder: Path, fake: Fake, quick: bool = False, **extra: Any) -> driver.Summary:
    (summary,) = driver.run(folder, [fake.table()], quick, {"gpu": "a fake"}, lambda *_: None, **extra)
    return summary


def squares(folder: Path) -> list[tuple[int, int]]:
    with (folder / "squares.csv").open(newline="") as file:
        return [(int(row["n"]), int(row["square"])) for row in csv.DictReader(file)]


def test_every_case_is_measured_once(tmp_path: Path) -> None:
    assert run(tmp_path, Fake()) == driver.Summary("squares", 10, 10, 0, "")
    assert squares(tmp_path) == [(n, n**2) for n in range(10)]


def test_what_is_there_is_kept_and_not_measured_again(tmp_path: Path) -> None:
    run(tmp_path, Fake(), quick=True)
    whole = Fake()
    assert run(tmp_path, whole).n_measured == 7
    assert whole.measured == list(range(3, 10))
    assert squares(tmp_path) == [(n, n**2) for n in range(10)]
    assert run(tmp_path, Fake()).n_measured == 0


def test_an_interrupt_keeps_what_was_finished(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Fake(stop_at=6))
    assert squares(tmp_path) == [(n, n**2) for n in range(4)]
    assert tomllib.loads((tmp_path / "protocol.toml").read_text())["file"]["squares"]["rows"] == 4
    again = Fake()
    run(tmp_path, again)
    assert again.measured == list(range(4, 10))
    assert squares(tmp_path) == [(n, n**2) for n in range(10)]


def test_one_bad_case_takes_no_other_along(tmp_path: Path) -> None:
    assert run(tmp_path, Fake(broken=(5,))) == driver.Summary("squares", 10 - 1, 9, 1, "")
    assert [n for n, _ in squares(tmp_path)] == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    text = (tmp_path / "skipped.csv").read_text()
    assert text == "table,case,reason\nsquares,n=5,ValueError: no square; of one of [5]\n"


def test_what_was_skipped_is_not_tried_again(tmp_path: Path) -> None:
    run(tmp_path, Fake(broken=(5,)))
    mended = Fake()
    assert run(tmp_path, mended).n_measured == 0
    (tmp_path / "skipped.csv").unlink()
    assert run(tmp_path, mended).n_measured == 1


def test_a_table_that_only_fails_is_given_up(tmp_path: Path) -> None:
    summary = run(tmp_path, Fake(n_cases=40, broken=range(8, 40)))
    assert summary.n_measured == 8
    assert summary.given_up.startswith("5 failures in a row, the last: ValueError: no square")
    assert summary.n_skipped == driver.GIVE_UP_AFTER - 1


def test_a_table_that_lacks_a_tool_is_left_out(tmp_path: Path) -> None:
    summary = run(tmp_path, Fake(), lacking=lambda table: f"{table.name} need a ruler")
    assert summary == driver.Summary("squares", 0, 0, 0, "squares need a ruler")
    assert not (tmp_path / "squares.csv").exists()


def test_a_refusal_is_not_taken_for_a_bad_case(tmp_path: Path) -> None:
    table = Table("squares", "", ("n",), (), Fake().cases, refuse, 4, 1.0)
    with pytest.raises(ConfigError, match="no disk"):
        driver.run(tmp_path, [table], False, {}, lambda *_: None)


def refuse(batch: Sequence[Case]) -> list[Outcome]:
    raise ConfigError("no disk")


def test_progress_counts_cases_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each case is expected to take 1 s and takes 2."""
    now = [0.0]
    monkeypatch.setattr("sim.measure.driver.time.monotonic", lambda: now[0])
    fake, told = Fake(), []

    def slowly(batch: Sequence[Case]) -> list[Outcome]:
        now[0] += 2 * len(batch)
        return fake.measure(batch)

    table = Table("squares", "", ("n", "square"), (), fake.cases, slowly, 4, 1.0)
    driver.run(tmp_path, [table], False, {}, lambda *state: told.append(state))
    assert told == [
        ("squares", 0, 10, 10.0),
        ("squares", 4, 10, 12.0),
        ("squares", 8, 10, 4.0),
        ("squares", 10, 10, 0.0),
    ]


# Files.
def test_a_file_of_other_columns_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "squares.csv"
    path.write_text("mine,alone\n1,2\n")
    with pytest.raises(ConfigError, match=r"squares\.csv: is no table of this version"):
        run(tmp_path, Fake())
    assert path.read_text() == "mine,alone\n1,2\n"


@pytest.mark.parametrize("content", [b"n,square\n1\n", b"n,square\n1,2,3\n", b"\xff\xfe\x00", b""])
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "squares.csv").write_bytes(content)
    with pytest.raises(ConfigError, match=r"squares\.csv"):
        run(tmp_path, Fake())


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "squares.csv"
    kept = store.Store(path, ("n", "square"))
    kept.add([{"n": 1, "square": 1}])
    before = path.read_text()

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("sim.measure.store.os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        kept.add([{"n": 2, "square": 4}])
    assert path.read_text() == before
    assert [file.name for file in tmp_path.iterdir()] == ["squares.csv"]


def test_the_protocol_goes_with_the_files(tmp_path: Path) -> None:
    run(tmp_path, Fake(), quick=True)
    run(tmp_path, Fake())
    protocol = tomllib.loads((tmp_path / "protocol.toml").read_text())
    content = (tmp_path / "squares.csv").read_bytes()
    assert protocol["file"]["squares"] == {
        "about": "squares",
        "rows": 10,
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    assert [entry["gpu"] for entry in protocol["run"]] == ["a fake", "a fake"]
    page = (tmp_path / "PROTOCOL.md").read_text()
    assert "| squares.csv | 10 | squares |" in page
    assert page.count("## Run of ") == 2


def test_what_is_written_validates(tmp_path: Path) -> None:
    """Rows of the two kinds whose text has quotes and commas come back from the reader of `validate`."""
    sample = {"gemm": "gemm", "counters": "counters"}
    for name, kind in sample.items():
        with measured_path("h200_sxm", name).open(newline="") as file:
            rows = list(csv.DictReader(file))[:20]
        store.Store(tmp_path / f"{name}.csv", TABLES[name].columns).add(rows)
        table = read_table(tmp_path / f"{name}.csv")
        assert (table.kind, len(table.rows), table.skipped) == (kind, 20, ())


# The command.
def test_list_needs_no_gpu() -> None:
    said = tilewalk("measure", "--list").stdout
    assert all(name in said for name in TABLES)


def test_list_can_be_of_some() -> None:
    lines = tilewalk("measure", "--list", "--only", "power, gemm").stdout.splitlines()
    assert [line.split()[0] for line in lines if line[:1].isalpha()] == ["table", "power", "gemm"]


@pytest.mark.parametrize("names", ["gem", "gemm,,power", "", "gemm;power"])
def test_unknown_tables_are_named(names: str) -> None:
    said = one_error(tilewalk("measure", "--only", names))
    assert "--only" in said
    assert "tile_sweep" in said


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "find_spec", lambda name: None)


@pytest.mark.usefixtures("without_torch")
def test_without_torch_one_line_says_so(tmp_path: Path) -> None:
    said = one_error(tilewalk("measure", "-o", str(tmp_path / "new")))
    assert said.startswith("measure: needs PyTorch, which is not installed")
    assert not (tmp_path / "new").exists()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("viz.commands.measure.require_gpu", lambda: None)
    (tmp_path / "file").touch()
    assert "--output" in one_error(tilewalk("measure", "-o", str(tmp_path / "file")))


SLOW = """
import time
import viz.commands.measure as command
from sim.measure.table import Table
def measure(batch):
    time.sleep(0.3)
    return [[{"square": case["n"] ** 2}] for case in batch]
cases = lambda quick: [{"n": n} for n in range(100)]
command.TABLES = {"squares": Table("squares", "", ("n", "square"), (), cases, measure, 1, 0.3)}
command.require_gpu = lambda: None
command.facts = lambda text: {"gpu": "a fake"}
"""


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_an_interrupted_command_keeps_its_rows(tmp_path: Path) -> None:
    running = process("measure", "-o", str(tmp_path), before=SLOW)
    wait_for(lambda: (tmp_path / "squares.csv").exists() and len(squares(tmp_path)) >= 2)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=30)
    assert running.returncode == 130
    assert said.splitlines()[-1] == "tilewalk: interrupted"
    rows = squares(tmp_path)
    assert rows == [(n, n**2) for n in range(len(rows))]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["PROTOCOL.md", "protocol.toml", "squares.csv"]


# What tools say.
NCU = """==PROF== Connected to process 1
"ID","Kernel Name","Grid Size","Block Size","gpu__time_duration.sum","dram__bytes_read.sum"
"","","","","ns","byte"
"0","void fill<FillFunctor<double>>(int)","(1, 1, 1)","(64, 1, 1)","1,024","0"
"1","nvjet_a, b","(2, 66, 1)","(384, 1, 1)","12,000","33,701,888"
"2","splitKreduce","(128, 1, 1)","(128, 1, 1)","3,500","1"
"3","void fill<FillFunctor<double>>(int)","(1, 1, 1)","(64, 1, 1)","1,024","0"
"4","gemm_kernel","(64, 1, 1)","(128, 1, 1)","9,000","4"
"""


def test_ncu_output_is_split_by_job() -> None:
    groups = nsight._split(nsight._rows(NCU))
    assert [[kernel["Kernel Name"] for kernel in group] for group in groups] == [
        ["nvjet_a, b", "splitKreduce"],
        ["gemm_kernel"],
    ]


def test_counters_are_of_the_longest_kernel() -> None:
    kernels = nsight._split(nsight._rows(NCU))[0]
    for kernel in kernels:
        kernel.update({name: kernel.get(name, "n/a") for name, _ in counters.METRICS.values()})
    row = counters._row(kernels, counters.METRICS)
    assert (row["kernel"], row["grid"], row["block"]) == ("nvjet_a; b", "(2,66,1)", "(384,1,1)")
    assert (row["time_us"], row["reduce_us"], row["dram_read_bytes"]) == (12, 3.5, 33_701_888)
    assert row["sm_cycles"] == ""


def test_program_output_is_read_by_its_columns() -> None:
    text = "bench,param1,param2,value,unit\nread_bw,blocks=1,,243.9,GB/s\n"
    assert programs.parsed(text, programs.COLUMNS) == [
        {"bench": "read_bw", "param1": "blocks=1", "param2": "", "value": "243.9", "unit": "GB/s"}
    ]
    with pytest.raises(RuntimeError, match="4 fields and not 5"):
        programs.parsed("read_bw,blocks=1,243.9,GB/s\n", programs.COLUMNS)


def test_lists_in_a_row_become_rows() -> None:
    row = {"bench": "b", "param1": "", "param2": "p10;p90", "value": "1;2", "unit": "cycles"}
    assert [(each["param2"], each["value"]) for each in programs.separated(row)] == [("p10", "1"), ("p90", "2")]
    traced = row | {"param2": "first 3", "value": "7;8;9;"}
    assert [each["param2"] for each in programs.separated(traced)] == ["line=0", "line=1", "line=2"]
    assert programs.separated(row | {"value": "5"}) == [row | {"value": "5"}]


def test_ctas_that_run_first_began_before_any_ended() -> None:
    from sim.measure.cta_times import before_the_first_end

    rows = [
        {"cta": i, "start": start, "end": end}
        for i, (start, end) in enumerate(((0, 90), (32, 80), (80, 170), (79, 99)))
    ]
    assert [row["cta"] for row in before_the_first_end(rows)] == [0, 1, 3]
