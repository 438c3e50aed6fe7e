"""What `tilewalk llm` prints: one screen that tells the story, one line, or the JSON object."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sim.limiter import limiter_code, limiter_words
from sim.llm import SCHEMA, LlmResult, Share
from sim.step import Ran, StepResult, peak_flops_per_s
from viz import words
from viz.llm import facts
from viz.terminal import NARROW, bar, gpu_notes, grid, show
from workloads.experts import active
from workloads.gemm import Gemm
from workloads.models.counts import active_parameters, parameters

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

MAX_OPERATIONS, LEAST_OPERATIONS, MAX_LIMITERS = 12, 8, 5
"""Lines of the tables: operations make room for what else is told."""
SMALLEST_PART = 0.002
"""Of all at the peak: parts of the memory plan below it are summed up."""
LAUNCH_BOUND = 0.1
"""Share of a step between kernels from which it is called launch-bound."""


def print_llm(
    result: LlmResult, console: Console, price_per_hour: float | None = None, notes: Sequence[str] = ()
) -> None:
    """One screen: at most 40 lines at 100 columns. `notes`: what else is to be said of it."""
    blank, width = "", console.width
    show(console, *_headline(result, price_per_hour), blank, _operations(result, width), blank)
    show(console, _limiters(result, width), blank, _facts(result, width, notes))


# Headline.
def _headline(result: LlmResult, price: float | None) -> list[RenderableType]:
    from rich.text import Text

    request = result.request
    name, phase = request.model.name, facts.phase_text(result)
    first = Text.assemble((f"{name}, {phase}", "bold"), f" in {request.execution.dtype} on {result.gpu['label']}")
    return [
        first,
        Text(f"{_size(result)}; {facts.program_text(result)}", style="dim"),
        Text(_times(result), style="bold"),
        *([Text(_first_token(result.prefill))] if result.prefill else []),
        Text(_rates(result)),
        Text(_costs(result, price)),
        *map(Text, _for_long(result, price)),
        *([Text(f"Below: {facts.shown_text(result)}", style="dim")] if request.phase == "generate" else []),
    ]


def _size(result: LlmResult) -> str:
    model, weights = result.request.model, result.memory.largest("weights")
    total, active = parameters(model).total, active_parameters(model)
    of = f" ({words.count_text(active)} for a token)" if active != total else ""
    return f"{words.count_text(total)} parameters{of}, {words.bytes_text(weights)} of weights"


def _times(result: LlmResult) -> str:
    """The times that matter of this phase, and tokens a second."""
    time, first = words.time_text(result.time_s), result.time_to_first_token_s
    rate = f"{words.three_digits(result.tokens_per_s)} tokens/s"
    if result.request.phase == "generate" and first is not None:
        then = f", then {words.time_text(result.time_per_token_s)} a token" if result.step_times_s else ""
        return f"{time} · first token after {words.time_text(first)}{then} · {rate}"
    if result.request.phase == "prefill":
        return f"{time} {'a pass' if result.request.model.encoder_only else 'to the first token'} · {rate} read"
    if result.request.phase == "training":
        return f"{time} a step · {rate}"
    each = f", {words.three_digits(1.0 / result.time_s)} of each sequence" if result.request.batch > 1 else ""
    return f"{time} a step and token · {rate}{each}"


def _first_token(prefill: LlmResult) -> str:
    """Of a decode step; said to be of a burst where the board does not hold the prefill's power for long."""
    burst = f" in a burst of {words.power_text(prefill.power_w)}" if prefill.is_burst else ""
    text = f"First token after {words.time_text(prefill.time_s)}{burst}"
    return f"{text}: a {facts.phase_text(prefill)}, simulated as well"


def _rates(result: LlmResult) -> str:
    """How far the shown step uses what the GPU has."""
    step = result.shown
    peak = peak_flops_per_s(step.gpu, step.step)
    bandwidth = words.rate_text(step.gpu.hbm.bandwidth_gb_per_s * 1e9)
    used = f"{words.percent_text(step.model_flops_utilisation)} of {words.flops_text(peak)}"
    return f"Model FLOPs {used} · HBM bandwidth {words.percent_text(step.bandwidth_utilisation)} of {bandwidth}"


def _costs(result: LlmResult, price: float | None) -> str:
    """Energy of the phase, and what its tokens cost; where a burst goes on, that is told by `_for_long`."""
    power = words.power_text(result.power_w, result.held_w if result.is_burst else None)
    each = words.energy_text(result.energy_j / result.tokens)
    text = f"{words.energy_text(result.energy_j)}, {power}, {each} a token"
    if price is None or result.steady:
        return text
    cost = words.three_digits(result.cost_per_million_tokens(price))
    return f"{text} · {cost} for a million tokens at {price:,g} an hour"


