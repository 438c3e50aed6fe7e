"""What an architect turns: named groups of a GPU's values that change together (levers.toml), and GPUs so changed."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from hwmodels.catalog import NAMES, changed
from hwmodels.refusals import nearest, refusal, shown
from hwmodels.rules import value_at
from hwmodels.spec import FIELDS, Gpu


@dataclass(frozen=True)
class Lever:
    """One thing to change: `keys` of a GPU are multiplied by the same factor, and cut to multiples of `steps_of`.
    `refits`: how many CTAs run at once changes with it, and with that which tiles suit."""

    name: str
    text: str
    keys: tuple[str, ...]
    steps_of: str | int | None = None
    refits: bool = False

    def overrides(self, gpu: Gpu, factor: float) -> tuple[str, ...]:
        """`key=value` of every key times `factor`; whole numbers are rounded, and stay above 0 where they were."""
        return tuple(f"{key}={self._scaled(gpu, key, factor)!r}" for key in self.keys)

    def factor(self, gpu: Gpu, factor: float) -> float:
        """The factor that comes out of the first key that is not 0, once rounded."""
        for key in self.keys:
            if value_at(gpu, key):
                return float(self._scaled(gpu, key, factor) / value_at(gpu, key))
        return factor

    def _scaled(self, gpu: Gpu, key: str, factor: float) -> int | float:
        value, step = value_at(gpu, key), self.steps_of
        scaled: float = value * factor
        if step is not None:
            scaled = scaled // (size := value_at(gpu, step) if isinstance(step, str) else step) * size
        return max(min(1, value), round(scaled)) if FIELDS[key].type is int else scaled


@lru_cache(maxsize=1)
def levers() -> dict[str, Lever]:
    """{name: lever}, in the order of the file."""
    text = (Path(__file__).parent / "levers.toml").read_text("utf-8")
    return {name: Lever(name, **{**each, "keys": tuple(each["keys"])}) for name, each in tomllib.loads(text).items()}


def lever(name: str) -> Lever:
    """The lever of that name, or a value of a GPU (`l2.capacity_mib`) as one of its own. Raises ConfigError."""
    if name in levers():
        return levers()[name]
    field = FIELDS.get(name)
    if field is None:
        raise refusal("", _unknown(name))
    if field.type not in (int, float):
        raise refusal("", f"{name}: is no number, so that it cannot be scaled")
    return Lever(name, name, (name,), refits=name.startswith(("sm.", "smem.", "registers.")))


def _unknown(name: str) -> str:
    told = f"levers: {', '.join(levers())}; values: tilewalk gpus show NAME lists them"
    return f"unknown value or lever {shown(name)}{nearest(name, [*levers(), *FIELDS], otherwise=told)}"


def variant(gpu: Gpu, sets: Iterable[str]) -> Gpu:
    """`gpu` with `key=value`, `key=*factor` and `lever=*factor` applied in order, whole numbers rounded.

    Raises ConfigError for unknown names and values or combinations that no GPU has."""
    for text in sets:
        gpu = changed(gpu, _overrides(gpu, text))
    return gpu


def _overrides(gpu: Gpu, text: str) -> Sequence[str]:
    name, _, right = (part.strip() for part in text.partition("="))
    if name and right and "." not in name and name not in (*levers(), *FIELDS, *NAMES):
        raise refusal(f"override {shown(text)}", _unknown(name))
    if name not in levers() and not (right.startswith("*") and FIELDS[name].type is int if name in FIELDS else False):
        return (text,)
    if not right.startswith("*"):
        raise refusal(f"override {shown(text)}", f"{name} stands for several values: needs {name}=*factor")
    try:
        factor = float(right[1:])
    except ValueError:
        factor = 0.0
    if not 0 < factor < float("inf"):
        raise refusal(f"override {shown(text)}", f"factor {shown(right[1:])}: needs a number above 0")
    return lever(name).overrides(gpu, factor)
