"""decoder_stack.csv and decoder_stack_kernels.csv: whole steps of a model, and the kernels of a step one by one.

A step is the measured program (PROTOCOL.md) in one graph, replayed often enough for the board's power to settle. The
kernels of a step are those that were launched, by their names; in a whole step the library's choice is predicted.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from hwmodels.errors import ConfigError
from sim.validation.columns import parse_choice, parse_count, parse_whole
from sim.validation.timed import TimedTable
from workloads.execution import Execution
from workloads.forward import decode, prefill
from workloads.gemm import Gemm
from workloads.models.catalog import load_model
from workloads.operations import Operation, Step
from workloads.stream import Stream

if TYPE_CHECKING:
    from hwmodels.spec import Gpu
    from sim.step import StepResult

PHASES = ("prefill", "decode")
MEASURED = Execution("measured")
Cells = dict[str, Any]
Named = tuple[tuple[int, str, str, str], ...]
"""Places of products in a step, with the name, grid and block of the kernel that ran."""
CHOICE = "library_but_itself"
"""Kernels of whole steps are chosen from what a library launched for other shapes than their own."""
REPLAYS_BEFORE = 7
"""Steps before the median one of eight timed: two to warm up, one captured (not run), a first replay, and four."""


@dataclass(frozen=True)
class StackCase:
    """One step of a measured stack."""

    model: str
    phase: str
    batch: int
    seq: int
    ctx: int

    def __str__(self) -> str:
        tokens = f"{self.batch} x {self.seq}" if self.phase == "prefill" else f"{self.batch} behind {self.ctx}"
        return f"{self.model} {self.phase} {tokens}"


@lru_cache(maxsize=256)
def step_of(case: StackCase) -> Step:
    """The operations that ran: of any length, without sliding windows. Raises ConfigError for what no model has."""
    model = dataclasses.replace(load_model(case.model), max_context=2**24, window=None, window_layers=None)
    if case.phase == "prefill":
        return prefill(model, MEASURED, case.batch, case.seq)
    return decode(model, MEASURED, case.batch, case.ctx, case.seq)


def _case(cells: Cells) -> StackCase:
    case = StackCase(cells["model"], cells["phase"], cells["batch"], cells["seq"], cells["ctx"])
    n_layers, wanted = load_model(case.model).n_layers, cells.get("layers")
    if wanted is not None and wanted != n_layers:
        raise ConfigError(f"layers = {wanted}: must be {n_layers}, as model = {case.model} has")
    step_of(case)
    return case


# Whole steps.
@lru_cache(maxsize=64)
def ran_step(case: StackCase, gpu: Gpu, named: Named = ()) -> StepResult:
    """The step, with the kernels that `named` names and a library's for other products."""
    from sim.call import Options
    from sim.operation import Kernels
    from sim.step import burst_options, run_step

    def run(options: Options) -> StepResult:
        kernels = Kernels(gpu, burst_options(options), tile=CHOICE)
        for place, name, grid, block in named:
            product = step_of(case).operations[place].work
            kernels.choose(cast(Gemm, product), _named_config(name, grid, block, product))
        return run_step(step_of(case), gpu, options, kernels=kernels if named else None, tile=CHOICE)

    burst = run(Options())
    return burst if REPLAYS_BEFORE * burst.wall_s * 1e3 < gpu.activity.sustain_ms else run(Options(sustained=True))


def _predict_step(case: StackCase, gpu: Gpu) -> dict[str, float]:
    return {"time_us": ran_step(case, gpu).wall_s * 1e6}


def _step_groups(case: StackCase, column: str) -> tuple[str, ...]:
    return case.phase, case.model, f"{case.model} {case.phase}"


def _step_work(case: StackCase, column: str) -> tuple[float, float]:
    step = step_of(case)
    return float(step.flops), float(sum(operation.work.compulsory_bytes for operation in step.operations))


