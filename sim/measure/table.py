"""What is measured: a table is its columns, its cases and a way to measure some of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
"""Column -> value."""
Case = dict[str, Any]
"""Those columns and values that mark the rows of one case; a row of the file that has them means it was measured."""
Outcome = list[Row] | str
"""The rows of one case, or why there are none."""

TOOLS = ("triton", "nvcc", "ncu", "nvml")


@dataclass(frozen=True)
class Table:
    """One file. `measure` takes at most `batch` cases together and gives their outcomes in order; `case_s` is about
    what one takes. `needs` are of `TOOLS`, or "hopper" for a GPU of compute capability 9.0; PyTorch is always there."""

    name: str
    about: str
    columns: tuple[str, ...]
    needs: tuple[str, ...]
    cases: Callable[[bool], list[Case]]
    """All cases, or the few of a quick run."""
    measure: Callable[[Sequence[Case]], list[Outcome]]
    batch: int
    case_s: float


def described(case: Case) -> str:
    """A case on one line."""
    return " ".join(f"{column}={value}" for column, value in case.items())
