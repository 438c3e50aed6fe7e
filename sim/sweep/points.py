"""What a sweep simulates: products of hardware, workloads and kernel configurations, made one point at a time.

Points are in a fixed order: product after product; in each, hardware changes last and configurations first, so that
kernels of one GPU are simulated together.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache, lru_cache
from typing import Any, Generic, NamedTuple, TypeVar

from hwmodels.catalog import load_gpu
from hwmodels.errors import ConfigError
from hwmodels.levers import variant
from hwmodels.spec import Gpu
from sim.call import Options
from sim.cases import Figures, GemmCase, LlmCase, Tiles
from sim.llm import How
from sim.schedule.config import KernelConfig
from workloads.execution import Execution
from workloads.gemm import Gemm
from workloads.llm import Llm
from workloads.training import Training

T = TypeVar("T")
WHERE = "sweep"
Labels = dict[str, Any]
"""Columns of a point that say what it is: {name: value}."""
FACTOR = "_factor"
"""Behind the key of a column: the value is a factor of the base's."""


@dataclass(frozen=True)
class RefusedCase:
    """A combination of values that no workload has: a row of the table with its reason."""

    described: tuple[tuple[str, Any], ...]
    reason: str

    def figures(self, gpu: Gpu, kept: Tiles | None = None) -> Figures:
        """Raises ConfigError."""
        raise ConfigError(self.reason)


Workload = GemmCase | LlmCase | RefusedCase


@dataclass(frozen=True)
class Parts:
    """Some fields of a kernel configuration; `sim.schedule.choose.complete` finds the rest for each GEMM and GPU."""

    fields: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, **given: Any) -> Parts:
        """As keywords, of `complete`."""
        return cls(tuple(given.items()))


Config = KernelConfig | Parts | None
"""None: the kernel is chosen."""


@dataclass(frozen=True)
class Hardware:
    """A GPU by its shipped name or file, with `sets` as `hwmodels.levers.variant` takes them."""

    gpu: str = "h200_sxm"
    sets: tuple[str, ...] = ()

    def resolved(self) -> Gpu:
        """All values. Raises ConfigError for a GPU or a value that there is none of."""
        return variant(load_gpu(self.gpu), self.sets)

    def labels(self) -> Labels:
        """The GPU, and each value that was set; a factor in a column of its own."""
        found: Labels = {"gpu": self.gpu}
        for text in self.sets:
            key, _, right = (part.strip() for part in text.partition("="))
            factor = right.startswith("*")
            found[key + FACTOR if factor else key] = _number(right.removeprefix("*"))
        return found


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


@dataclass(frozen=True)
class Grid(Generic[T]):
    """`make(*values)` for every combination of the axes' values, the last axis first to change; nothing is made before
    it is asked for."""

    make: Callable[..., T]
    axes: tuple[Sequence[Any], ...]

    def __iter__(self) -> Iterator[T]:
        return itertools.starmap(self.make, itertools.product(*self.axes))

    @property
    def n(self) -> int:
        """Combinations."""
        return math.prod(len(axis) for axis in self.axes)


def workloads(values: Mapping[str, Any], make: Callable[..., Workload]) -> Grid[Workload]:
    """`make(**chosen)` of every combination of the values, each one or a list of them; where `make` refuses one, a
    `RefusedCase` stands for it."""
    names = tuple(values)

    def made(*chosen: Any) -> Workload:
        given = dict(zip(names, chosen, strict=True))
        try:
            return make(**given)
        except ConfigError as error:
            return RefusedCase(tuple(given.items()), str(error))

    return Grid(made, tuple(value if isinstance(value, list | tuple) else (value,) for value in values.values()))


class Point(NamedTuple):
    """One row of the table to be."""

    hardware: Hardware
    workload: Workload
    config: Config


