"""What hardware variants gave, as the tables, findings and chart of a study."""

from __future__ import annotations

from collections.abc import Sequence

from hwmodels.errors import ConfigError
from hwmodels.levers import lever
from hwmodels.spec import Gpu
from sim.cases import Figures
from sim.limiter import limiter_words
from sim.studies.study import Cell, Chart, Finding, Study, Table, ratio, table
from sim.text import percent
from sim.whatif import STEP, Comparison, Found, Scan, Sensitivity

SECONDS_PER_HOUR, MILLION = 3600.0, 1e6
RETUNED, KEPT = "kernels chosen anew for each GPU", "with the kernels of the base"
PARTS = 8
"""Limiters that a comparison tells of, the longest."""


def comparison_study(found: Comparison, question: str, price_per_hour: float | None = None) -> Study:
    """Base and variant side by side; `price_per_hour` is of one GPU, both cost the same."""
    base, varied = found.base, found.variant
    most = {name: max(each.limited_s.get(name, 0.0) for each in (base, varied)) for name in base.limited_s}
    most |= {name: time_s for name, time_s in varied.limited_s.items() if name not in most}
    names = sorted(most, key=lambda name: (-most[name], name))[:PARTS]
    limited = [(_limited(name), base.limited_s.get(name, 0.0), varied.limited_s.get(name, 0.0)) for name in names]
    tables = [
        _pairs("time", "s", [("time", base.time_s, varied.time_s)]),
        _pairs("kernels by what limits them", "s", limited),
        _pairs("bytes moved", "B", [(level, base.bytes[level], varied.bytes[level]) for level in base.bytes]),
        _pairs("energy", "J", [("energy", base.energy_j, varied.energy_j)]),
    ]
    changed = _changed_tiles(base, varied)
    if changed.rows:
        tables.append(changed)
    how = RETUNED if found.retuned else KEPT
    findings = [Finding(f"as fast, {how}", found.speedup, "ratio")]
    if found.base.tokens and price_per_hour is not None:
        costs = [price_per_hour / SECONDS_PER_HOUR * each.time_s / each.tokens * MILLION for each in (base, varied)]
        findings += [
            Finding(f"a million tokens on the {name}, at {price_per_hour:g} an hour", f"{cost:.4g}", "text")
            for name, cost in zip(("base", "variant"), costs, strict=True)
        ]
    return Study("whatif", question, found.gpu.name, tuple(tables), tuple(findings), Chart(("base", "variant"), 1))


def _pairs(title: str, unit: str, rows: list[tuple[str, float, float]]) -> Table:
    told = [(name, one, other, ratio(other, one)) for name, one, other in rows]
    return table(title, {"": "text", "base": unit, "variant": unit, "variant / base": "ratio"}, told)


def _limited(name: str) -> str:
    return name if name in ("idle", "launch and start") else f"limited by {limiter_words(name)}"


def _changed_tiles(base: Figures, variant: Figures) -> Table:
    """Products whose kernel is another one."""
    one, other = base.tile_names(), variant.tile_names()
    rows = [(name, one[name], other.get(name)) for name in one if other.get(name) != one[name]]
    return table("other kernels", {"product": "text", "base": "text", "variant": "text"}, rows)


def gpus_study(gpus: Sequence[Gpu], found: Sequence[Found], question: str) -> Study:
    """One workload on several GPUs, in the order asked for."""
    known = [(gpu, each) for gpu, each in zip(gpus, found, strict=True) if isinstance(each, Figures)]
    if not known:
        raise next(each for each in found if isinstance(each, ConfigError))
    first = known[0][1]
    tokens = {"tokens/s": "count"} if first.tokens else {}
    columns = {
        "GPU": "text",
        "time": "s",
        f"over {known[0][0].name}'s": "ratio",
        **tokens,
        "energy": "J",
        "mean power": "W",
    }
    columns |= {"HBM bytes": "B", "L2 bytes": "B", "limiter": "text"}
    rows: list[tuple[Cell, ...]] = []
    for gpu, each in known:
        rate = (round(each.tokens / each.time_s),) if first.tokens else ()
        moved = each.bytes["hbm"], each.bytes["l2"]
        ran = each.time_s, each.time_s / first.time_s, *rate, each.energy_j, each.power_w
        rows.append((gpu.name, *ran, *moved, limiter_words(each.limiter)))
    refused = [
        Finding(f"{gpu.name}: {e}", None, "text")
        for gpu, e in zip(gpus, found, strict=True)
        if isinstance(e, ConfigError)
    ]
    fastest = min(known, key=lambda pair: pair[1].time_s)
    findings = [Finding("fastest", fastest[0].name, "text")] if len(known) > 1 else []
    return Study(
        "compare", question, "several GPUs", (table("on each", columns, rows),), (*findings, *refused), Chart(("time",))
    )


def sensitivity_study(base: Figures, found: tuple[Sensitivity, ...], question: str, gpu: str) -> Study:
    """Every lever with its elasticity, the most telling first."""
    step = percent(STEP)
    columns = {"lever": "text", f"-{step}": "ratio", f"+{step}": "ratio", "× 2": "ratio", "elasticity": "slope"}
    rows: list[tuple[Cell, ...]] = [
        (each.lever.text, each.down, each.up, each.doubled, each.elasticity) for each in found
    ]
    told = table("time over the base's", columns, rows)
    findings = [Finding("the base", base.time_s, "s")]
    findings += [
        Finding(f"less time for 1 % more: {each.lever.text}", f"{-each.elasticity:.2f} %", "text")
        for each in found
        if each.elasticity is not None and -each.elasticity >= 0.05
    ]
    findings += [Finding(f"{each.lever.text}: {each.refused}", None, "text") for each in found if each.refused]
    return Study("sensitivity", question, gpu, (told,), tuple(findings), Chart((f"-{step}", f"+{step}", "× 2")))


def scan_study(found: Scan, question: str, gpu: str) -> Study:
    """Every point with its time, and the knees of a curve."""
    names = [f"{lever(axis.name).text}{', × the base' if axis.factors else ''}" for axis in found.axes]
    columns = {
        **dict.fromkeys(names, "count"),
        "time": "s",
        "over the base's": "ratio",
        "energy": "J",
        "limiter": "text",
    }
    rows: list[tuple[Cell, ...]] = []
    refused: list[Finding] = []
    for values, figures in zip(found.grid, found.points, strict=True):
        if isinstance(figures, Figures):
            told = (
                figures.time_s,
                figures.time_s / found.base.time_s,
                figures.energy_j,
                limiter_words(figures.limiter),
            )
            rows.append((*values, *told))
        else:
            rows.append((*values, None, None, None, None))
            at = ", ".join(f"{name} {value:g}" for name, value in zip(names, values, strict=True))
            refused.append(Finding(f"{at}: {figures}", None, "text"))
    told_how = RETUNED if found.retuned else KEPT
    findings = [Finding(f"the base; {told_how}", found.base.time_s, "s")]
    if len(found.axes) == 1:
        knee = found.knee(0)
        text = f"{names[0]} from which on no more than 2 % of time is left to gain"
        findings.append(Finding(text, "none: time does not fall" if knee is None else f"{knee:g}", "text"))
    return Study("scan", question, gpu, (table("points", columns, rows),), (*findings, *refused), Chart(("time",)))