def _for_long(result: LlmResult, price: float | None) -> list[str]:
    """What a burst becomes when it goes on."""
    steady = result.steady
    return [f"Under long load {words.time_text(steady.time_s)}: {_costs(steady, price)}"] if steady else []


# Where the time goes.
def _operations(result: LlmResult, width: int) -> Table:
    """Operations of the shown step, longest first, and what lies between kernels."""
    step, narrow = result.shown, width < NARROW
    heads = ["Operation", "Time", "Share", "Kernels"]
    heads += ["HBM bytes"] if narrow else ["FLOPs", "HBM bytes", "Limited by"]
    table = grid(*((head, "left" if head in (heads[0], "Limited by") else "right") for head in heads))
    for share, limiter in _folded(result):
        row = [share.name, words.time_text(share.time_s), words.percent_text(share.time_s / step.wall_s)]
        row += [f"{share.n_kernels:,}" if share.n_kernels else ""]
        moved = words.bytes_text(share.hbm_bytes) if share.hbm_bytes else ""
        flops = words.work_text(share.flops) if share.flops else ""
        row += [moved] if narrow else [flops, moved, limiter]
        table.add_row(*row)
    return table


def _folded(result: LlmResult) -> list[tuple[Share, str]]:
    """The longest operations with their main limiter, the rest as one, and the idle time."""
    shares, by_name = result.by_operation(), facts.by_name(result.shown)
    n_shown = max(LEAST_OPERATIONS, MAX_OPERATIONS - _n_more_lines(result))
    shown = [(share, main_limiter(by_name[share.name])) for share in shares[:n_shown]]
    rest = shares[n_shown:]
    if rest:
        shown.append((_sum(f"{len(rest)} more", rest), ""))
    idle_s = facts.idle_s(result.shown)
    return [*shown, (Share(facts.IDLE, idle_s, 0, 0, 0), facts.IDLE_CAUSES[facts.idle_cause(result.shown)])]


def _n_more_lines(result: LlmResult) -> int:
    """Of what not every screen tells."""
    lossy = [item for item in result.advice if not item["lossless"]]
    return len(lossy) + sum(other is not None for other in (result.prefill, result.steady))


def _sum(name: str, shares: Sequence[Share]) -> Share:
    fields = ("time_s", "n_kernels", "flops", "hbm_bytes")
    return Share(name, *(sum(getattr(share, field) for share in shares) for field in fields))


def main_limiter(rans: Iterable[Ran]) -> str:
    """What limits most of the time of some operations, in words."""
    sums = facts.time_by_group(tuple(rans))
    return max(sums, key=sums.__getitem__)


def is_launch_bound(step: StepResult) -> bool:
    """Whether the host, launching kernels one by one, holds the step up."""
    return facts.idle_s(step) >= LAUNCH_BOUND * step.wall_s and facts.idle_cause(step) == "launches"


def _limiters(result: LlmResult, width: int) -> Table:
    step = result.shown
    table = grid(("Kernels limited by", "left"), ("Time", "right"), ("Share", "right"), ("", "left"))
    shares = list(result.by_limiter())
    rest = shares[MAX_LIMITERS:]
    shown = [*shares[:MAX_LIMITERS], *([_sum(f"{len(rest)} more", rest)] if rest else [])]
    room = max(min(width - 46, 50), 8)
    for share in shown:
        part = share.time_s / step.wall_s
        cells = limiter_words(share.name), words.time_text(share.time_s), words.percent_text(part)
        table.add_row(*cells, bar(part, room, "yellow"))
    return table


