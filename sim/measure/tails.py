"""tails.csv: softmax over vocabularies whose rows do not fill the last round of vectors of all threads."""

from __future__ import annotations

from dataclasses import replace

from sim.measure import elementwise_warm
from sim.measure.table import Case

WIDTHS = (32000, 32768, 33024, 34816, 36864, 40952, 40960, 49152, 50257, 57344, 65536, 98304, 131072, 256000)
ROWS = (1, 64, 512)


def cases(quick: bool) -> list[Case]:
    """bf16; a round takes 8,192 elements. Warm where the rows fit L2."""
    found = [
        dict(zip(elementwise_warm.KEY, (op, rows, width, "bf16", "", "no", l2), strict=True))
        for op in ("softmax", "log_softmax")
        for rows in ROWS
        for width in WIDTHS
        for l2 in ("cold", "warm")
        if l2 == "cold" or rows == 1
    ]
    return found[::24] if quick else found


TABLE = replace(
    elementwise_warm.TABLE, name="tails", about="as elementwise_warm: softmax over vocabularies", cases=cases
)
