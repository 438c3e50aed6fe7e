"""What studies run: single operations, short programs of them, and whole models, at a burst's clock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hwmodels.spec import Gpu
from sim.call import Options
from sim.llm import How, LlmResult, simulate_llm
from sim.operation import Kernels, kernels_on
from sim.step import StepResult, run_step
from workloads.execution import Execution
from workloads.llm import Llm
from workloads.models.catalog import load_model
from workloads.models.model import Model
from workloads.operations import Operation, Step, Tensor, Work

FLASH_CAPABILITY = 8.0
"""FlashAttention's kernels need this compute capability."""
QUICK = Options(quick=True)


def kernels(gpu: Gpu, attention: str = "flash", tile: str = "library") -> Kernels:
    """The kernels of a GPU."""
    return kernels_on(gpu, QUICK, attention, tile)


def time_s(gpu: Gpu, work: Work, attention: str = "flash", tile: str = "library") -> float:
    """Seconds of one operation's kernels, its operands in HBM."""
    return sum(kernel.time_s for kernel in kernels(gpu, attention, tile).of(work))


def hbm_bytes(gpu: Gpu, work: Work, attention: str = "flash") -> int:
    """Bytes of HBM that one operation's kernels move, both ways."""
    return sum(sum(kernel.bytes["hbm"].values()) for kernel in kernels(gpu, attention).of(work))


def dtype_of(gpu: Gpu) -> str:
    """The 2-byte type that models run in: fp16 where tensor cores know no bf16."""
    return "bf16" if gpu.tensor.bf16_flops_per_clk_per_sm else "fp16"


def program(*works: tuple[str, Work, tuple[tuple[str, str, int], ...], tuple[str, int]]) -> Step:
    """A step of operations: each a name, its work, its operands (role, tensor, bytes), and its result (tensor, bytes).
    Tensors that nothing wrote before are weights."""
    tensors: dict[str, Tensor] = {}
    operations = []
    for name, work, reads, (to, n_bytes) in works:
        for _, tensor, size in reads:
            tensors.setdefault(tensor, Tensor(tensor, size, "weight"))
        tensors.setdefault(to, Tensor(to, n_bytes, "activation"))
        operations.append(Operation(name, work, tuple((role, tensor) for role, tensor, _ in reads), (to,)))
    return Step("study", tuple(operations), tensors)


def run(gpu: Gpu, step: Step, launch: str = "graph", known: Kernels | None = None) -> StepResult:
    """A step as it runs, with what kernels leave each other in L2."""
    return run_step(step, gpu, QUICK, launch=launch, kernels=known)


def model(name: str, layers: int | None = None) -> Model:
    """A built-in model, or its first layers."""
    return load_model(name if layers is None else f"{name}-{layers}layers")


def llm(
    gpu: Gpu, name: str, phase: str, batch: int, tokens: int, how: How | None = None, **execution: Any
) -> LlmResult:
    """A phase of a model: a prefill of `tokens`, or a decode step behind so many; with PyTorch's "math" attention where
    FlashAttention does not run."""
    execution.setdefault("dtype", dtype_of(gpu))
    how = how or How(launch="graph")
    if float(gpu.compute_capability) < FLASH_CAPABILITY:
        how = replace(how, attention="math")
    request = Llm(load_model(name), phase, batch, tokens, tokens, execution=Execution(**execution))
    return simulate_llm(request, gpu, how=how)


def step_hbm_bytes(step: StepResult) -> int:
    """Bytes of HBM that a step's kernels move, both ways."""
    return sum(sum(kernel.bytes["hbm"].values()) for each in step.ran for kernel in each.kernels)