STEPS = TimedTable(
    kind="decoder_stack",
    signature=("model", "layers", "phase", "ctx", "launches"),
    inputs={
        "model": str,
        "layers": parse_count,
        "phase": parse_choice(PHASES),
        "batch": parse_count,
        "seq": parse_count,
        "ctx": parse_whole,
    },
    optional={},
    measured=("time_us",),
    question=_case,
    predict=_predict_step,
    groups=_step_groups,
    work=_step_work,
    shape=lambda case: str(case.model),
)


# Single kernels.
@dataclass(frozen=True)
class StackKernel:
    """One kernel of a step: the operation (by its place) that launched it, and which of its kernels it is."""

    case: StackCase
    place: int
    part: str
    """ "main", "memset", "split-K reduction" or "combine"."""
    kind: str
    kernel: str
    """Name of the main kernel: of a reduction, the product's."""
    grid: str
    block: str
    products: Named = ()
    """Of the step: what kernels of products leave in L2 depends on their waves."""

    def __str__(self) -> str:
        return f"{self.case}: {self.kind}, {self.kernel[:60]}"


BESIDE = {"memset": "Memset", "split-K reduction": "splitKreduce", "combine": "splitkv_combine"}
"""Kernels that go with another one, and what their names hold: a memset with the product behind it, others with the
one before."""
KINDS: tuple[tuple[str, str], ...] = (
    ("flash attention", "flash_fwd"),
    ("norm", "layer_norm_kernel"),
    ("residual add", "CUDAFunctor_add"),
    ("silu", "silu_kernel"),
    ("multiply", "BinaryFunctor"),
    ("cache copy", "direct_copy_kernel"),
    ("embedding", "gather_kernel"),
    ("embedding", "indexSelect"),
)
"""Kind of kernel, and the part of its name that tells; others are products."""
STREAMS = {"norm": "rms_norm", "residual add": "add", "silu": "silu", "multiply": "mul", "cache copy": "copy",
           "embedding": "embedding"}  # fmt: skip


def _kind(name: str) -> str:
    return next((kind for kind, part in KINDS if part in name), "product")


def _is_of(operation: Operation, kind: str) -> bool:
    work = operation.work
    if isinstance(work, Stream):
        return STREAMS.get(kind) == work.op
    return kind == ("product" if isinstance(work, Gemm) else "flash attention")


def _together(rows: list[Cells]) -> list[Any]:
    """Each row's place in its step, from the order of all."""
    cases: dict[tuple[Any, ...], list[int]] = {}
    for i, cells in enumerate(rows):
        cases.setdefault(tuple(cells[name] for name in ("model", "phase", "batch", "seq", "ctx")), []).append(i)
    found: dict[int, Any] = {}
    for places in cases.values():
        try:
            case = _case(rows[places[0]])
            for i, question in zip(places, _aligned(case, [rows[i] for i in places]), strict=True):
                found[i] = question
        except ConfigError as error:
            found.update(dict.fromkeys(places, error))
    return [found[i] for i in range(len(rows))]


N_LAST = 3
"""Rows at the end of a case that are the last kernels of the step."""


def _aligned(case: StackCase, rows: Sequence[Cells]) -> Iterator[StackKernel | ConfigError]:
    """The first rows follow the step's operations from its start, the last ones from its end."""
    operations = step_of(case).operations
    ends = list(_walk(case, rows[:-N_LAST], list(enumerate(operations)), 1))
    last = list(_walk(case, rows[-N_LAST:][::-1], list(enumerate(operations))[::-1], -1))[::-1]
    products = tuple(_products([*ends, *last]))
    for each in (*ends, *last):
        yield each if isinstance(each, ConfigError) else dataclasses.replace(each, products=products)