@dataclass(frozen=True)
class Product:
    """Every workload with every kernel configuration on every GPU."""

    workloads: Grid[Workload] | Sequence[Workload]
    hardware: Grid[Hardware] | Sequence[Hardware] = (Hardware(),)
    configs: Grid[Config] | Sequence[Config] = (None,)

    @property
    def n_points(self) -> int:
        """How many."""
        return math.prod(each.n if isinstance(each, Grid) else len(each) for each in self._sides())

    def __iter__(self) -> Iterator[Point]:
        for hardware in self.hardware:
            for workload in self.workloads:
                for config in self.configs:
                    yield Point(hardware, workload, config)

    def _sides(self) -> tuple[Any, ...]:
        return self.hardware, self.workloads, self.configs


@dataclass(frozen=True)
class Sweep:
    """Products, one after another. A list of points is a product of each."""

    products: tuple[Product, ...]
    shown: tuple[str, ...] = ()
    """Columns of workloads and configurations that the table has, even where all points have the usual value."""

    @classmethod
    def of(cls, points: Iterable[Point]) -> Sweep:
        """These points, in their order."""
        return cls(tuple(Product((each.workload,), (each.hardware,), (each.config,)) for each in points))

    @property
    def n_points(self) -> int:
        """How many."""
        return sum(product.n_points for product in self.products)

    def __iter__(self) -> Iterator[Point]:
        return itertools.chain.from_iterable(self.products)


ALWAYS = {"gemm": ("m", "n", "k", "dtype"), "llm": ("model", "phase", "batch", "dtype")}
SIZES_OF = {
    "prefill": ("tokens",),
    "decode": ("context",),
    "generate": ("tokens", "new_tokens"),
    "training": ("tokens",),
}
"""Of a model's phase, the sizes that matter."""
PARTS_KEPT = 256
NOT_SIMULATED = ("trace", "quick", "inputs", "weights", "result")
"""Fields without a say in a sweep: where a GEMM's tensors start and end, as its kernels are simulated alone."""


@cache
def _defaults() -> dict[str, Any]:
    """{field: default} of what describes a workload or a configuration."""
    known: dict[str, Any] = {"family": None, "without": None}
    for kind in (KernelConfig, Gemm, Llm, Execution, Training, How, Options):
        for each in fields(kind):
            if each.default is not MISSING and not (kind is Gemm and each.name in NOT_SIMULATED):
                known.setdefault(each.name, each.default)
    return known


def described(workload: Workload) -> Labels:
    """Every field of a workload, defaults included."""
    if isinstance(workload, RefusedCase):
        return dict(workload.described)
    if isinstance(workload, GemmCase):
        return {**_fields(workload.gemm, NOT_SIMULATED), **_options(workload.options), "family": workload.family}
    llm = workload.request
    own = {name: getattr(llm, name) for name in ("phase", "batch", *SIZES_OF[llm.phase])}
    trained = _kept(llm.training) if llm.phase == "training" else {}
    return {
        "model": llm.model.name,
        **own,
        **_kept(llm.execution),
        **trained,
        **_kept(workload.how),
        **_options(workload.options),
    }


def configured(config: Config) -> Labels:
    """What a kernel configuration states; nothing where it is chosen."""
    if config is None:
        return {}
    return dict(config.fields) if isinstance(config, Parts) else _kept(config)


def telling(labels: Labels, shown: Container[str] = ()) -> Iterator[str]:
    """Names of those that a table has to show: what says which point it is, `shown`, and all that is not as usual."""
    always = (*ALWAYS["llm" if "model" in labels else "gemm"], *SIZES_OF.get(labels.get("phase", ""), ()))
    usual = _defaults()
    for name, value in labels.items():
        if name in always or name in shown or name not in usual or value != usual[name]:
            yield name


@lru_cache(maxsize=PARTS_KEPT)
def _options(options: Options) -> Labels:
    return _fields(options, NOT_SIMULATED) | {"without": ", ".join(sorted(options.without)) or None}


def _fields(of: Any, left_out: tuple[str, ...] = ()) -> Labels:
    kind: Any = type(of)
    return {name: getattr(of, name) for name in _names(kind, left_out)}


_kept = lru_cache(maxsize=PARTS_KEPT)(_fields)
"""Of what many points have in common; not to be changed."""


@cache
def _names(kind: type[Any], left_out: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind) if each.name not in left_out)
