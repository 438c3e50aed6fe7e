"""decoder_stack_kernels.csv, stack_kernels_more.csv: the kernels of one step of a decoder stack, in launch order."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sim.measure import stacks
from sim.measure.table import Case, Outcome, Row, Table

KEY = ("model", "phase", "batch", "seq", "ctx")
N_STEPS = 3
N_LAST = 3
NAME_LENGTH = 140


def measure(batch: Sequence[Case]) -> list[Outcome]:
    """Duration of each kernel by its position, the median of `N_STEPS` steps run without a graph."""
    return [_measured(case) for case in batch]


def _measured(case: Case) -> list[Row]:
    import torch

    from sim.measure.timing import launches

    with torch.no_grad():
        run = stacks.step(case)
        steps = launches(lambda i: run(), N_STEPS + 1)
    torch.cuda.empty_cache()
    shown = _shown(list(zip(*steps, strict=True)), stacks.MODELS[case["model"]].layers)
    return [{"index": index} | _row(events) for index, events in enumerate(shown)]


def _shown(positions: list[Any], n_layers: int) -> list[Any]:
    """Embedding, first layer and a part of the second; and the last kernels (norm, head)."""
    per_layer = (len(positions) - 4) // n_layers
    return positions[: per_layer + 3] + positions[-N_LAST:]


def _row(events: Sequence[dict[str, Any]]) -> Row:
    """Of the kernels at one position. Raises RuntimeError where steps differ."""
    from sim.measure.timing import clean, threes

    names = {event["name"] for event in events}
    if len(names) > 1:
        raise RuntimeError(f"steps launch different kernels at one position: {sorted(names)}")
    return {
        "kernel": clean(events[0]["name"], NAME_LENGTH),
        "time_us": round(statistics.median(event["dur"] for event in events), 3),
        "grid": threes(events[0], "grid"),
        "block": threes(events[0], "block"),
    }


def cases(quick: bool) -> list[Case]:
    """Those of decoder_stack."""
    return [_without_layers(case) for case in stacks.cases(quick)]


def other_cases(quick: bool) -> list[Case]:
    """Those of stacks_more."""
    return [_without_layers(case) for case in stacks.other_cases(quick)]


def _without_layers(case: Case) -> Case:
    return {column: case[column] for column in KEY}


TABLE = Table(
    "decoder_stack_kernels",
    "kernels of a step of decoder_stack in launch order: embedding, first layer, a part of the second, the last three",
    (*KEY, "index", "kernel", "time_us", "grid", "block"),
    (),
    cases,
    measure,
    batch=1,
    case_s=3.0,
)
OTHER_TABLE = replace(
    TABLE, name="stack_kernels_more", about="as decoder_stack_kernels: steps of stacks_more", cases=other_cases
)
