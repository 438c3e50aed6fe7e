"""The record that goes with measured tables: on what, with what, when, how, and digests of the files."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sim.measure.store import replace

TOML, PAGE = "protocol.toml", "PROTOCOL.md"

HOW = """
Kernel time (`time_us`) is the GPU-side duration from CUPTI through torch.profiler: the median of a burst of launches
after two are dropped, the least and the most beside it. Inputs are normal random. `l2 = cold`: every launch reads
other buffers of a pool larger than L2; `warm`: always the same. Counters are Nsight Compute's, one launch each, caches
flushed, clocks left alone; it adds 0.5 to 1 us to short kernels. `sm_mhz_after` is the SM clock just after the
launches. What could not be measured is in skipped.csv with the reason, and is tried again once its line is removed.
"""


def now() -> str:
    """Date and time in UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def write(folder: Path, facts: Mapping[str, str], started: str, tables: Mapping[str, str]) -> None:
    """Write protocol.toml and PROTOCOL.md for the tables in `folder`; earlier runs that they came from stay listed.

    `tables`: name -> one line on what it holds, of those that this run was to measure.
    """
    before = _read(folder / TOML)
    runs = [*before.get("run", []), {"started": started, "ended": now(), **facts, "tables": ", ".join(tables)}]
    about = {**{name: entry["about"] for name, entry in before.get("file", {}).items()}, **tables}
    files = {name: _file(folder / f"{name}.csv", text) for name, text in about.items()}
    files = {name: entry for name, entry in files.items() if entry}
    replace(folder / TOML, _toml(runs, files))
    replace(folder / PAGE, _page(runs, files))


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # none yet, or not ours any more: begin anew
        return {}


def _file(path: Path, about: str) -> dict[str, Any]:
    if not path.exists():
        return {}
    content = path.read_bytes()
    rows = max(0, content.count(b"\n") - 1)
    return {"about": about, "rows": rows, "sha256": hashlib.sha256(content).hexdigest()}


def _toml(runs: list[dict[str, Any]], files: Mapping[str, dict[str, Any]]) -> str:
    parts = [f"[[run]]\n{_pairs(run)}" for run in runs]
    parts += [f"[file.{name}]\n{_pairs(entry)}" for name, entry in files.items()]
    return "\n".join(parts)


def _pairs(values: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {_value(value)}\n" for key, value in values.items())


def _value(value: Any) -> str:
    if isinstance(value, int):
        return str(value)
    text = "".join(c if c.isprintable() else " " for c in str(value))
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _page(runs: list[dict[str, Any]], files: Mapping[str, dict[str, Any]]) -> str:
    lines = [f"# Kernels measured on {runs[-1].get('gpu', 'a GPU')}", "", "Made by `tilewalk measure`.", HOW]
    lines += ["| file | rows | what |", "|---|---|---|"]
    lines += [f"| {name}.csv | {entry['rows']:,} | {entry['about']} |" for name, entry in files.items()]
    for run in runs:
        lines += ["", f"## Run of {run['started']}", "", "| | |", "|---|---|"]
        lines += [f"| {key} | {value} |" for key, value in run.items()]
    return "\n".join(lines) + "\n"
