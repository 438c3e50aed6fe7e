"""Chains of elementwise operations as one kernel each, as a compiler makes them of a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from workloads.operations import Operation, Step
from workloads.stream import LINKS, MAX_LINKS, Stream

Run = list[Operation]


def with_chains(step: Step) -> Step:
    """The step with every run of elementwise operations in one kernel.

    A run: operations of `LINKS` on the same [rows, width] of one type, each of which reads what one before it wrote.
    The kernel reads what came from outside, and writes what is read after it or is still there at the end; what lies
    between stays in registers. Not fused: reductions (norms, softmax), gathers and copies into other layouts.
    """
    runs: list[Run] = []
    for operation in step.operations:
        if runs and _continues(runs[-1], operation):
            runs[-1].append(operation)
        else:
            runs.append([operation])
    later = _read_later(runs)
    fused = tuple(_fused(run, later[i]) if len(run) > 1 else run[0] for i, run in enumerate(runs))
    return replace(step, operations=fused)


def _continues(run: Run, operation: Operation) -> bool:
    """Whether the operation can join the run."""
    last, work = run[-1].work, operation.work
    if not (isinstance(last, Stream) and isinstance(work, Stream)) or len(run) == MAX_LINKS:
        return False
    alike = (last.rows, last.width, last.dtype) == (work.rows, work.width, work.dtype) and last.out_dtype is None
    written = {name for each in run for name in each.writes}
    linked = any(name in written for _, name in operation.reads)
    return alike and linked and last.op in LINKS and work.op in LINKS and run[-1].layer == operation.layer


def _read_later(runs: Sequence[Run]) -> list[set[str]]:
    """For each run, the tensors that a later one reads before writing them."""
    found: list[set[str]] = []
    needed: set[str] = set()
    for run in reversed(runs):
        found.append(set(needed))
        for operation in reversed(run):
            needed -= set(operation.writes)
            needed |= {name for _, name in operation.reads}
    return found[::-1]


def _fused(run: Run, later: set[str]) -> Operation:
    """One kernel of a run."""
    written: set[str] = set()
    reads: dict[tuple[str, str], None] = {}
    for operation in run:
        reads.update({read: None for read in operation.reads if read[1] not in written})
        written |= set(operation.writes)
    writes = tuple(name for name in dict.fromkeys(n for each in run for n in each.writes) if name in later)
    writes = writes or run[-1].writes
    works = [each.work for each in run if isinstance(each.work, Stream)]
    n_inputs = max(1, sum(role == "x" for role, _ in reads))
    work = replace(
        works[0],
        op="chain",
        out_dtype=works[-1].out_dtype,
        strided=any(each.strided for each in works),
        chain=tuple(each.op for each in works),
        inputs=n_inputs,
        outputs=len(writes),
    )
    return Operation(" + ".join(each.name for each in run), work, tuple(reads), writes, run[0].layer)
