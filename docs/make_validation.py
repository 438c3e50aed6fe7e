"""Replay the measured tables that are shipped, and write what the project says of its own error.

Usage: python docs/make_validation.py [h200 | llm | others]

`h200` writes docs/validation.md, sim/validation/expected_errors.toml, which `tilewalk gemm` quotes, and what CI holds
the code to; `llm` writes docs/validation-llm.md of attention, kernels bound by memory, whole stacks and training;
`others` writes docs/validation-gpus.md from part of each public table; without an argument, all of them. About eleven,
four and thirteen minutes on two cores; run it after any change to the engine or to a GPU's constants.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from hwmodels import load_gpu, measured_path
from sim.validation import markdown, validate
from sim.validation.ablation import ablation_section
from sim.validation.bursts import burst_section, repeat_section, timed_repeat_section
from sim.validation.causes import Beside, again, counted, explained, own_kernel
from sim.validation.expected import write_expected_errors
from sim.validation.origins import origins_section, sensitivity_section
from sim.validation.report import Report
from sim.validation.sustained import cases_of
from sim.validation.targets import targets_section
from viz.power_over_time import draw_over_time
from viz.validation import draw_errors

GPU = "h200_sxm"
TABLES = ("gemm", "tile_sweep", "counters")
CHOSEN = "gemm, kernels chosen"
FURTHER = "h200_sxm_further"
FURTHER_TABLES = (
    "gemm_again", "gemm_more", "gemm_fp64", "tile_more", "tile_choice", "counters_more", "gemm_short", "gemm_odd",
    "counters_odd",
)  # fmt: skip
"""Nothing was fitted to these but trips of the last two's kernels of dot products; rows named pitch and those of tf32
gave three values. tile_choice was looked at when row openings and L2's rate were corrected."""
LLM_TABLES = (
    "attention", "elementwise", "extra_ops", "decoder_stack", "decoder_stack_kernels", "training_steps",
)  # fmt: skip
LLM_FURTHER = (
    "attention_more", "attention_window", "attention_backward", "elementwise_more", "tails", "extra_more",
    "stacks_more", "stack_kernels_more", "training_more",
)  # fmt: skip
LLM_AGAIN = ("attention", "elementwise", "decoder_stack", "decoder_stack_kernels")
"""Measured twice."""
SEEN = """## What these rows have seen

Constants of attention and of kernels bound by memory were fitted to even-hash shapes of the tables of attention,
elementwise kernels, of tails and of further operations; those of kernels bound by memory also to hot.csv, to the
kernels of one training step of llama2-7b (training_kernels.csv) and to those of llama2-7b's decode steps in
decoder_stack_kernels.csv. The host's times of eager programs (`launch.eager_us`, `checkpoint_us`, `recompute_us`) were
read off the rows of 512 tokens of training_steps.csv, which are therefore no test of them. That power sets the clock by
its square was chosen on the stacks of llama2-7b and llama3-8b. Nothing was fitted to stacks_more, stack_kernels_more
and training_more. Kernels of whole steps are chosen from what cuBLAS was seen to launch for other shapes than their
own (`hwmodels/menus/hopper_seen.csv`, of gemm.csv and gemm_odd.csv)."""
PUBLIC = {
    "a100_sxm_80gb": "graph_gemm",
    "h100_sxm": "graph_gemm",
    "l40s": "graph_gemm",
    "a100_pcie_40gb": "event_gemm",
    "v100_pcie_32gb": "event_gemm",
    "t4": "event_gemm",
}
PUBLIC_ATTENTION = ("a100_sxm_80gb", "h100_sxm", "l40s")
PUBLIC_ROWS = 200
"""Rows of each public table, in proportion to their groups; parts of 48 rows were off by 1 to 3 points."""
ABLATION_ROWS = 120
"""Rows of each table that are replayed without each mechanism in turn."""
PICTURE = "validation-errors.png"
LOAD_PICTURE = "validation-over-time.png"
LOAD_SHOWN = f'<img src="{LOAD_PICTURE}" alt="Time of a call, clock and power over 2.5 s: measured and predicted">'
DOCS = Path(__file__).parent
SUBSET, SUBSET_ROWS = DOCS.parent / "tests" / "data" / "validation_subset.json", 48
"""What tests/test_validation_page.py holds the code to: rows of each table, in proportion to their groups."""


