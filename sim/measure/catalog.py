"""Every table that can be measured."""

from __future__ import annotations

from sim.measure import (
    attention,
    attention_more,
    attention_window,
    counters,
    cta_times,
    elementwise,
    elementwise_warm,
    extra,
    gemm,
    graph_gaps,
    handover,
    hot,
    loop,
    more,
    programs,
    stack_kernels,
    stacks,
    sustained,
    tails,
    tiles,
    training,
)
from sim.measure.table import Table

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        *programs.TABLES,
        gemm.TABLE,
        tiles.TABLE,
        counters.TABLE,
        sustained.TABLE,
        attention.TABLE,
        elementwise.TABLE,
        stacks.TABLE,
        stack_kernels.TABLE,
        extra.TABLE,
        training.TABLE,
        *more.TABLES,
        attention_more.TABLE,
        attention_more.BACKWARD_TABLE,
        elementwise.OTHER_TABLE,
        elementwise_warm.TABLE,
        extra.OTHER_TABLE,
        stacks.OTHER_TABLE,
        stack_kernels.OTHER_TABLE,
        training.OTHER_TABLE,
        graph_gaps.TABLE,
        hot.TABLE,
        handover.TABLE,
        loop.TABLE,
        cta_times.TABLE,
        tails.TABLE,
        attention_window.TABLE,
    )
}
