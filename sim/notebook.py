"""A `Result` as a notebook shows it: one piece of HTML that needs nothing else."""

from __future__ import annotations

from html import escape

from sim.result import Result
from sim.text import percent, quantity

BAR_WIDTH, BAR_HEIGHT = 640, 22
WAITS = {
    "mma": ("tensor cores", "#009E73"),
    "hbm": ("HBM", "#0072B2"),
    "l2": ("L2", "#56B4E9"),
    "sm_port": ("SM ports", "#CC79A7"),
    "barrier": ("barriers", "#F0E442"),
    "issue": ("issuing loads", "#555555"),
    "epilogue": ("epilogue", "#E69F00"),
    "start": ("launch and start", "#999999"),
    "idle": ("no CTA left", "#DDDDDD"),
}
"""Wait -> its label and its colour: hues of Okabe and Ito (2008), which colour-blind people tell apart, and greys."""
LEVELS = {"hbm": "HBM", "l2": "L2", "l2_fabric": "between L2 partitions", "sm": "SM ports", "smem": "shared memory"}
EM_SPACE = "\u2003"
SHOWN_FROM = 0.005
"""Share of time below which a wait is left out of the legend."""


def to_html(result: Result) -> str:
    """Time, limiter with its evidence, bytes of every level, and what CTA slots waited for."""
    evidence = escape(" ".join(result.evidence))
    return (
        f'<div style="max-width:{BAR_WIDTH}px"><p>{_headline(result)}</p>'
        f"<p>Limiter: <b>{escape(_words(result.limiter))}</b>. {evidence}</p>{_traffic(result)}{_bar(result)}</div>"
    )


def _words(limiter: str) -> str:
    """A limiter as `viz` would say it, near enough."""
    return limiter.replace("cuda_cores", "CUDA cores").replace("_", " ")


def _unit(result: Result) -> str:
    return "CUDA cores" if result.main.config.get("mma") == "fma" else "tensor cores"


def _headline(result: Result) -> str:
    work, config = result.workload, result.main.config
    batch = f"{work['batch']:,} × " if work["batch"] > 1 else ""
    sizes = f"{batch}{work['m']:,} × {work['n']:,} × {work['k']:,} {work['dtype']}"
    tile = "x".join(str(config[f"block_{side}"]) for side in "mnk") if "block_m" in config else ""
    how = f"{config.get('family', '')} {tile}".strip()
    rate = quantity(result.flops / result.time_s, "FLOP/s")
    energy = f", {quantity(result.energy_j, 'J')} at {result.power_w:,.0f} W" if result.energy_j else ""
    return (
        f"<b>{escape(sizes)}</b> on {escape(str(result.gpu['label']))}, {escape(how)}: "
        f"<b>{quantity(result.time_s, 's')}</b>, {rate}; end to end {quantity(result.end_to_end_s, 's')}{energy}"
    )


def _traffic(result: Result) -> str:
    head = "".join(f'<th style="text-align:{side}">{name}</th>' for name, side in _columns(result))
    found = [level for level in LEVELS if any(level in kernel.bytes for kernel in result.kernels)]
    return f"<table><tr>{head}</tr>{''.join(_row(result, level) for level in found)}</table>"


def _columns(result: Result) -> tuple[tuple[str, str], ...]:
    return (("level", "left"), (f"towards the {_unit(result)}", "right"), ("away", "right"), ("mean rate", "right"))


def _row(result: Result, level: str) -> str:
    read, write = (
        sum(kernel.bytes.get(level, {}).get(way, 0) for kernel in result.kernels) for way in ("read", "write")
    )
    rate = quantity((read + write) / result.time_s, "B/s")
    cells = (LEVELS[level], quantity(read, "B"), quantity(write, "B"), rate)
    columns = zip(_columns(result), cells, strict=True)
    return "<tr>" + "".join(f'<td style="text-align:{side}">{cell}</td>' for (_, side), cell in columns) + "</tr>"


def _bar(result: Result) -> str:
    """A bar of all CTA-slot time, its parts in the order of `WAITS`, and their legend."""
    pieces, legend, x = [], [], 0.0
    for reason, (usual, colour) in WAITS.items():
        width = BAR_WIDTH * result.main.waits.get(reason, 0.0)
        label = _unit(result) if reason == "mma" else usual
        if width >= BAR_WIDTH * SHOWN_FROM:
            text = f"{label} {percent(width / BAR_WIDTH)}"
            pieces.append(_piece(x, width, colour, text))
            legend.append(f'<span style="white-space:nowrap"><span style="color:{colour}">■</span> {text}</span>')
        x += width
    return (
        f'<p>CTA-slot time<br/><svg xmlns="http://www.w3.org/2000/svg" role="img" width="100%" height="{BAR_HEIGHT}" '
        f'viewBox="0 0 {BAR_WIDTH} {BAR_HEIGHT}" preserveAspectRatio="none">{"".join(pieces)}</svg><br/>'
        f"{EM_SPACE.join(legend)}</p>"
    )


def _piece(x: float, width: float, colour: str, text: str) -> str:
    size = f'x="{x:.1f}" width="{width:.1f}" height="{BAR_HEIGHT}"'
    return f'<rect {size} fill="{colour}"><title>{text}</title></rect>'