# Facts.
def _facts(result: LlmResult, width: int, notes: Sequence[str]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for name, lines in _fact_rows(result, width, notes):
        table.add_row(name, Text("\n".join(lines)))
    return table


def _fact_rows(result: LlmResult, width: int, notes: Sequence[str]) -> list[tuple[str, Sequence[str]]]:
    rows: list[tuple[str, Sequence[str]]] = [
        ("Kernels", [_kernels(result.shown)]),
        ("Clock", [_clock(result)]),
        ("Memory", [_memory(result), _memory_bar(result, width)]),
        ("Would help", [_advice(item) for item in result.advice if item["lossless"]]),
        ("With loss", [_advice(item) for item in result.advice if not item["lossless"]]),
        ("Note", [*notes, *_notes(result)]),
    ]
    return [(name, lines) for name, lines in rows if lines]


def _kernels(step: StepResult) -> str:
    idle = facts.idle_s(step)
    text = f"{step.n_kernels:,}, {words.time_text(step.kernels_s / step.n_kernels)} each on average"
    share = words.percent_text(idle / step.wall_s)
    if is_launch_bound(step):
        return f"{text}; launch-bound, the GPU idle {share} of the time: {_launch_text(step)}"
    if facts.idle_cause(step) == "pcie":
        return f"{text}; bound by PCIe, the GPU idle {share} of the time: {_link_text(step)}"
    return f"{text}; idle between them {share} of the time"


def _link_text(step: StepResult) -> str:
    """What weights that come from host memory cost."""
    n_bytes = sum(span.bytes for span in step.host.spans if span.lane == "copy h2d")
    rate = words.rate_text(step.gpu.pcie.pinned_h2d_gb_per_s * 1e9)
    return f"{words.bytes_text(n_bytes)} of weights at {rate}"


def _launch_text(step: StepResult) -> str:
    costs = step.gpu.launch
    each, of = (costs.eager_us, "operation") if step.launch == "eager" else (costs.stream_us, "kernel")
    return f"the host needs {words.time_text(each * 1e-6)} for each {of}"


def _clock(result: LlmResult) -> str:
    step, held = result.shown, result.options.clock_mhz
    if held:
        return f"held at {held:,.0f} MHz"
    times = [(kernel.time_s, kernel.sm_mhz) for ran in step.ran for kernel in ran.kernels]
    mean = sum(time_s * mhz for time_s, mhz in times) / sum(time_s for time_s, _ in times)
    text = f"{mean:,.0f} MHz on average"
    if step.clock_cap_mhz:
        return f"{text}; the board's power leaves {step.clock_cap_mhz:,.0f} MHz at most"
    if result.options.sustained:
        return f"{text}; the board's power does not limit it"
    return f"{text}, in a burst (--sustained: what the board's power leaves)"


def _memory(result: LlmResult) -> str:
    capacity, peak = facts.capacity_bytes(result.shown), facts.memory_peak(result)
    large = {name: n for name, n in peak.parts.items() if n >= SMALLEST_PART * peak.total}
    parts = sorted(large.items(), key=lambda item: -item[1])
    texts = [f"{_mark(i)} {facts.PARTS[name]} {words.bytes_text(n)}" for i, (name, n) in enumerate(parts)]
    rest = peak.total - sum(large.values())
    texts += [f"{'other' if texts else 'all'} {words.bytes_text(rest)}"] if rest else []
    total = f"{words.bytes_text(peak.total)} of {words.bytes_text(capacity)} at the peak"
    text = f"{total} ({peak.operation}): {', '.join(texts)}"
    if not result.how.stream_weights:
        return text
    return f"{text}; products' weights in host memory, {words.bytes_text(capacity - peak.total)} of HBM unused"


MARKS = "█▓▒░"


def _mark(i: int) -> str:
    """What the i-th largest part is drawn with."""
    return MARKS[min(i, len(MARKS) - 1)]


def _memory_bar(result: LlmResult, width: int) -> str:
    """Parts at the peak over the whole of HBM."""
    capacity, room = facts.capacity_bytes(result.shown), max(min(width - 14, 84), 8)
    sizes = sorted(facts.memory_peak(result).parts.values(), reverse=True)
    text = "".join(_mark(i) * round(n / capacity * room) for i, n in enumerate(sizes))
    return text[:room].ljust(room, "·")


def _advice(item: dict[str, Any]) -> str:
    return f"{item['speedup']:.2f} × by: {item['change']} → {words.time_text(item['time_s'])}"


def _notes(result: LlmResult) -> list[str]:
    notes = [_routing(result)] if result.request.model.n_experts else []
    if any(kernel.sampled for ran in result.shown.ran for kernel in ran.kernels):
        notes.append("Sampled: waves that repeat inside a kernel were skipped.")
    return [*notes, *gpu_notes(result.gpu)]


def _routing(result: LlmResult) -> str:
    """How many experts get tokens, and why."""
    model, balance = result.request.model, result.request.execution.balance
    works = (ran.operation.work for ran in result.shown.ran if ran.operation.name == "router")
    n_tokens = next(work.m for work in works if isinstance(work, Gemm))
    n_used = sum(active(model, balance, n_tokens, layer) for layer in range(model.n_layers)) / model.n_layers
    how = "as even as can be" if balance == "even" else "at random (--balance even: as even as can be)"
    return f"Tokens choose experts {how}: {n_used:.3g} of {model.n_experts} get any, and share them evenly."


def time_line(result: LlmResult, price: float | None = None) -> str:
    """What --quiet prints."""
    return " · ".join([_times(result), _costs(result, price), *_for_long(result, price)])


# JSON.
def to_json(result: LlmResult, price: float | None = None, pruned: dict[str, float] | None = None) -> dict[str, Any]:
    """The object that `--json` prints. `steps` are those simulated; all else of a step is that of `shown`. The cost is
    that of `steady`, where a burst takes more power than the board holds. `pruned`: what is to be said of a pruned
    model."""
    request, step, peak = result.request, result.shown, facts.memory_peak(result)
    first = result.time_to_first_token_s
    return {
        "model": request.model.name,
        "parameters": parameters(request.model).total,
        **({"pruned": pruned} if pruned else {}),
        "gpu": result.gpu["name"],
        "notes": gpu_notes(result.gpu),
        "phase": request.phase,
        "batch": request.batch,
        **{name: getattr(request, name) for name in SIZES[request.phase]},
        "execution": dataclasses.asdict(request.execution),
        **({"training": dataclasses.asdict(request.training)} if request.phase == "training" else {}),
        "how": dataclasses.asdict(result.how),
        "options": result.options.describe(),
        "time_us": result.time_s * 1e6,
        "time_per_token_us": result.time_per_token_s * 1e6,
        "time_to_first_token_us": None if first is None else first * 1e6,
        **(_first_token_json(result.prefill) if result.prefill else {}),
        "n_tokens": result.tokens,
        "tokens_per_s": result.tokens_per_s,
        "model_flops_utilisation": result.model_flops_utilisation,
        "bandwidth_utilisation": result.bandwidth_utilisation,
        "energy_j": result.energy_j,
        "power_w": result.power_w,
        "power_held_w": result.held_w,
        "burst": result.is_burst,
        **({"steady": _steady_json(result.steady)} if result.steady else {}),
        "cost_per_million_tokens": None if price is None else (result.steady or result).cost_per_million_tokens(price),
        "shown": step_json(step),
        "by_operation": [_share_json(share, step) for share in result.by_operation()],
        "by_limiter": [{**_share_json(share, step), "name": limiter_code(share.name)} for share in result.by_limiter()],
        "steps": [step_json(each) for each in result.steps],
        "memory": {
            "capacity_bytes": round(facts.capacity_bytes(step)),
            "peak_bytes": peak.total,
            "unused_bytes": max(0, round(facts.capacity_bytes(step)) - peak.total),
            "peak_at": peak.operation,
            "parts": dict(peak.parts),
        },
        "advice": [
            {**{name: item[name] for name in ("change", "speedup", "lossless")}, "time_us": item["time_s"] * 1e6}
            for item in result.advice
        ],
        "versions": result.versions,
        "schema": SCHEMA,
    }


def _first_token_json(prefill: LlmResult) -> dict[str, Any]:
    """Of the prefill before a decode step: how many sequences, and whether the board holds its power for long."""
    return {"first_token_batch": prefill.request.batch, "first_token_burst": prefill.is_burst}


def _steady_json(steady: LlmResult) -> dict[str, Any]:
    """The same for long."""
    return {
        "time_us": steady.time_s * 1e6,
        "tokens_per_s": steady.tokens_per_s,
        "energy_j": steady.energy_j,
        "power_w": steady.power_w,
        "clock_cap_mhz": steady.shown.clock_cap_mhz,
    }


SIZES = {
    "prefill": ("tokens",),
    "decode": ("context",),
    "generate": ("tokens", "new_tokens"),
    "training": ("tokens",),
}
"""Phase -> the sizes it has beside the batch."""


def step_json(step: StepResult) -> dict[str, Any]:
    """One step as it ran."""
    kernels = [kernel for ran in step.ran for kernel in ran.kernels]
    return {
        "label": step.step.label,
        "time_us": step.host.end_to_end_s * 1e6,
        "kernels_us": step.kernels_s * 1e6,
        "idle_us": facts.idle_s(step) * 1e6,
        "idle_cause": facts.idle_cause(step),
        "n_kernels": step.n_kernels,
        "clock_cap_mhz": step.clock_cap_mhz,
        "flops": step.step.flops,
        "model_flops": step.step.model_flops,
        "hbm_bytes": {way: sum(kernel.bytes["hbm"][way] for kernel in kernels) for way in ("read", "write")},
        "energy_j": step.energy_j,
    }


def _share_json(share: Share, step: StepResult) -> dict[str, Any]:
    return {
        "name": share.name,
        "time_us": share.time_s * 1e6,
        "share": share.time_s / step.wall_s,
        "n_kernels": share.n_kernels,
        "flops": share.flops,
        "hbm_bytes": share.hbm_bytes,
    }
