"""What `tilewalk llm` and `tilewalk kernels` can be told; all still as the words that were typed.

Names that live in modules which take long to load are repeated here; a test holds them against those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from sim.program import LAUNCH_MODES
from viz.commands.options import GPU, SET, Word, one_of, option
from workloads.attention import CACHE_DTYPES
from workloads.execution import BALANCES, DTYPES, FUSIONS, MATMUL_DTYPES, PROGRAMS
from workloads.packing import FORMATS

PHASES: tuple[str, ...] = ("prefill", "decode", "generate", "training")
INFERENCE = PHASES[:3]
BACKENDS: tuple[str, ...] = ("flash", "cudnn", "flash3", "math", "unfused")
CHECKPOINTING: tuple[str, ...] = ("none", "selective", "full")
OPTIMIZERS: tuple[str, ...] = ("adamw", "adamw_mixed")

PHASES_OF = {
    "tokens": ("prefill", "generate", "training"),
    "context": ("decode",),
    "new_tokens": ("generate",),
    "kv_dtype": INFERENCE,
    "page": INFERENCE,
    "stream_weights": INFERENCE,
    "checkpointing": ("training",),
    "optimizer": ("training",),
    "accumulated": ("training",),
}
"""Options that not every phase has."""


def models(incomplete: str) -> list[str]:
    """Names of built-in models, for the shell."""
    from workloads.models.catalog import list_models

    return [name for name in list_models() if name.startswith(incomplete)]


MODEL = typer.Option(
    help="A built-in model (tilewalk models lists them), or a Hugging Face config.json.",
    metavar="NAME|config.json",
    show_default=False,
    autocompletion=models,
)


@dataclass(frozen=True)
class StepOptions:
    """What is simulated, named as in `Llm`, `Execution`, `Training` and `How` where they mean the same."""

    model: Annotated[str, MODEL]
    gpu: Annotated[str, GPU] = "h200_sxm"
    phase: Annotated[str, one_of("What the model does", PHASES)] = "prefill"
    batch: Annotated[str, option("Sequences at a time", "B")] = "1"
    tokens: Annotated[Word, option("Tokens of each sequence that are read; 2048 or the model's context", "T")] = None
    context: Annotated[Word, option("Tokens of each sequence in the cache; 2048 or the model's context", "C")] = None
    new_tokens: Annotated[Word, option("Tokens of each sequence to generate; 128 where not given", "N")] = None
    program: Annotated[str, one_of("Program that launches the kernels", PROGRAMS)] = "eager"
    fusion: Annotated[str, one_of("What is fused into one kernel", FUSIONS)] = "none"
    dtype: Annotated[Word, one_of("Type of weights and activations; bf16, or fp16 where the GPU has none", DTYPES)] = (
        None
    )
    kv_dtype: Annotated[Word, one_of("Type of the cache, if another", CACHE_DTYPES)] = None
    page: Annotated[Word, option("Tokens of a block of a paged cache", "N")] = None
    weights: Annotated[str, one_of("How weights of linear layers are stored", FORMATS)] = "dense"
    weight_group: Annotated[Word, option("Inputs that share a scale of int8 or int4 weights", "N")] = None
    compress_head: Annotated[bool, option("Compress the head too", None, "--compress-head")] = False
    matmul_dtype: Annotated[Word, one_of("Type of weights and activations in products", MATMUL_DTYPES)] = None
    low_rank: Annotated[Word, option("Two factors of this rank instead of each linear layer", "R")] = None
    prune_ffn: Annotated[Word, option("Part of every feed-forward's width to leave out", "FRACTION")] = None
    prune_heads: Annotated[Word, option("Part of every layer's heads to leave out", "FRACTION")] = None
    lora_rank: Annotated[Word, option("Unmerged adapters of this rank beside each linear layer", "R")] = None
    lora_adapters: Annotated[Word, option("Adapters that the sequences are spread over", "N")] = None
    balance: Annotated[Word, one_of("How tokens choose experts, random where not given", BALANCES)] = None
    attention: Annotated[
        Word, one_of("Library that attention comes from; flash, or unfused where that has no kernel", BACKENDS)
    ] = None
    launch: Annotated[str, one_of("How kernels are launched", LAUNCH_MODES)] = "stream"
    checkpointing: Annotated[Word, one_of("Activations that backward computes again", CHECKPOINTING)] = None
    optimizer: Annotated[Word, one_of("Optimizer, with or without fp32 weights", OPTIMIZERS)] = None
    accumulated: Annotated[Word, option("Passes before one optimizer step", "N")] = None
    stream_weights: Annotated[
        bool, option("Bring weights in from host memory layer by layer", None, "--stream-weights")
    ] = False
    sustained: Annotated[bool, option("At the clock that the board's power leaves", None, "--sustained")] = False
    cold: Annotated[bool, option("Let no kernel find in L2 what another left", None, "--cold")] = False
    clock: Annotated[Word, option("Hold the SM clock here", "MHZ")] = None
    sets: Annotated[list[str] | None, SET] = None


@dataclass(frozen=True)
class LlmOptions(StepOptions):
    """The words of `tilewalk llm`."""

    price: Annotated[Word, option("Price of the GPU, for the cost of a million tokens", "PER_HOUR")] = None
    figure: Annotated[
        Word, option("Draw a layer, breakdown, memory and roofline into a .png, .svg or .pdf file", "FILE")
    ] = None
    trace: Annotated[Word, option("Write a trace for Perfetto or Chrome", "FILE")] = None
    inside: Annotated[Word, option("Operation whose kernel the trace shows from inside", "NAME")] = None
    advise: Annotated[
        bool | None,
        typer.Option("--advise/--no-advise", help="Simulate what would help; by default where a screen is printed."),
    ] = None
    json: Annotated[bool, option("Print one JSON object and nothing else", None, "--json")] = False
    quiet: Annotated[bool, option("Print times and rates alone", None, "--quiet", "-q")] = False


@dataclass(frozen=True)
class KernelsOptions(StepOptions):
    """The words of `tilewalk kernels`."""

    every: Annotated[bool, option("List every kernel, equal layers too", None, "--all")] = False
    json: Annotated[bool, option("Print one JSON object and nothing else", None, "--json")] = False
