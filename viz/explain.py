"""One tile's walk through the hierarchy, in plain words and with the times of this run.

The tile is the first that starts among the SMs traced. Its times are read from the spans; without spans the steps
are told without them. Whether a load hit L2 is not in a span: it is judged by latency, and said to be.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sim.result import SPAN_KINDS, KernelResult, Result
from viz import levels, words
from viz.timeline import first_tile
from workloads.dtypes import BYTES

if TYPE_CHECKING:
    from rich.console import Console

CHART_WIDTH, CHART_ITERATIONS = 60, 5
CHART_MARKS = {"start": "s", "load": "-", "wait": ".", "mma": "#"}
CHART_KEY = "s CTA starts   - load in flight   . waits for data\n# MMA          blank: barrier, issuing loads"
HIT_MARGIN = 1.5
"""A load this many times the latency of an L2 hit or less is told as a hit."""


@dataclass(frozen=True)
class Step:
    """One step of the walk: what moves, how many bytes, how long, and why it waits."""

    title: str
    text: str


@dataclass(frozen=True)
class Walk:
    """The tile followed, and its spans in order of start."""

    sm: int
    tile: int
    n_tiles_of_slot: int
    spans: npt.NDArray[np.void]

    def of(self, kind: str) -> npt.NDArray[np.void]:
        """Spans of one kind."""
        chosen: npt.NDArray[np.void] = self.spans[self.spans["kind"] == SPAN_KINDS.index(kind)]
        return chosen

    def durations_s(self, kind: str) -> npt.NDArray[np.float64]:
        """How long each span of a kind took."""
        chosen = self.of(kind)
        return np.asarray((chosen["end_fs"] - chosen["start_fs"]) / 1e15, dtype=np.float64)

    @property
    def begin_fs(self) -> int:
        """When the CTA began."""
        return int(self.spans["start_fs"].min())

    @property
    def n_prefetched(self) -> int:
        """Slices asked for before the first MMA began."""
        loads, mma = self.of("load"), self.of("mma")
        return int((loads["start_fs"] < mma["start_fs"].min()).sum()) if len(mma) else len(loads)


def walk(result: Result) -> Walk | None:
    """The tile to follow; None where the result was not traced."""
    spans = result.main.spans
    if spans is None or not len(spans):
        return None
    tile = first_tile(spans)
    slot = spans[(spans["sm"] == tile["sm"][0]) & (spans["slot"] == tile["slot"][0])]
    return Walk(int(tile["sm"][0]), int(tile["tile"][0]), len(np.unique(slot["tile"])), tile)


def explain(result: Result) -> list[str]:
    """The walk as paragraphs, each a numbered title and its text; one of them is a chart in plain characters."""
    return [f"{i}. {step.title}\n{step.text}" for i, step in enumerate(steps(result), start=1)]


def print_explanation(result: Result, console: Console) -> None:
    """The walk on a console, wrapped to at most 100 columns."""
    from rich.padding import Padding
    from rich.text import Text

    from viz.terminal import show

    show(console, Text(f"{levels.title(result)} on {result.gpu['label']}: one tile's journey", style="bold"))
    indent = 3 if console.width >= 80 else 0
    for i, step in enumerate(steps(result, min(CHART_WIDTH, console.width - indent - 9)), start=1):
        show(console, "", Text(f"{i}. {step.title}", style="bold"))
        is_chart = "\n" in step.text
        text = Text(step.text, no_wrap=is_chart, overflow="crop" if is_chart else "fold")
        show(console, Padding(text, (0, 0, 0, indent)))


def steps(result: Result, chart_width: int = CHART_WIDTH) -> tuple[Step, ...]:
    """All steps that this run has something to say about, in order; the chart is at most `chart_width` + 9 wide."""
    tile = walk(result)
    told = [_asked(result, tile), *_before(result), _cta(result, tile), _ring(result, tile)]
    if tile is not None and len(tile.of("mma")) and len(tile.of("load")):
        told += [
            _first_data(result, tile),
            _first_mma(result, tile),
            Step("The start, drawn", chart(tile, chart_width)),
        ]
        told += [_steady_state(result, tile)] if len(tile.of("mma")) > 2 else []
    told += [_epilogue(result, tile), *_after(result, tile), _sum(result, tile)]
    return tuple(told)


# The steps.
def _asked(result: Result, tile: Walk | None) -> Step:
    work, config = result.workload, result.main.config
    rows, columns = -(-work["m"] // config["block_m"]), -(-work["n"] // config["block_n"])
    split = config.get("split_k", 1)
    n_tiles = (
        f"{rows:,} × {columns:,} = {words.plural(rows * columns, 'tile')} of {config['block_m']} × {config['block_n']}"
    )
    extras = f", for each of {work['batch']} batches" if work["batch"] > 1 else ""
    extras += f", and the sum over k into {split} slices" if split > 1 else ""
    extras += ", the last of them cut along k wherever a CTA's share ends" if config.get("stream_k") else ""
    followed = f" We follow tile {tile.tile}." if tile is not None else " Run it traced to follow one with its times."
    operands = words.bytes_text(work["a_bytes"] + work["b_bytes"])
    text = (
        f"C[{work['m']}, {work['n']}] = A[{work['m']}, {work['k']}] B[{work['k']}, {work['n']}]: "
        f"{_flop_text(result.flops)} on {operands} of A and B, for {words.bytes_text(work['c_bytes'])} of C. "
        f"The kernel cuts C into {n_tiles}{extras}, {_handed_out(config)}.{followed}"
    )
    return Step("The task is cut into tiles", text + _format_text(result))


def _format_text(result: Result) -> str:
    """What weights that are not dense mean for the tensor cores."""
    form, dtype = levels.weights_format(result), result.workload["dtype"]
    if form == "dense":
        return ""
    if form == "2:4":
        return " Of every four weights along k two are kept, with two bits each that say which; MMAs skip the others."
    return f" Weights stay {form} as far as the registers, where CUDA cores make {dtype} of them before the MMAs."


def _handed_out(config: dict[str, Any]) -> str:
    if config["family"] == "persistent":
        return "handed one after another to CTAs that stay on their SMs"
    return "each the work of one CTA"


def _flop_text(flops: float) -> str:
    return words.flops_text(flops).removesuffix("/s")


def _before(result: Result) -> Iterator[Step]:
    pcie, hbm = levels.pcie_level(result), levels.peak_bytes_per_s(result, "hbm")
    if pcie.read.n_bytes:
        slower = f", {hbm / pcie.read.bytes_per_s:,.0f} times slower than HBM" if hbm else ""
        yield Step(
            "Host RAM to HBM",
            f"{words.bytes_text(pcie.read.n_bytes)} cross PCIe in {words.time_text(pcie.read.time_s)}, at "
            f"{words.rate_text(pcie.read.bytes_per_s)}{slower}. The kernel cannot start before its operands are there.",
        )
    launch = next((span for span in result.host_spans if span.lane == "host" and "launch" in span.name), None)
    kernel = next((span for span in result.host_spans if span.lane == "stream"), None)
    if launch is not None and kernel is not None:
        yield Step(
            "Launch",
            f"The host spends {words.time_text(launch.end_s - launch.start_s)} on putting the kernel into the stream; "
            f"the GPU starts it {words.time_text(kernel.start_s)} after the program began.",
        )


def _cta(result: Result, tile: Walk | None) -> Step:
    occupancy, config = result.main.occupancy, result.main.config
    where = f"The tile goes to SM {tile.sm}" if tile is not None else "Each tile goes to an SM"
    ctas, warps = words.plural(occupancy["ctas_per_sm"], "CTA"), words.plural(config["warps"], "warp")
    smem_kib = levels.gpu_value(result, "smem.kib_per_sm", 0)
    text = (
        f"{where} as a CTA of {warps}. It takes "
        f"{occupancy['smem_bytes_per_cta'] / 1024:.0f} of the SM's {smem_kib:g} KiB of shared memory and "
        f"{occupancy['registers_per_thread']} registers a thread, so that an SM holds {ctas} at "
        f"once, limited by {occupancy['limit']}."
    )
    cluster = config.get("cluster_m", 1), config.get("cluster_n", 1)
    if cluster != (1, 1):
        text += f" It is one of a cluster of {cluster[0]} × {cluster[1]} CTAs, which share what they load."
    if tile is not None and len(tile.of("start")):
        text += f" Starting takes {words.time_text(tile.durations_s('start')[0])}, in which nothing moves yet."
    return Step("A CTA starts", text)


def _ring(result: Result, tile: Walk | None) -> Step:
    config, stage = result.main.config, levels.slice_bytes(result)
    n_k = -(-result.workload["k"] // (config["block_k"] * config.get("split_k", 1)))
    n_kept = levels.stages_kept(result)
    kept = f", {n_kept} of them in shared memory" if n_kept < config["stages"] else f" in {_place(config)}"
    text = (
        f"One k-iteration needs {config['block_m']} × {config['block_k']} of A and {config['block_k']} × "
        f"{config['block_n']} of B, {_kept(config)} {stage / 1024:.0f} KiB, and there are {n_k:,} of them. "
        f"They pass through a ring of {words.plural(config['stages'], 'stage')}{kept}. "
    )
    if tile is not None and tile.n_prefetched:
        n = tile.n_prefetched
        text += (
            f"The CTA asks for the first {n} ({n * stage / 1024:.0f} KiB) before it computes anything: "
            "bytes in flight, not the speed of one load, are what hides latency."
        )
    return Step("The first loads are asked for", text)


def _kept(config: dict[str, Any]) -> str:
    """What of a slice the bytes named are: of what a pair of CTAs shares each keeps half."""
    return "of which this CTA keeps" if config.get("pair") else "together"


def _place(config: dict[str, Any]) -> str:
    """Where a slice of A and B waits to be multiplied."""
    return "registers" if config.get("loads") == "direct" else "shared memory"


def _first_data(result: Result, tile: Walk) -> Step:
    loads, waits = tile.durations_s("load"), tile.of("wait")
    hit_s = levels.gpu_value(result, "l2.latency_cycles", 0) / levels.clock_hz(result)
    hbm_s = levels.gpu_value(result, "hbm.latency_ns", 0) * 1e-9
    text = f"Slice 0 is complete in {_place(result.main.config)} {words.time_text(loads[0])} after it was asked for. "
    text += f"One line from L2 takes {words.time_text(hit_s)} on an idle GPU, and HBM adds {words.time_text(hbm_s)}. "
    text += _judged(loads[0], hit_s, hbm_s)
    if len(waits) and waits["k"][0] == 0:
        text += f" Until then the CTA has nothing to multiply: it waits {words.time_text(tile.durations_s('wait')[0])}."
    return Step("The first data arrive", text)


def _judged(load_s: float, hit_s: float, hbm_s: float) -> str:
    if load_s <= HIT_MARGIN * hit_s:
        return "By its latency it was a hit: a neighbour, or an earlier kernel, had brought the lines into L2."
    if load_s < hit_s + hbm_s:
        return "By its latency it was a hit that queued: L2 or the SM's port was busy with other CTAs."
    return (
        "By its latency it was a miss: L2 had to ask HBM, and a slice is complete only with the slowest of its lines, "
        "which queue behind those of every CTA that starts at the same moment."
    )


def _first_mma(result: Result, tile: Walk) -> Step:
    config = result.main.config
    flops = 2 * config["block_m"] * config["block_n"] * config["block_k"]
    took_s, begin_fs = float(tile.durations_s("mma")[0]), int(tile.of("mma")["start_fs"][0])
    rate = levels.flops_per_clk(result) * levels.instruction_fraction(result) * levels.clock_hz_at(result, begin_fs)
    text = (
        f"With slice 0 there, the {levels.unit(result)} multiply it: {_flop_text(flops)} in {words.time_text(took_s)}. "
    )
    if rate:
        best = "mma.sync's best rate" if levels.instruction_fraction(result) < 1.0 else "the SM's full rate"
        text += f"At {best} it would be {words.time_text(flops / rate)}"
        shared = result.main.waves * result.main.occupancy["ctas_per_sm"] > 1 < result.main.occupancy["ctas_per_sm"]
        others = "the SM's other CTAs use the same units, and " if shared else ""
        slow = took_s > 1.05 * flops / rate
        text += f"; {others}the pipeline has to drain before the result counts." if slow else "."
    if tile.n_prefetched < len(tile.of("load")):
        text += f" Its stage is then free, and the load of slice {tile.n_prefetched} can go out."
    return Step("The first MMA", text)


def _steady_state(result: Result, tile: Walk) -> Step:
    mma, later = tile.of("mma"), tile.spans[tile.spans["k"] > 0]
    n = len(mma) - 1
    period_s, mma_s, wait_s = (total / n / 1e15 for total in (np.ptp(mma["start_fs"]), *_totals_fs(later)))
    load_s, ahead_s = _load_and_lead_s(tile)
    text = (
        f"From then on every iteration is the same: wait for its slice, multiply, ask for another. It takes "
        f"{words.time_text(period_s)} (mean of {n:,}): {words.time_text(mma_s)} MMA, {words.time_text(wait_s)} "
        f"waiting, {words.time_text(max(period_s - mma_s - wait_s, 0.0))} barriers and issuing. A load takes "
        f"{words.time_text(load_s)} and is asked for {words.time_text(ahead_s)} before its slice is needed, "
    )
    text += "so it is hidden." if ahead_s >= load_s else "so part of it shows as waiting."
    waits = tile.of("wait")[tile.of("wait")["k"] > 0]
    if len(waits):
        longest = waits[np.argmax(waits["end_fs"] - waits["start_fs"])]
        took = words.time_text(int(longest["end_fs"] - longest["start_fs"]) / 1e15)
        text += f" The longest wait after the first was {took}, for slice {int(longest['k'])}."
    return Step("Steady state", text)


def _totals_fs(spans: npt.NDArray[np.void]) -> tuple[float, float]:
    """Time in MMAs, time in waits."""
    took, kinds = spans["end_fs"] - spans["start_fs"], spans["kind"]
    mma, wait = (float(took[kinds == SPAN_KINDS.index(kind)].sum()) for kind in ("mma", "wait"))
    return mma, wait


def _load_and_lead_s(tile: Walk) -> tuple[float, float]:
    """Mean time of a load after the first ones, and from asking for it until the consumer would use it."""
    needed = {int(span["k"]): int(span["start_fs"]) for kind in ("mma", "wait") for span in tile.of(kind)}
    loads = [load for load in tile.of("load") if load["k"] >= tile.n_prefetched and int(load["k"]) in needed]
    loads = loads or list(tile.of("load"))
    took = [int(load["end_fs"] - load["start_fs"]) for load in loads]
    lead = [needed.get(int(load["k"]), int(load["start_fs"])) - int(load["start_fs"]) for load in loads]
    return float(np.mean(took)) / 1e15, float(np.mean(lead)) / 1e15


def _epilogue(result: Result, tile: Walk | None) -> Step:
    work, config = result.workload, result.main.config
    elements, split = config["block_m"] * config["block_n"], config.get("split_k", 1) > 1
    stored_dtype = work["acc_dtype"] if split else work["out_dtype"]
    sums, stored = elements * BYTES[work["acc_dtype"]], elements * BYTES[stored_dtype]
    took = ""
    if tile is not None and len(tile.of("epilogue")):
        took = f" It takes {words.time_text(float(tile.durations_s('epilogue')[0]))}."
    left, all_stored = (words.bytes_text(levels.level_bytes(result, key)["write"]) for key in ("hbm", "sm"))
    where = "tensor memory" if config.get("mma") == "tcgen05" else "registers"
    become = f"{stored / 1024:.0f} KiB of {stored_dtype}{' partial sums' * split}"
    text = (
        f"The sums, {sums / 1024:.0f} KiB in {where}, become {become} and are stored to L2.{took} L2 keeps them and "
        f"writes them to HBM when it needs the room: of the {all_stored} stored by all CTAs, "
        f"{left} had gone to HBM when the kernel ended."
    )
    if config.get("stream_k"):
        text += " Of a tile that is cut, each part but the last leaves its sums in L2 as they are; the last adds those."
    return Step("Epilogue: the way back begins", text)


def _after(result: Result, tile: Walk | None) -> Iterator[Step]:
    if tile is not None:
        took = words.time_text((int(tile.spans["end_fs"].max()) - tile.begin_fs) / 1e15)
        more = words.plural(tile.n_tiles_of_slot - 1, "more tile") if tile.n_tiles_of_slot > 1 else "no further tile"
        text = (
            f"{took} after it began the tile is done, and its slot on SM {tile.sm} runs {more}. All tiles make "
            f"{words.three_digits(result.main.waves)} waves over the GPU's slots; {_tail(result.main)}"
        )
        yield Step("The next tile", text)
    reduction = [kernel for kernel in result.kernels if kernel is not result.main]
    for kernel in reduction:
        yield Step("Another kernel", f"The call also runs {kernel.name}, for {words.time_text(kernel.time_s)}.")
    pcie = levels.pcie_level(result)
    if pcie.write.n_bytes:
        n_bytes, time_s = words.bytes_text(pcie.write.n_bytes), words.time_text(pcie.write.time_s)
        yield Step("HBM to host RAM", f"C, {n_bytes}, goes back over PCIe in {time_s}.")


def _tail(main: KernelResult) -> str:
    waves = main.waves
    if main.config.get("stream_k") and waves >= 1:
        return "the last ones are cut along k, so that all slots have work."
    last = waves - np.ceil(waves) + 1.0
    if waves <= 1.0:
        return f"{words.percent_text(waves)} of the slots have work at all."
    return "the last is full." if last > 0.995 else f"in the last, {words.percent_text(last)} of the slots have work."


def _sum(result: Result, tile: Walk | None) -> Step:
    text = ""
    if tile is not None:
        whole_s = (int(tile.spans["end_fs"].max()) - tile.begin_fs) / 1e15
        shares = {
            name: float(tile.durations_s(kind).sum()) / whole_s
            for name, kind in (("computed", "mma"), ("waited for data", "wait"))
        }
        text = (
            "Of its time this tile "
            + " and ".join(f"{name} {words.percent_text(min(share, 1.0))}" for name, share in shares.items())
            + ". "
        )
    reasons = sorted(
        ((share, name) for name, share in result.main.waits.items() if name not in ("mma", "idle")), reverse=True
    )
    top = [
        f"{words.percent_text(share)} {_REASON_WORDS.get(name, name)}" for share, name in reasons[:2] if share >= 0.005
    ]
    text += f"Over all CTAs {words.percent_text(result.main.waits.get('mma', 0.0))} of slot time was computing"
    text += f", {' and '.join(top)}. " if top else ". "
    text += f"The limiter is {levels.limiter_text(result)}. {_sentences(result.evidence)}"
    return Step("What it adds up to", text.strip())


def _sentences(evidence: Iterable[str]) -> str:
    return " ".join(f"{line[:1].upper()}{line[1:].removesuffix('.')}." for line in evidence)


_REASON_WORDS = {
    "hbm": "waiting for HBM",
    "l2": "waiting for L2",
    "sm_port": "waiting for the SM's port",
    "barrier": "barriers",
    "issue": "issuing loads",
    "start": "starting CTAs",
    "epilogue": "the epilogue",
}


# The chart.
def chart(tile: Walk, width: int = CHART_WIDTH) -> str:
    """The first iterations in plain characters: one line a load, one line for the consumer."""
    spans = tile.spans[(tile.spans["k"] < CHART_ITERATIONS) & (tile.spans["kind"] != SPAN_KINDS.index("epilogue"))]
    end_fs = int(spans["end_fs"].max())
    scale = width / max(end_fs - tile.begin_fs, 1)
    lines = [f"{'':9}0{words.time_text((end_fs - tile.begin_fs) / 1e15):>{width - 1}}"]
    loads = spans[spans["kind"] == SPAN_KINDS.index("load")]
    for k in np.unique(loads["k"]):
        lines.append(f"load {k:<4}{_line(loads[loads['k'] == k], tile.begin_fs, scale, width)}")
    consumer = spans[spans["kind"] != SPAN_KINDS.index("load")]
    lines.append(f"consumer {_line(consumer, tile.begin_fs, scale, width)}")
    return "\n".join([*(line.rstrip() for line in lines), CHART_KEY])


def _line(spans: npt.NDArray[np.void], begin_fs: int, scale: float, width: int) -> str:
    marks: list[Any] = [" "] * width
    for span in spans:
        left = int((int(span["start_fs"]) - begin_fs) * scale)
        right = max(int((int(span["end_fs"]) - begin_fs) * scale), left + 1)
        marks[left:right] = CHART_MARKS[SPAN_KINDS[span["kind"]]] * (min(right, width) - left)
    return "".join(marks)