def _products(kernels: Sequence[StackKernel | ConfigError]) -> Iterator[tuple[int, str, str, str]]:
    for each in kernels:
        if not isinstance(each, ConfigError) and (each.kind, each.part) == ("product", "main"):
            with contextlib.suppress(ConfigError):  # such a row is refused by itself
                _named_config(each.kernel, each.grid, each.block, step_of(each.case).operations[each.place].work)
                yield each.place, each.kernel, each.grid, each.block


def _walk(
    case: StackCase, rows: Sequence[Cells], operations: list[tuple[int, Operation]], direction: int
) -> Iterator[StackKernel | ConfigError]:
    """Pair kernels with operations; those beside a product go with the one before (a reduction) or behind (memset)."""
    at, product = -1, rows[0] if rows else {}
    for cells in rows:
        name = cells["kernel"]
        part = next((part for part, word in BESIDE.items() if word in name), "main")
        kind = part if part != "main" else _kind(name)
        if part == "main":
            at = _next(operations, at + 1, kind)
            product = cells if kind == "product" else product
        ahead = part == "memset" and direction > 0
        place = _next(operations, at + 1, "product") if ahead else at
        if not 0 <= place < len(operations):
            yield ConfigError(f"kernel = {name[:60]!r}: no operation of the step launches it there")
            continue
        main = product if part == "split-K reduction" else cells
        launch = main.get("grid", ""), main.get("block", "")
        yield StackKernel(case, operations[place][0], part, kind, main["kernel"], *launch)


def _next(operations: Sequence[tuple[int, Operation]], start: int, kind: str) -> int:
    """Place of the next operation of a kind; behind the last where there is none."""
    later = (i for i in range(start, len(operations)) if _is_of(operations[i][1], kind))
    return next(later, len(operations))


def _predict_kernel(asked: StackKernel, gpu: Gpu) -> dict[str, float]:
    """The kernel's time where the step ran: behind the operations before it, at the clock that the load leaves."""
    if asked.part == "memset":
        return {"time_us": gpu.persistent.memset_us}
    if asked.kind in ("product", "split-K reduction"):  # raises for a name that is not known
        _named_config(asked.kernel, asked.grid, asked.block, step_of(asked.case).operations[asked.place].work)
    result = ran_step(asked.case, gpu, asked.products)
    return {"time_us": 1e6 * _part(asked, result.ran[asked.place].kernels)}


def _named_config(name: str, grid: str, block: str, gemm: Any) -> Any:
    from sim.schedule.names import parse_kernel_name

    return parse_kernel_name(name, gemm, grid=grid or None, block=block or None)


def _part(asked: StackKernel, kernels: Sequence[Any]) -> float:
    if asked.part == "main":
        return float(max(kernel.time_s for kernel in kernels if kernel.name != "combine"))
    if len(kernels) < 2:
        raise ConfigError(f"kernel = {asked.kernel[:60]!r}: has no {asked.part} behind it")
    return float(kernels[-1].time_s)


def _kernel_groups(asked: StackKernel, column: str) -> tuple[str, ...]:
    return asked.kind, f"{asked.kind} {asked.case.model}", f"{asked.kind} {asked.case.phase}"


def _kernel_work(asked: StackKernel, column: str) -> tuple[float, float]:
    work = step_of(asked.case).operations[asked.place].work
    return float(work.flops), float(work.compulsory_bytes)


_text: Callable[[str], str] = str
KERNELS = TimedTable(
    kind="decoder_stack_kernels",
    signature=("model", "phase", "ctx", "index", "kernel"),
    inputs={
        "model": _text,
        "phase": parse_choice(PHASES),
        "batch": parse_count,
        "seq": parse_count,
        "ctx": parse_whole,
        "index": parse_whole,
        "kernel": _text,
    },
    optional={"grid": _text, "block": _text},
    measured=("time_us",),
    question=_case,
    predict=_predict_kernel,
    groups=_kernel_groups,
    work=_kernel_work,
    shape=lambda asked: str(asked.case.model),
    together=_together,
)
TABLES = (STEPS, KERNELS)
