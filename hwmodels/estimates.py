"""How much of what is known of a GPU is estimated, in one line for its results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

MEASURED = Path(__file__).parent / "measured"


class Share(NamedTuple):
    """Numbers of a GPU that are assumed, and all of them."""

    n_assumed: int
    n_numbers: int


def share_assumed(described: Mapping[str, Any]) -> Share:
    """Of a GPU as `catalog.resolved` gives it: facts and constants of the model alike, text and yes or no apart."""
    kinds = [
        entry["kind"]
        for entry in described["values"].values()
        if isinstance(entry["value"], (int, float)) and not isinstance(entry["value"], bool)
    ]
    return Share(kinds.count("assumed"), len(kinds))


def estimates_note(described: Mapping[str, Any]) -> str:
    """What a result on the GPU has to say where more than half of its numbers are assumed, or ""."""
    share = share_assumed(described)
    if 2 * share.n_assumed <= share.n_numbers:
        return ""
    checked = "kernels measured on one check them" if (MEASURED / described["name"]).is_dir() else ""
    rest = checked or "no kernel measured on one checks them"
    return f"{share.n_assumed} of {share.n_numbers} numbers of this GPU are estimates; {rest}."