def subset(table: str) -> dict[str, float]:
    """MAPE of each group that a few rows of a shipped table of the H200 have, percent: CI repeats it."""
    report = validate(load_gpu(GPU), measured_path(GPU, table), limit=SUBSET_ROWS)
    return {str(group["name"]): round(group["mape_pct"], 3) for group in report.groups if group["n"]}


def worst_rows(reports: Sequence[Report], known: Report) -> dict[str, str]:
    """{source: what is known of the worst rows} of reports on single GEMMs; `known` has the kernels of those chosen."""
    besides: dict[str, tuple[str, Beside]] = {
        "gemm.csv": ("measured again, gemm_again.csv", again(measured_path(FURTHER, "gemm_again"))),
        "gemm_again.csv": ("measured before, gemm.csv", again(measured_path(GPU, "gemm"))),
        "tile_sweep.csv": ("measured again, tile_again.csv", again(measured_path(FURTHER, "tile_again"))),
        CHOSEN: ("its own kernel given", own_kernel(known)),
    }
    besides |= {r.source: ("errors of what was counted", counted) for r in reports if r.kind == "counters"}
    return {r.source: explained(r, *besides.get(r.source, ())) for r in reports if r.points}


def main(what: str) -> None:
    """Replay, then write the files asked for."""
    if what in ("h200", "all"):
        gpu = load_gpu(GPU)
        paths = {table: measured_path(GPU, table) for table in TABLES}
        reports = [validate(gpu, path) for path in paths.values()]
        ablated = ablation_section(gpu, paths, ABLATION_ROWS)
        chosen = dataclasses.replace(validate(gpu, paths["gemm"], tile="auto"), source=CHOSEN)
        load = validate(gpu, measured_path(GPU, "sustained_load"))
        load = dataclasses.replace(load, notes=(*load.notes, LOAD_SHOWN))
        further = [validate(gpu, measured_path(FURTHER, table)) for table in FURTHER_TABLES]
        bursts = burst_section(paths["gemm"], measured_path(FURTHER, "gemm_spaced"))
        bursts += "\n\n" + repeat_section(paths["gemm"], measured_path(FURTHER, "gemm_again"))
        moved = sensitivity_section(gpu, paths, ABLATION_ROWS)
        shown = [*reports, chosen, load, *further]
        page = markdown(
            shown,
            first=[targets_section(gpu, shown)],
            more=[bursts, ablated, moved],
            picture=PICTURE,
            origins=origins_section(gpu),
            explained=worst_rows(shown, reports[0]),
        )
        (DOCS / "validation.md").write_text(page, encoding="utf-8")
        draw_errors([*reports, *further[:2]]).savefig(DOCS / PICTURE, dpi=120)
        draw_over_time(gpu, cases_of(gpu, measured_path(GPU, "sustained_load"))).savefig(DOCS / LOAD_PICTURE, dpi=120)
        write_expected_errors(reports)
        SUBSET.write_text(json.dumps({table: subset(table) for table in TABLES}, indent=1) + "\n", encoding="utf-8")
    if what in ("llm", "all"):
        gpu = load_gpu(GPU)
        reports = [validate(gpu, measured_path(GPU, table)) for table in LLM_TABLES]
        reports += [validate(gpu, measured_path(FURTHER, table)) for table in LLM_FURTHER]
        twice = [timed_repeat_section(*(measured_path(gpu, table) for gpu in (GPU, FURTHER))) for table in LLM_AGAIN]
        page = markdown(reports, "Validation on language models", more=[SEEN, *twice])
        (DOCS / "validation-llm.md").write_text(page, encoding="utf-8")
    if what in ("others", "all"):
        tables = [*PUBLIC.items(), *((gpu, "public_attention") for gpu in PUBLIC_ATTENTION)]
        reports = [validate(load_gpu(gpu), measured_path(gpu, kind), limit=PUBLIC_ROWS) for gpu, kind in tables]
        (DOCS / "validation-gpus.md").write_text(markdown(reports, "Validation on other GPUs"), encoding="utf-8")


if __name__ == "__main__":
    asked = sys.argv[1:] or ["all"]
    if len(asked) > 1 or asked[0] not in ("h200", "llm", "others", "all"):
        sys.exit("usage: python docs/make_validation.py [h200 | llm | others]")
    main(asked[0])
