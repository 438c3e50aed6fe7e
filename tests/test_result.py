"""A result's file: all of it comes back, nothing half-written stays, other files are refused. And its notebook form."""

from __future__ import annotations

import dataclasses
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from hwmodels.errors import ConfigError
from sim.result import SCHEMA, Result
from tests.sample_result import reduction_kernel, sample_result

ROOT = Path(__file__).parent.parent


@pytest.fixture
def result() -> Result:
    """Two kernels, the first traced, with copies."""
    return sample_result(copied=True, kernels=(sample_result().main, reduction_kernel()))


@pytest.fixture
def saved(result: Result, tmp_path: Path) -> Path:
    path = tmp_path / "run.tilewalk"
    result.save(path)
    return path


def refused(path: Any) -> str:
    """The message `load` refuses with, in one line that names the file."""
    with pytest.raises(ConfigError) as caught:
        Result.load(path)
    message = str(caught.value)
    assert "\n" not in message
    assert repr(str(path)) in message
    return message


# Round trip.
def test_all_of_a_result_comes_back(result: Result, saved: Path) -> None:
    found = Result.load(saved)
    assert found == result
    for kernel, original in zip(found.kernels, result.kernels, strict=True):
        assert dataclasses.asdict(kernel).keys() == dataclasses.asdict(original).keys()
        np.testing.assert_array_equal(kernel.windows.values, original.windows.values)
    assert found.main.spans is not None
    np.testing.assert_array_equal(found.main.spans, result.main.spans)
    assert found.kernels[1].spans is None


def test_equality_sees_every_field(result: Result) -> None:
    main, second = result.kernels
    windows = dataclasses.replace(main.windows, values=main.windows.values + 1)
    changes: list[dict[str, Any]] = [{"windows": windows}, {"spans": None}, {"time_s": 1.0}, {"waits": {}}]
    for change in changes:
        assert dataclasses.replace(result, kernels=(dataclasses.replace(main, **change), second)) != result
    assert dataclasses.replace(result, limiter="pcie") != result
    assert result != object()


def test_numbers_keep_their_last_bit(result: Result, tmp_path: Path) -> None:
    exact = dataclasses.replace(result, time_s=0.1 + 0.2, flops=2 * 131072**3 * 65536, options={"clock_mhz": None})
    exact.save(tmp_path / "r")
    found = Result.load(tmp_path / "r")
    assert (found.time_s, found.flops) == (0.1 + 0.2, 2 * 131072**3 * 65536)
    assert type(found.flops) is int


