"""Measure tables into a folder: what is there already is kept, every batch is written at once, nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hwmodels.errors import ConfigError
from sim.measure import protocol
from sim.measure.store import Store
from sim.measure.table import Case, Outcome, Table, described

GIVE_UP_AFTER = 5
"""So many failures in a row end a table: after some errors CUDA refuses everything."""
SKIPPED = ("table", "case", "reason")


@dataclass
class Progress:
    """How far a run is. `tell` is called with the table's name, cases done, cases in all, and seconds left (None while
    unknown)."""

    total: int
    total_s: float
    tell: Callable[[str, int, int, float | None], None]
    started: float
    done: int = 0
    done_s: float = 0.0

    def say(self, table: str) -> None:
        """Pass on the state; the time left is as much slower or faster than expected as what is done was."""
        if self.done_s:
            pace = (time.monotonic() - self.started) / self.done_s
            self.tell(table, self.done, self.total, (self.total_s - self.done_s) * pace)
        else:
            self.tell(table, self.done, self.total, self.total_s)

    def advance(self, table: Table, n_cases: int) -> None:
        """Count cases of `table` as done."""
        self.done += n_cases
        self.done_s += n_cases * table.case_s
        self.say(table.name)


@dataclass(frozen=True)
class Summary:
    """What a run did to one table: rows in the file, cases measured now, cases skipped (now or before), and what was
    given up and why ("" if nothing)."""

    table: str
    n_rows: int
    n_measured: int
    n_skipped: int
    given_up: str


def run(
    folder: Path,
    tables: Sequence[Table],
    quick: bool,
    facts: Mapping[str, str],
    tell: Callable[[str, int, int, float | None], None],
    lacking: Callable[[Table], str] = lambda table: "",
) -> list[Summary]:
    """Measure every case of `tables` that `folder` has not, and write the protocol.

    `facts` go into the protocol; `lacking` says what a table needs and this machine has not. Raises ConfigError where
    the folder cannot be written or holds other tables; an interrupt passes through, with all finished batches kept.
    """
    stores = {table.name: Store(folder / f"{table.name}.csv", table.columns) for table in tables}
    skipped = Store(folder / "skipped.csv", SKIPPED)
    todo = {table.name: _todo(table, quick, stores[table.name], skipped) for table in tables if not lacking(table)}
    wanted_s = sum(len(todo.get(table.name, [])) * table.case_s for table in tables)
    progress = Progress(sum(map(len, todo.values())), wanted_s, tell, time.monotonic())
    started, summaries = protocol.now(), []
    try:
        for table in tables:
            progress.say(table.name)
            n_measured, given_up = 0, lacking(table)
            if not given_up:
                n_measured, given_up = _measure(table, todo[table.name], stores[table.name], skipped, progress)
            n_skipped = sum(row["table"] == table.name for row in skipped.rows)
            summaries.append(Summary(table.name, len(stores[table.name].rows), n_measured, n_skipped, given_up))
    finally:
        protocol.write(folder, facts, started, {table.name: table.about for table in tables})
    return summaries


def _todo(table: Table, quick: bool, store: Store, skipped: Store) -> list[Case]:
    return [case for case in table.cases(quick) if not store.has(case) and not skipped.has(_skip_mark(table, case))]


def _skip_mark(table: Table, case: Case) -> Case:
    return {"table": table.name, "case": described(case)}


def _measure(table: Table, todo: list[Case], store: Store, skipped: Store, progress: Progress) -> tuple[int, str]:
    """How many were measured, and why the rest was given up."""
    n_measured = n_failed = 0
    for at in range(0, len(todo), table.batch):
        batch = todo[at : at + table.batch]
        for case, outcome in zip(batch, _outcomes(table, batch), strict=True):
            if isinstance(outcome, str):
                n_failed += 1
                if n_failed == GIVE_UP_AFTER:
                    return n_measured, f"{GIVE_UP_AFTER} failures in a row, the last: {outcome}"
                skipped.add([_skip_mark(table, case) | {"reason": outcome}])
            else:
                n_failed = 0
                n_measured += 1
                store.add(case | row for row in outcome)
        progress.advance(table, len(batch))
    return n_measured, ""


def _outcomes(table: Table, batch: Sequence[Case]) -> list[Outcome]:
    """Of a batch; where it fails, of each of its cases alone, so that one cannot take the others along."""
    try:
        return table.measure(batch)
    except ConfigError:
        raise
    except Exception as error:  # torch, triton, ncu and the driver each have their own
        if len(batch) > 1:
            return [outcome for case in batch for outcome in _outcomes(table, [case])]
        return [_reason(error)]


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300].replace(",", ";")
