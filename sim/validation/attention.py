"""Tables of attention calls: PyTorch's on the H200, and a public one of three GPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sim.validation.columns import CellError, parse_choice, parse_count, parse_whole
from sim.validation.timed import TimedTable, held_out
from workloads.attention import Attention

if TYPE_CHECKING:
    from hwmodels.spec import Gpu

BACKENDS = ("flash", "cudnn", "math")
SIZES = ("batch", "heads", "kv_heads", "head_dim", "q_len", "kv_len")
CALLS_BEFORE = 6
"""Calls before the median one: the two dropped and half of the others, of a burst of 10 (sim/measure/attention.py)."""
SHORT_TOKENS = 512


@dataclass(frozen=True)
class Asked:
    """One call: the operation, the backend, and how it was launched."""

    work: Attention
    backend: str
    in_graph: bool = False
    """Replayed in a graph on the same operands: a gap from kernel to kernel is part of the time."""

    def __str__(self) -> str:
        w = self.work
        return f"{self.backend} {w.batch}x{w.heads}/{w.kv_heads}x{w.head_dim} {w.q_len} on {w.kv_len}" + (
            f" window {w.window}" if w.window else " causal" if w.causal else ""
        )


def parse_truth(text: str) -> bool:
    """ "True" or "1", "False" or "0"."""
    values = {"true": True, "1": True, "false": False, "0": False}
    if text.strip().lower() not in values:
        raise CellError("must be True or False")
    return values[text.strip().lower()]


def parse_text(text: str) -> str:
    """Any text."""
    return text.strip()


def _work(cells: dict[str, Any]) -> Attention:
    phase = "backward" if "_bwd_" in cells.get("kernel", "") else "forward"
    window = cells.get("window") or None  # which hides what lies ahead of a query, as the causal mask does
    sizes = {name: cells[name] for name in SIZES}
    return Attention(**sizes, causal=cells["causal"] or window is not None, window=window, phase=phase)


def _question(cells: dict[str, Any]) -> Asked:
    return Asked(_work(cells), cells["backend"])


def _public_question(cells: dict[str, Any]) -> Asked:
    return Asked(_work(cells), "flash", in_graph=True)


def _predict(asked: Asked, gpu: Gpu) -> dict[str, float]:
    """Sum of the call's kernels, and for graphs the gaps before them; long bursts at the clock they settle at."""
    from sim.attention import attention_kernels
    from sim.call import Options

    def seconds(sustained: bool) -> float:
        options = Options(sustained=sustained)
        again = asked.in_graph and phase(asked.work) == "decode"  # the cache of the replay before
        resident = dict.fromkeys("kv", 1.0) if again else {}
        kernels = attention_kernels(asked.work, gpu, options, backend=backend_on(asked, gpu), resident=resident)
        return sum(kernel.time_s for kernel in kernels) + asked.in_graph * len(kernels) * gpu.launch.graph_us * 1e-6

    time_s = seconds(sustained=False)
    if CALLS_BEFORE * time_s * 1e3 > gpu.activity.sustain_ms:
        time_s = seconds(sustained=True)
    return {"time_us": time_s * 1e6}


def backend_on(asked: Asked, gpu: Gpu) -> str:
    """The backend to predict by. The public table's engines take FlashAttention-3 on Hopper, FlashAttention-2 else."""
    return "flash3" if asked.in_graph and gpu.tensor.wgmma else asked.backend


def phase(work: Attention) -> str:
    """What is asked: "backward", "decode" for one query a sequence, else "prefill"."""
    if work.phase == "backward":
        return work.phase
    return "decode" if work.q_len == 1 else "prefill"


def shape_name(asked: Asked) -> str:
    """Heads, width and lengths: what fits are split by, whatever batch and mask."""
    return "x".join(str(getattr(asked.work, name)) for name in SIZES[1:])


def _groups(asked: Asked, column: str) -> tuple[str, ...]:
    work, base = asked.work, f"{asked.backend} {phase(asked.work)}"
    names = [base]
    if held_out(shape_name(asked)):
        names += [f"{base}, shapes not fitted", "shapes not fitted"]
    names.append(f"{phase(work)}, head_dim {work.head_dim}")
    names.append("grouped heads" if work.group > 1 else "heads of their own")
    if max(work.q_len, work.kv_len) <= SHORT_TOKENS:
        names.append(f"up to {SHORT_TOKENS} tokens")
    if work.window:
        names.append(f"{base}, window")
    mask = " causal" if work.causal else ""
    return (*names, f"{base} {work.heads}/{work.kv_heads}x{work.head_dim}{mask}")


def _work_of(asked: Asked, column: str) -> tuple[float, float]:
    return float(asked.work.flops), float(asked.work.compulsory_bytes)


def _table(
    kind: str, inputs: dict[str, Callable[[str], Any]], question: Callable[[dict[str, Any]], Asked]
) -> TimedTable:
    sizes: dict[str, Callable[[str], Any]] = dict.fromkeys(SIZES, parse_count)
    return TimedTable(
        kind=kind,
        signature=(*inputs, "kv_heads", "q_len", "kv_len", "time_us"),
        inputs={**inputs, **sizes, "causal": parse_truth},
        optional={"kernel": parse_text, "window": parse_whole},
        measured=("time_us",),
        question=question,
        predict=_predict,
        groups=_groups,
        work=_work_of,
        shape=shape_name,
    )


TABLES = (
    _table("attention", {"backend": parse_choice(BACKENDS)}, _question),
    _table("public_attention", {"gpu": parse_text, "op": parse_text}, _public_question),
)
