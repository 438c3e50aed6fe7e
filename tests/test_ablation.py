"""What mechanisms are worth: the table of errors with one switched off at a time."""

from __future__ import annotations

import pytest

from hwmodels import load_gpu, measured_path
from sim.machine import MECHANISMS
from sim.validation.ablation import COLUMNS, ablation, ablation_section

GPU = load_gpu("h200_sxm")
TABLES = {kind: measured_path("h200_sxm", kind) for kind in ("gemm", "tile_sweep", "counters")}


def test_every_mechanism_is_switched_off_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sim.validation.ablation.MECHANISMS", ("coalescing", "clock"))
    found = dict(ablation(GPU, TABLES, limit=8))
    assert list(found) == ["none", "coalescing", "clock"]
    assert all(list(scores) == list(COLUMNS) for scores in found.values())
    assert found["clock"]["clock %"] > 2 * found["none"]["clock %"]
    assert found["coalescing"]["L2 read %"] > found["none"]["L2 read %"]
    assert found["clock"]["L2 read %"] != found["coalescing"]["L2 read %"]


def test_the_page_lists_them_by_what_they_are_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = dict.fromkeys(COLUMNS, 1.0)
    rows = [("none", scores), ("row_opening", scores), ("clock", {**scores, "cycles %": 9.0})]
    monkeypatch.setattr("sim.validation.ablation.ablation", lambda *_: rows)
    page = ablation_section(GPU, TABLES, 8)
    assert page.index("| none |") < page.index("| clock |") < page.index("| row_opening |")
    assert set(MECHANISMS) >= {"clock", "row_opening"}
