"""hot.csv: kernels at the clock of a burst (cool) and at the one that GEMMs before them leave (hot)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from sim.measure.table import Case, Outcome, Row, Table

KEY = ("kind", "state")
KINDS = ("silu_strided", "silu", "mul_strided", "add", "rms_norm", "softmax", "softmax1024", "transpose", "flash",
         "flash_packed_q", "gemm2048", "gemm8192", "gelu")  # fmt: skip
N_CALLS = 10
GEMM = 8192
WARM_UP, BETWEEN = 300, 12
"""GEMMs before the first kernel and before each other: 0.5 s, and 20 ms."""
PAUSE_S = 0.02
"""Before each cool kernel."""


def cases(quick: bool) -> list[Case]:
    """Every kind in both states."""
    found: list[Case] = [{"kind": kind, "state": state} for kind in KINDS for state in ("cool", "hot")]
    return found[:4] if quick else found


def measure(batch: Sequence[Case]) -> list[Outcome]:
    """`N_CALLS` times of each kernel, and of the GEMM before a hot one (rows "mm_before_" and its kind)."""
    return [_measured(**case) for case in batch]


def _measured(kind: str, state: str) -> list[Row]:
    from sim.measure.timing import bursts, pool

    operand, call = pool("bf16").take(GEMM, GEMM), _call(kind)

    def behind(n_gemms: int) -> None:
        for _ in range(n_gemms):
            operand.mm(operand)
        call()
        call()

    def rested(_: int) -> None:
        time.sleep(PAUSE_S)
        behind(0)

    def loaded(i: int, n_gemms: int = BETWEEN) -> None:
        behind(n_gemms)

    later = [loaded if state == "hot" else rested] * (N_CALLS - 1)
    first = partial(loaded, n_gemms=WARM_UP) if state == "hot" else rested
    found: list[Row] = []
    for i, (events, mhz) in enumerate(bursts([first, *later])):
        found.append({"i": i, "us": round(events[-1]["dur"], 2), "mhz": mhz})
        if state == "hot":
            found.append({"kind": f"mm_before_{kind}", "i": i, "us": round(events[-3]["dur"], 2), "mhz": ""})
    return found


def _call(kind: str) -> Callable[[], Any]:
    """The second of two calls counts: weights and small inputs are in L2, larger ones are not."""
    import torch
    from torch.nn import functional
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from sim.measure.timing import pool

    take = pool("bf16").take
    if kind.startswith("flash"):
        q, k, v = (take(1, 32, 8192, 128) for _ in range(3))
        if kind == "flash_packed_q":
            q = take(1, 8192, 12288)[..., :4096].view(1, 8192, 32, 128).transpose(1, 2)

        def attention() -> Any:
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

        return attention
    gate, up = take(8192, 22016).chunk(2, -1)
    wide, x, y, narrow, few = (
        take(*shape) for shape in ((8192, 11008), *((8192, 4096),) * 2, (8192, 1024), (2048, 4096))
    )
    square, scale = take(4096, 4096), torch.ones(4096, device="cuda", dtype=x.dtype)
    calls: dict[str, Callable[[], Any]] = {
        "silu_strided": lambda: functional.silu(gate),
        "silu": lambda: functional.silu(wide),
        "mul_strided": lambda: wide * up,
        "add": lambda: x + y,
        "rms_norm": lambda: functional.rms_norm(x, (4096,), scale, 1e-5),
        "softmax": lambda: functional.softmax(x, -1),
        "softmax1024": lambda: functional.softmax(narrow, -1),
        "transpose": lambda: x.t().contiguous(),
        "gemm2048": lambda: few @ square,
        "gemm8192": lambda: x @ square,
        "gelu": lambda: functional.gelu(wide),
    }
    return calls[kind]


TABLE = Table(
    "hot",
    "kernels after a pause (cool) and behind 20 ms of 8192^3 GEMMs (hot), and the last of these GEMMs",
    (*KEY, "i", "us", "mhz"),
    (),
    cases,
    measure,
    batch=1,
    case_s=2.0,
)
