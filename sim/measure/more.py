"""What older tables leave open: gemm_more, gemm_odd, gemm_short, gemm_again, gemm_spaced, gemm_fp64,
counters_more, counters_odd, counters_launch, counters_wide, tile_more, tile_choice, tile_again.

Layers of other models, to judge by; rows of A, B and C that start at every offset into a sector and a
line; products that get older kernels: fp32, and rows that TMA does not take; matrices read once at growing sizes;
kernels of a few microseconds; and gemm.csv again, and large GEMMs, with
launches that lie apart, so that the board's power limit does not reach into them as it does in a burst.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sim.measure import counters, gemm, shapes, tiles
from sim.measure.table import Case, Outcome, Row

LAYERS = {  # name: (n, k), as the models' published configurations give them
    "gemma2-9b.qkv": (8192, 3584), "gemma2-9b.o": (3584, 4096), "gemma2-9b.gate_up": (28672, 3584),
    "gemma2-9b.down": (3584, 14336), "gemma2-9b.lm_head": (256000, 3584),
    "phi3-mini.qkv": (9216, 3072), "phi3-mini.o": (3072, 3072), "phi3-mini.gate_up": (16384, 3072),
    "phi3-mini.down": (3072, 8192), "phi3-mini.lm_head": (32064, 3072),
    "llama2-13b.qkv": (15360, 5120), "llama2-13b.o": (5120, 5120), "llama2-13b.gate_up": (27648, 5120),
    "llama2-13b.down": (5120, 13824),
    "gpt2-xl.qkv": (4800, 1600), "gpt2-xl.fc1": (6400, 1600), "gpt2-xl.fc2": (1600, 6400),
    "llama3-70b.tp4.qkv": (2560, 8192), "llama3-70b.tp4.o": (8192, 2048), "llama3-70b.tp4.gate_up": (14336, 8192),
    "llama3-70b.tp4.down": (8192, 7168),
}  # fmt: skip
TOKENS = {"bf16": (1, 16, 48, 128, 384, 1024, 4096), "fp8": (16, 256, 2048)}
COUNTED = {"bf16": (128, 384), "tf32": (16, 256, 1024, 4096)}
"""Tokens at which layers are counted, in tf32 the first four."""
MOST_FLOP = 5e12
OFFSETS = (0, 8, 16, 32, 48, 64, 96)
"""Elements of bf16 by which a pitch exceeds a multiple of 256 B."""
STREAMED = {1024: 4096, 2048: 4096, 4096: 2048, 8192: 2048}
"""k: step of n."""
SHORT = [(m, n, k) for m in (8, 128) for n in (1024, 2048, 4096, 8192, 16384) for k in (64, 256, 512, 1024, 1536, 3072)]
"""m, n, k of kernels of a few microseconds: one round of tiles, one ring of stages or a little more."""
SPACED = (
    (2048, 8192, 28672), (1024, 57344, 8192), (2048, 57344, 8192), (4096, 4096, 11008), (512, 8192, 28672),
    (1024, 3584, 18944), (512, 128256, 4096), (2048, 49152, 12288), (8192, 8192, 8192), (10240, 10240, 10240),
    (16384, 16384, 16384), (4096, 12288, 4096), (4096, 8192, 1024), (4096, 28672, 4096), (8192, 37888, 3584),
)  # fmt: skip
FP64 = (
    *((side, side, side) for side in (512, 1024, 2048, 3072, 4096)), (64, 4096, 4096), (256, 8192, 2048),
    (1000, 3000, 5000), (4096, 4096, 256), (128, 16384, 1024), (2048, 512, 8192), (8192, 8192, 8192),
)  # fmt: skip
FEW_AND_MANY = (1, 2, 3, 4, 6, 8, 16, 24, 32, 64, 128, 256, 512, 1024, 3072)
"""Rows of activations; the fewest get kernels of their own where there is no tensor core or no TMA for them."""
OLD_KERNELS = {
    "fp32": ((4096, 4096), (11008, 4096), (1024, 8192), (768, 3072), (50257, 768), (2048, 512)),
    "bf16": ((4096, 4095), (1021, 4098), (12000, 1030), (50257, 768), (3001, 1500), (5000, 3001), (2047, 1023)),
}
"""Type: (n, k) of products that no TMA or tensor core takes."""
OTHER_OLD: tuple[tuple[dict[str, str], tuple[tuple[int, int], ...]], ...] = (
    ({"dtype": "fp16"}, ((4096, 4095), (3001, 1500))),
    ({"dtype": "tf32"}, ((4096, 4096), (3001, 1501))),
    *(({"layout": layout}, ((2047, 1023), (3001, 1500))) for layout in ("nn", "nt", "tt")),
)
FEW_ROWS, COUNTED_ROWS = (1, 2, 4, 16, 64, 512), (1, 4, 64)
PAUSE_S = 0.05
POOL = 2**29
"""Elements of 4 bytes that the pool of operands (timing.py) holds."""
REST = 12
AGAIN = 3
"""Rounds of gemm_again, odd."""
LAUNCHED = {
    "cluster_x": ("launch__cluster_dim_x", 1),
    "cluster_y": ("launch__cluster_dim_y", 1),
    "smem_dynamic": ("launch__shared_mem_per_block_dynamic", 1),
}
"""As counters.METRICS: what the launch asked for; 0 CTAs where it named no cluster. Bytes of shared memory a CTA."""
TILE_SHAPES = ((2048, 6144, 3072), (128, 8192, 8192))
TILE_STEP = 2
CHOSEN_SHAPES = ((8192, 1024, 4096), (256, 8192, 8192), (1024, 14336, 4096), (32, 12288, 4096), (6144, 3072, 1024))
"""m, n, k at which every tile is measured, to see how good a chosen one is."""


def pitches() -> list[shapes.Shape]:
    """Stores that outweigh the loads (k = 64) and loads that outweigh the stores, at every offset of their rows."""
    stores = [("pitch.store", m, n + d, 64) for m, n in ((8192, 2048), (2048, 8192)) for d in OFFSETS]
    plain = ((256, 4096, 4096), (1024, 1280, 8192), (128, 8192, 4096), (512, 1024, 2048))
    return stores + [("pitch.load", m, n, k + d) for m, n, k in plain for d in OFFSETS[:4]]


def streams() -> list[shapes.Shape]:
    """Weights that eight rows of activations read once."""
    return [
        (f"stream.k{k}", 8, n, k)
        for k, step in STREAMED.items()
        for n in range(step, (8 + 8 * (k < 8192)) * step, step)
    ]


def layers(dtype: str) -> list[shapes.Shape]:
    """Every layer at every number of tokens."""
    every = [(name, m, n, k) for name, (n, k) in LAYERS.items() for m in TOKENS[dtype]]
    return [shape for shape in every if shapes.flop(shape) < MOST_FLOP]


def _gemms(quick: bool) -> list[Case]:
    found = [gemm.case(shape, dtype=dtype) for dtype in TOKENS for shape in layers(dtype)]
    found += [gemm.case(shape) for shape in pitches() + streams()]
    return found[::16] if quick else found


def _short(quick: bool) -> list[Case]:
    found = [gemm.case((f"short.m{m}", m, n, k), l2=l2) for l2 in ("cold", "warm") for m, n, k in SHORT]
    return found[::16] if quick else found


def _odd(quick: bool) -> list[Case]:
    found = [
        gemm.case(("odd", m, n, k), dtype=dtype)
        for dtype, sides in OLD_KERNELS.items()
        for n, k in sides
        for m in FEW_AND_MANY
    ]
    found += [gemm.case(("odd", m, *s), **other) for other, sides in OTHER_OLD for s in sides for m in FEW_ROWS]
    return found[::24] if quick else found


def _counters_odd(quick: bool) -> list[Case]:
    found = [
        counters.case("cublas", m, n, k, t) for t, sides in OLD_KERNELS.items() for n, k in sides for m in (1, 4, 64)
    ]
    return found[::12] if quick else found


def _counters(quick: bool) -> list[Case]:
    rounds = [(m, 8192, k) for m in (2048, 4096) for k in (512, 1024, 2048)]
    found = [(m, n, k) for _, m, n, k in pitches() + streams()[::4]] + rounds
    found += [(m, n, k) for _, m, n, k in layers("bf16") if m in COUNTED["bf16"]]
    cases = [counters.case("cublas", *shape, "bf16") for shape in dict.fromkeys(found)]
    cases += [counters.case("cublas", m, n, k, "tf32") for m in COUNTED["tf32"] for n, k in list(LAYERS.values())[:4]]
    return cases[::16] if quick else cases


def _every_tile(quick: bool) -> list[Case]:
    found = [
        dict(zip("mnk", s, strict=True)) | t for s in CHOSEN_SHAPES for t in tiles.tiles() if tiles.worthwhile(s, t)
    ]
    return found[::48] if quick else found


def _tiles(quick: bool) -> list[Case]:
    every = [dict(zip("mnk", s, strict=True)) | t for s in TILE_SHAPES for t in tiles.tiles() if tiles.worthwhile(s, t)]
    return every[::TILE_STEP] if not quick else every[:: TILE_STEP * 12]


def _tile_again(quick: bool) -> list[Case]:
    return tiles.cases(False)[:: 48 if quick else 2]


def _launched(quick: bool) -> list[Case]:
    found = [case for case in gemm.cases(quick) if case["dtype"] == "tf32"]
    return [counters.case("cublas", case["m"], case["n"], case["k"], "tf32") for case in found]


def _wide(quick: bool) -> list[Case]:
    found = [counters.case("cublas", *shape, dtype) for dtype in ("fp64", "fp32") for shape in FP64]
    return found[::6] if quick else found


def _spaced(quick: bool) -> list[Case]:
    return [gemm.case(("spaced", *shape)) for shape in (SPACED[:2] if quick else SPACED)]


def _fp64(quick: bool) -> list[Case]:
    found = [gemm.case(("fp64", *shape), dtype="fp64") for shape in FP64]
    return found[::4] if quick else found


def _measure_spaced(batch: Sequence[Case]) -> list[Outcome]:
    return [*_apart(batch, [PAUSE_S] * len(batch))]


def _apart(batch: Sequence[Case], pauses_s: Sequence[float]) -> list[list[Row]]:
    """One burst of each case, with its pause before each launch."""
    from sim.measure.timing import time_calls

    calls = [partial(_after_a_pause, gemm.call(case), pause) for case, pause in zip(batch, pauses_s, strict=True)]
    timed = time_calls(calls, gemm.N_LONG_CALLS)
    return [[vars(t) | {"rest_ms": round(pause * 1e3, 3)}] for t, pause in zip(timed, pauses_s, strict=True)]


def _again(quick: bool) -> list[Case]:
    cases = gemm.cases(quick)
    shuffled = random.Random(5).sample(cases, len(cases))
    return [case for case in shuffled if case["dtype"] not in ("fp32", "tf32") or case["n"] * case["k"] <= POOL]


def _measure_again(batch: Sequence[Case]) -> list[Outcome]:
    """Each case AGAIN times, among others each time; of these the one with the median time."""
    found: list[list[list[Row]]] = [[] for _ in batch]
    for i in range(AGAIN):
        order = random.Random(i).sample(range(len(batch)), len(batch))
        cases = [batch[place] for place in order]
        for place, rows in zip(order, _apart(cases, [_rest_s(case) for case in cases]), strict=True):
            found[place].append(rows)
    return [sorted(rounds, key=lambda rows: float(rows[0]["time_us"]))[AGAIN // 2] for rounds in found]


def _rest_s(case: Case) -> float:
    """Pause before a launch: REST times what the kernel takes at 600 TFLOP/s, PAUSE_S at most."""
    return float(min(PAUSE_S, REST * 2 * case["m"] * case["n"] * case["k"] / 600e12))


def _after_a_pause(call: Callable[[int], Any], pause_s: float, i: int) -> Any:
    import torch

    torch.cuda.synchronize()
    time.sleep(pause_s)
    return call(i)


APART = replace(gemm.TABLE, columns=(*gemm.TABLE.columns, "rest_ms"))
TABLES = (
    replace(gemm.TABLE, name="gemm_more", about="as gemm: layers of other models, pitches, streams", cases=_gemms),
    replace(gemm.TABLE, name="gemm_odd", about="as gemm: fp32, and rows that TMA does not take", cases=_odd),
    replace(gemm.TABLE, name="gemm_short", about="as gemm: kernels of a few microseconds, cold and warm", cases=_short),
    replace(
        APART,
        name="gemm_again",
        about=f"as gemm: the same kernels, launches apart, the median of {AGAIN} rounds in other orders",
        cases=_again,
        measure=_measure_again,
        case_s=AGAIN * gemm.TABLE.case_s,
    ),
    replace(
        APART,
        name="gemm_spaced",
        about=f"as gemm: large GEMMs, {PAUSE_S * 1e3:.0f} ms between launches",
        cases=_spaced,
        measure=_measure_spaced,
        case_s=0.8,
    ),
    replace(
        APART,
        name="gemm_fp64",
        about=f"as gemm: double precision, {PAUSE_S * 1e3:.0f} ms between launches",
        cases=_fp64,
        measure=_measure_spaced,
        case_s=0.8,
    ),
    replace(counters.TABLE, name="counters_more", about="as counters: pitches, streams, short k", cases=_counters),
    replace(counters.TABLE, name="counters_odd", about="as counters: part of gemm_odd", cases=_counters_odd),
    replace(
        counters.TABLE,
        name="counters_launch",
        about="as counters: tf32 kernels of gemm, with the cluster and shared memory of their launches",
        columns=(*counters.COLUMNS, *LAUNCHED),
        cases=_launched,
        measure=partial(counters.measure, metrics=counters.METRICS | LAUNCHED),
    ),
    replace(counters.TABLE, name="counters_wide", about="as counters: shapes of gemm_fp64, fp64 and fp32", cases=_wide),
    replace(
        tiles.TABLE, name="tile_again", about="as tile_sweep: every second tile of today's cases", cases=_tile_again
    ),
    replace(tiles.TABLE, name="tile_more", about="as tile_sweep: two further shapes", cases=_tiles),
    replace(tiles.TABLE, name="tile_choice", about="as tile_sweep: every tile of five shapes", cases=_every_tile),
)
