"""Simulating rows under many sets of constants, each question once: what was asked is remembered, and kept in a file.

A question is a kernel, the clock it is held at (if any) and the values of those constants that it can feel; its answer
is the row's quantities. The file makes a calibration resumable: the same steps are gone through again, and find what
was simulated before.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from hwmodels.errors import ConfigError
from sim.calibration.constants import Constant, with_values
from sim.calibration.tables import Item
from sim.validation.replay import Case, Predicted, replay, simulator

if TYPE_CHECKING:
    from hwmodels.spec import Gpu
    from sim.result import Result

Values = Mapping[str, float]
Simulate = Callable[[Case, "Gpu", "float | None"], "Result"]
"""One kernel on a GPU, at a clock in MHz or, if None, at that which the model gives it."""
Array = npt.NDArray[np.float64]

QUANTITIES = tuple(field.name for field in fields(Predicted) if field.name != "limiter")
SAVE_S = 20.0
"""Seconds of simulation that an interrupt may cost."""
KEY_BYTES = 16
HELD_MHZ = (100.0, 10_000.0)
"""Clocks that a simulation can be held at."""
KERNEL_S, ITERATION_S = 2.5e-3, 2.2e-7
"""Rough processor time of one simulation and of one k-iteration of a CTA in it: for the time left, and nothing else."""


class StoppedError(Exception):
    """The calibration was told to stop."""


def cost_s(item: Item) -> float:
    """Rough processor time of simulating a row once, seconds."""
    return KERNEL_S + ITERATION_S * item.iterations


class Predictions:
    """Answers by question. `constants` are all that may move, `read` the keys of values that microbenchmarks replace:
    those, every kernel can feel."""

    def __init__(
        self,
        gpu: Gpu,
        constants: Sequence[Constant],
        read: Sequence[str] = (),
        threads: int = 2,
        simulate: Simulate | None = None,
    ) -> None:
        self.gpu = gpu
        self.threads = threads
        self.simulated = 0
        self.spent_s = self.done_s = self.wall_s = 0.0
        """Rough cost of what was simulated, and of all that was answered, in this run; wall time of simulating."""
        self.heard: Callable[[], None] = lambda: None
        """Called now and again while rows are simulated."""
        self._simulate_one = simulate or simulate_case
        self._constants, self._read = tuple(constants), tuple(read)
        self._known: dict[bytes, tuple[float, ...]] = {}
        self._asked: set[bytes] = set()
        self._names: dict[int, tuple[bytes, tuple[str, ...]]] = {}
        self._stopped, self._lock = Event(), Lock()
        self._path: Path | None = None
        self._header = ""
        self._saved_at = 0.0

    def of(self, items: Sequence[Item], values: Values, held: bool) -> Array:
        """Quantities of each row (columns as `QUANTITIES`), NaN where it cannot be simulated. `held` runs each kernel
        at the clock measured in it, where there is one. Raises `StoppedError` after `stop`."""
        keys = [self._key(item, values, held) for item in items]
        missing = {key: item for key, item in zip(keys, items, strict=True) if key not in self._known}
        new = {key: item for key, item in zip(keys, items, strict=True) if key not in self._asked}
        self._asked.update(new)
        self.done_s += sum(cost_s(item) for key, item in new.items() if key not in missing)
        if missing:
            self._simulate(missing, values, held)
        return np.array([self._known[key] for key in keys]).reshape(len(keys), len(QUANTITIES))

    def _key(self, item: Item, values: Values, held: bool) -> bytes:
        if id(item) not in self._names:
            felt = tuple(constant.key for constant in self._constants if constant.uses(item.config))
            self._names[id(item)] = hashlib.sha256(repr(item.case).encode()).digest(), (*felt, *self._read)
        name, felt = self._names[id(item)]
        text = repr([held_mhz(item) if held else None, *(values.get(key) for key in felt)])
        return hashlib.sha256(name + text.encode()).digest()[:KEY_BYTES]

    def _simulate(self, missing: Mapping[bytes, Item], values: Values, held: bool) -> None:
        """Long ones first, so that no thread is left alone with one at the end; saved in parts."""
        gpu = with_values(self.gpu, dict(values))
        order = sorted(missing.items(), key=lambda pair: -cost_s(pair[1]))
        clocks = {item.case: held_mhz(item) for item in missing.values()} if held else {}
        began_s, wall_s = time.monotonic(), self.wall_s

        def progress(done: int, total: int) -> None:
            self.wall_s = wall_s + time.monotonic() - began_s
            self.spent_s += cost_s(order[done - 1][1])
            self.done_s += cost_s(order[done - 1][1])
            self.simulated += 1
            self.heard()

        def predict(case: Case) -> Result:
            if self._stopped.is_set():
                raise StoppedError
            return self._simulate_one(case, gpu, clocks.get(case))

        inputs = [item.row.inputs for _, item in order]
        answers = replay(inputs, gpu, predict, threads=self.threads, progress=progress)
        with self._lock:
            for (key, _), answer in zip(order, answers, strict=True):
                self._known[key] = _figures(answer)
        if time.monotonic() - self._saved_at > SAVE_S:
            self.save()

    def stop(self) -> None:
        """Let what is being simulated end with `StoppedError`, and save."""
        self._stopped.set()
        self.save()

    # Keeping answers.
    def keep(self, path: Path, header: dict[str, Any]) -> str:
        """Keep answers in this file from now on; take those in it if its header says the same.

        Returns what became of a file that was there: "" (none), "continued", or which entry of the header differs.
        """
        self._path, self._header = path, json.dumps(header, sort_keys=True)
        self._saved_at = time.monotonic()
        if not path.exists():
            return ""
        try:
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as kept:
                found, keys, answers = json.loads(str(kept["header"])), kept["keys"], kept["answers"]
            differs = [name for name in header if found.get(name) != header[name]]
            if not differs:
                self._known = {key.tobytes(): tuple(row) for key, row in zip(keys, answers.tolist(), strict=True)}
        except (OSError, ValueError, KeyError, AttributeError, EOFError, BadZipFile):
            return "unreadable"
        return f"{', '.join(differs)} changed" if differs else "continued"

    def save(self) -> None:
        """Write what is known beside the file and rename it there, so that it is never half written."""
        if self._path is None:
            return
        with self._lock:
            keys = np.frombuffer(b"".join(self._known), np.uint8).reshape(-1, KEY_BYTES)
            answers = np.array(list(self._known.values())).reshape(-1, len(QUANTITIES))
            temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}.tmp")
            try:
                with temporary.open("wb") as stream:
                    np.savez(stream, header=np.array(self._header), keys=keys, answers=answers)
                os.replace(temporary, self._path)
            except OSError as error:
                raise ConfigError(f"state = {self._path}: cannot be written ({error.strerror or error})") from None
            finally:
                temporary.unlink(missing_ok=True)
            self._saved_at = time.monotonic()

    def forget(self) -> None:
        """Remove the file."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def held_mhz(item: Item) -> float | None:
    """The clock measured inside the row's kernel, None where none was or no simulation can be held there."""
    mhz = item.row.measured.sm_mhz
    return mhz if mhz is not None and HELD_MHZ[0] <= mhz <= HELD_MHZ[1] else None


def simulate_case(case: Case, gpu: Gpu, mhz: float | None) -> Result:
    """The simulator's answer; the free clock is the one that the row's launches before it leave, as in validation."""
    from sim.run import simulate

    if mhz is None:
        return simulator(gpu)(case)
    return simulate(case.gemm, gpu, config=case.config, clock_mhz=mhz)


def _figures(answer: Predicted | str) -> tuple[float, ...]:
    if isinstance(answer, str):
        return (np.nan,) * len(QUANTITIES)
    return tuple(float(getattr(answer, name)) for name in QUANTITIES)
