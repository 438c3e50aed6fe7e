"""Ways to run the command line in tests: in this process, with the simulator replaced, or as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import sim
from sim.result import Result as Simulated
from tests.sample_result import sample_result
from viz.commands.app import app

ROOT = Path(__file__).parent.parent
MAIN = "from viz.cli import main; main()"


def tilewalk(*args: str) -> Result:
    """Run one command line; a defect raises."""
    done = CliRunner().invoke(app, list(args), prog_name="tilewalk")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def one_error(done: Result) -> str:
    """The one line of a refusal, after it was checked to be no more than that."""
    lines = done.stderr.splitlines()
    assert done.exit_code == 2, done.stderr
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("tilewalk: error: ")
    assert lines[0].isprintable()
    assert done.stdout == ""
    return lines[0].removeprefix("tilewalk: error: ")


class FakeSimulate:
    """Stands in for `sim.simulate`: remembers what it was asked and answers with the sample result."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, Any, dict[str, Any]]] = []

    def __call__(self, gemm: Any, gpu: Any, *, progress: Any = None, **keywords: Any) -> Simulated:
        self.asked.append((gemm, gpu, keywords))
        return sample_result()


def replace_simulate(monkeypatch: pytest.MonkeyPatch, by: Any) -> None:
    """Let commands call `by`, without loading the engine to see whether it is compiled."""
    monkeypatch.setattr(sim, "simulate", by, raising=False)
    monkeypatch.setattr("viz.commands.gemm.engine_needs_compiling", lambda: False)
    monkeypatch.setattr("viz.commands.validate.engine_needs_compiling", lambda: False)


def answer_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let validation answer every row with the sample result, beside a roofline that needs no fitting."""
    monkeypatch.setattr("sim.validation.run.simulator", lambda gpu: lambda case: sample_result())
    control = SimpleNamespace(time_us=lambda inputs: 100.0)
    monkeypatch.setattr("sim.validation.run.shipped_control", lambda gpu, kind: control)


def process(*args: str, before: str = "", **options: Any) -> subprocess.Popen[str]:
    """`tilewalk` as a process; `before` is Python that runs first in it."""
    command = [sys.executable, "-c", f"{before}\n{MAIN}", *args]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, **{**pipes, "env": environment, **options})