def test_the_file_is_the_same_each_time(result: Result, saved: Path, tmp_path: Path) -> None:
    sim.save(result, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == saved.read_bytes()
    assert sim.load(tmp_path / "again") == result


def test_the_file_holds_no_pickles(saved: Path) -> None:
    with np.load(saved, allow_pickle=False) as archive:
        header = json.loads(archive["header"].tobytes())
        assert sorted(archive.files) == ["header", "spans_0", "windows_0", "windows_1"]
    assert (header["schema"], header["result"]["limiter"]) == (SCHEMA, "l2")


def test_loading_needs_neither_numba_nor_simpy(saved: Path) -> None:
    code = f"import sys, sim; sim.load({str(saved)!r}); print({{'numba', 'simpy'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# Writing.
def test_a_file_is_replaced_whole_or_left_alone(result: Result, saved: Path) -> None:
    before = saved.read_bytes()
    with patch("numpy.savez_compressed", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        sample_result().save(saved)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]
    other = dataclasses.replace(result, limiter="hbm")
    other.save(saved)
    assert Result.load(saved) == other
    assert list(saved.parent.iterdir()) == [saved]


def test_a_link_is_followed(result: Result, saved: Path) -> None:
    link = saved.with_name("link")
    link.symlink_to(saved)
    dataclasses.replace(result, limiter="hbm").save(link)
    assert link.is_symlink()
    assert Result.load(saved).limiter == "hbm"


@pytest.mark.parametrize("name", ["no-such-folder/run", "file/run", "", "."])
def test_an_unwritable_path_is_refused(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="cannot be written") as caught:
        result.save(name)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_device_is_not_replaced(result: Result) -> None:
    with pytest.raises(ConfigError, match="not a folder or device"):
        result.save("/dev/null")
    assert Path("/dev/null").is_char_device()


# Reading what is no result.
def test_a_missing_file_or_a_folder_is_refused(tmp_path: Path) -> None:
    assert "must be a file" in refused(tmp_path / "none")
    assert "must be a file" in refused(tmp_path)
    assert "must be a file" in refused("/dev/zero")


@pytest.mark.parametrize(
    "content",
    [b"", b"PK\x03\x04", b"m,n,k\n1,2,3\n", b"{}", bytes(range(256)) * 64, pickle.dumps({"result": 1})],
    ids=["empty", "zip magic", "csv", "json", "binary", "pickle"],
)
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    assert "not a saved result" in refused(path)


def test_other_arrays_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.npz"
    np.savez(path, a=np.zeros(3))
    assert "not a saved result" in refused(path)
    np.save(tmp_path / "other.npy", np.zeros(3))
    assert "not a saved result" in refused(tmp_path / "other.npy")


@settings(max_examples=60)
@given(data=st.data())
def test_a_truncated_or_damaged_file_is_refused_or_reads_the_same(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged"
    expected = sample_result(traced=False)
    expected.save(path)
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        damaged = whole[:at]
    else:
        damaged = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    path.write_bytes(damaged)
    try:
        found = Result.load(path)
    except ConfigError:
        return
    assert found == expected  # a byte that zip does not read, such as a date


def change_header(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Rewrite a saved file with its header changed."""
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    header = json.loads(arrays["header"].tobytes())
    change(header)
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    with path.open("wb") as file:
        np.savez(file, **arrays)


def test_another_schema_is_refused_by_number(saved: Path) -> None:
    change_header(saved, lambda header: header.update(schema=SCHEMA + 1))
    assert f"schema = {SCHEMA + 1}, must be {SCHEMA}" in refused(saved)


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.update(format="another"),
        lambda header: header.pop("format"),
        lambda header: header["result"].pop("flops"),
        lambda header: header["result"].update(extra=1),
        lambda header: header["result"].update(time_s="1"),
        lambda header: header["result"].update(kernels=[]),
        lambda header: header["result"]["kernels"][0].pop("waits"),
        lambda header: header["result"]["kernels"][0].update(bytes=[]),
        lambda header: header["result"]["kernels"].append(header["result"]["kernels"][0]),
        lambda header: header["result"]["host_spans"][0].update(start_s=None),
        lambda header: header.update(result=[]),
    ],
    ids=["format", "no format", "missing", "extra", "type", "no kernel", "waits", "bytes", "windows", "host", "list"],
)
def test_a_header_that_does_not_fit_is_refused(saved: Path, change: Callable[[dict[str, Any]], object]) -> None:
    change_header(saved, change)
    assert "not a saved result" in refused(saved)


# In a notebook.
def test_the_notebook_form_tells_the_story(result: Result) -> None:
    html = result._repr_html_()
    for part in ("4,096 × 4,096 × 4,096 bf16", "NVIDIA H200 SXM", "218 µs", "Limiter: <b>l2</b>", "busy 81 %"):
        assert part in html
    for level in ("HBM", "L2", "SM ports", "shared memory"):
        assert f">{level}</td>" in html


def test_the_notebook_form_is_well_formed_and_needs_nothing_else(result: Result) -> None:
    html = result._repr_html_()
    root = ElementTree.fromstring(html)
    assert not {"script", "link", "img"} & {element.tag for element in root.iter()}
    assert "http" not in html.replace("http://www.w3.org/2000/svg", "")


def test_the_bar_is_as_long_as_its_waits(result: Result) -> None:
    root = ElementTree.fromstring(result._repr_html_())
    pieces = list(root.iter("{http://www.w3.org/2000/svg}rect"))
    widths = [float(piece.attrib["width"]) for piece in pieces]
    assert sum(widths) == pytest.approx(640, abs=0.1 * len(widths))
    assert widths[0] == pytest.approx(640 * result.main.waits["mma"], abs=0.1)
    assert len({piece.attrib["fill"] for piece in pieces}) == len(pieces)


def test_the_notebook_form_escapes_what_users_wrote(result: Result) -> None:
    mine = dataclasses.replace(result, gpu={**result.gpu, "label": "<b>my & GPU</b>"})
    assert "&lt;b&gt;my &amp; GPU&lt;/b&gt;" in mine._repr_html_()
