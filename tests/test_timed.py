"""Tables of other operations than single GEMMs: how they are read, scored, and set beside a roofline."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels import load_gpu, measured_path
from hwmodels.errors import ConfigError
from sim.validation import validate
from sim.validation.columns import parse_count
from sim.validation.stacks import KERNELS, StackKernel
from sim.validation.timed import Control, TimedTable, held_out, read, recognised, tables, validate_timed

GPU = load_gpu("h200_sxm")
FURTHER = "h200_sxm_further"
PAGE = Path(__file__).parents[1] / "docs" / "validation-llm.md"


def _question(cells: dict[str, int]) -> tuple[str, int]:
    if cells["n"] == 13:
        raise ConfigError("n = 13: cannot be modelled")
    return ("rows" if cells["n"] < 100 else "many"), cells["n"]


TOY = TimedTable(
    kind="toy",
    signature=("toy_n", "n"),
    inputs={"n": parse_count},
    optional={"m": parse_count},
    measured=("time_us", "other_us"),
    question=_question,
    predict=lambda question, gpu: {"time_us": 2.0 * question[1], "other_us": 10.0},
    groups=lambda question, column: (column, question[0]),
    work=lambda question, column: (float(question[1]), 0.0),
    shape=lambda question: str(question[1]),
)


def written(path: Path, *rows: str, header: str = "n,m,time_us,other_us") -> Path:
    path.write_text("\n".join((header, *rows)) + "\n", encoding="utf-8")
    return path


def test_each_measured_column_is_scored(tmp_path: Path):
    path = written(tmp_path / "t.csv", "10,,20,10", "50,1,80,20", "200,,400,5")
    report = validate_timed(GPU, path, TOY, limit=None, threads=1, progress=None)
    scores = {group["name"]: group for group in (*report.groups, report.overall)}
    assert scores["time_us"]["mape_pct"] == pytest.approx(100 * (0 + 0.25 + 0) / 3)
    assert scores["other_us"]["mape_pct"] == pytest.approx(100 * (0 + 0.5 + 1) / 3)
    assert scores["rows"]["n"] == 4
    assert scores["many"]["n"] == 2
    assert report.overall["worst"][0]["row"] == 4
    assert report.overall["worst"][0]["error_pct"] == pytest.approx(100)


def test_rows_that_cannot_be_used_are_skipped_with_the_reason(tmp_path: Path):
    path = written(tmp_path / "t.csv", "10,,20,10", "0,,1,1", "5,,-1,1", "13,,1,1", "1,1,1", "7,x,1,1")
    rows = read(TOY, path)
    assert rows.n_rows == 6
    assert [entry["row"] for entry in rows.skipped] == [3, 4, 6, 7, 5]
    assert {asked.question[1] for asked in rows.asked} == {10}
    assert "n = 13: cannot be modelled" in {entry["reason"] for entry in rows.skipped}


@pytest.mark.parametrize(
    ("header", "said"), [("n,m,time_us", "must have the column other_us"), ("n,n,time_us,other_us", "appears twice")]
)
def test_columns_that_lack_or_repeat_are_refused(tmp_path: Path, header: str, said: str):
    with pytest.raises(ConfigError, match=said):
        read(TOY, written(tmp_path / "t.csv", "1,1,1", header=header))


def test_an_empty_binary_or_missing_table_is_refused(tmp_path: Path):
    (tmp_path / "binary.csv").write_bytes(b"\0" * 100)
    for path in (tmp_path / "none.csv", tmp_path / "binary.csv", written(tmp_path / "no_rows.csv")):
        with pytest.raises(ConfigError, match="measurements = "):
            read(TOY, path)


def test_a_part_keeps_the_share_of_each_group(tmp_path: Path):
    path = written(
        tmp_path / "t.csv", *(f"{n},,{2 * n},10" for n in range(14, 64)), *(f"{n},,1,1" for n in range(200, 250))
    )
    report = validate_timed(GPU, path, TOY, limit=20, threads=2, progress=None)
    scores = {group["name"]: group["n"] for group in report.groups}
    assert report.overall["n"] == 20
    assert scores["rows"] == scores["many"] == 10


def test_the_roofline_has_not_seen_the_shape_it_is_asked_for():
    from sim.validation.timed import Asked

    rows = [Asked(n, ("rows", n), "time_us", 3.0 + 2.0 * n) for n in range(14, 74)]
    control = Control(TOY, rows)
    for asked in rows[::7]:
        assert control.time_us(asked) == pytest.approx(asked.measured_us, rel=0.02)
    assert Control(TOY, rows[:5]).time_us(rows[0]) is None


@given(shapes=st.lists(st.text(min_size=1), min_size=200, max_size=200, unique=True))
@settings(max_examples=5, deadline=None)
def test_about_half_of_the_shapes_are_held_out(shapes: list[str]):
    assert 60 <= sum(map(held_out, shapes)) <= 140


# The kinds there are.
def shipped() -> Iterator[tuple[str, Path]]:
    for kind, folder, name in (
        ("attention", "h200_sxm", "attention"),
        ("attention", FURTHER, "attention_more"),
        ("elementwise", "h200_sxm", "elementwise"),
        ("extra_ops", "h200_sxm", "extra_ops"),
        ("decoder_stack", FURTHER, "stacks_more"),
        ("decoder_stack_kernels", "h200_sxm", "decoder_stack_kernels"),
        ("decoder_stack_kernels", FURTHER, "stack_kernels_more"),
        ("training_steps", FURTHER, "training_more"),
    ):
        yield kind, measured_path(folder, name)


@pytest.mark.parametrize(
    ("kind", "path"), list(shipped()), ids=lambda value: value if isinstance(value, str) else value.stem
)
def test_shipped_tables_are_recognised_and_read_whole(kind: str, path: Path):
    table = recognised(path)
    assert table is not None
    assert table.kind == kind
    assert table is tables()[kind]
    rows = read(table, path, GPU)
    assert rows.skipped == []


@pytest.mark.parametrize("name", ["gemm", "tile_sweep", "counters", "microbench", "sustained_load", "power"])
def test_other_tables_are_left_to_others(name: str):
    assert recognised(measured_path("h200_sxm", name)) is None


def test_kernels_of_a_stack_are_paired_with_the_operations_that_launched_them():
    rows = read(KERNELS, measured_path("h200_sxm", "decoder_stack_kernels"), GPU).asked
    by_case: dict[object, list[StackKernel]] = {}
    for asked in rows:
        by_case.setdefault(asked.question.case, []).append(asked.question)
    assert len(by_case) == 24
    for kernels in by_case.values():
        places = [kernel.place for kernel in kernels]
        assert places == sorted(places)
        assert places[0] == 0
        assert kernels[-1].kind == "product"
        assert [kernel.kind for kernel in kernels].count("flash attention") == 1


@pytest.mark.parametrize("kind", ["attention", "elementwise", "extra_ops", "decoder_stack", "training_steps"])
def test_a_prediction_does_not_see_what_was_measured(kind: str, tmp_path: Path):
    table, source = tables()[kind], measured_path("h200_sxm", kind)
    with source.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    told = {*table.inputs, *table.optional}
    for row in rows:
        row.update({name: "1.5" for name in row if name not in told})
    path = tmp_path / "scrambled.csv"
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    true, scrambled = (read(table, each, GPU).asked for each in (source, path))
    assert [asked.question for asked in true] == [asked.question for asked in scrambled]


# The page.
def reported() -> dict[tuple[str, str], float]:
    """{(table, group): MAPE} of the committed page."""
    found: dict[tuple[str, str], float] = {}
    table, place = "", 0
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            table = line.removeprefix("## ").split()[0]
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if line.startswith("| group |"):
            place = cells.index("MAPE %")
        elif line.startswith("| ") and place and len(cells) > place and re.fullmatch(r"[\d.]+", cells[place]):
            found.setdefault((table, cells[0]), float(cells[place]))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["attention", "elementwise", "extra_ops", "decoder_stack", "training_steps"])
def test_no_group_is_worse_than_the_page_says(kind: str):
    """By more than half a point."""
    page = reported()
    report = validate(GPU, measured_path("h200_sxm", kind))
    assert report.skipped == ()
    for group in report.shown:
        assert group["mape_pct"] <= page[kind, group["name"]] + 0.5, group["name"]
        assert group["mape_pct"] >= page[kind, group["name"]] - 0.5, f"{group['name']} is better: refresh the page"
