"""The workload of a command that varies hardware: the words after its own options, as `tilewalk llm` and
`tilewalk gemm` take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from hwmodels.catalog import load_gpu
from hwmodels.errors import ConfigError
from sim.schedule.config import FAMILIES
from viz.commands.llm_options import StepOptions
from viz.commands.options import ProductOptions, Word, one_of, taking_all
from viz.commands.values import choice

if TYPE_CHECKING:
    from hwmodels.spec import Gpu
    from sim.cases import Case


@dataclass(frozen=True)
class FamilyOptions(ProductOptions):
    """A product, and the kernels to choose from."""

    family: Annotated[Word, one_of("Kernel family", FAMILIES)] = None


T = TypeVar("T", StepOptions, FamilyOptions)


@dataclass(frozen=True)
class Asked:
    """What is simulated, on what, and in words."""

    case: Case
    gpu: Gpu
    text: str
    notes: tuple[str, ...] = ()


def asked(command: str, words: Sequence[str], gpu: str) -> Asked:
    """The workload that `words` name: a model's step where they have --model, else a product. Raises `ConfigError`."""
    if not words:
        raise ConfigError("workload: needs M N K, or --model and what tilewalk llm takes (command line)")
    if any(word.partition("=")[0] == "--model" for word in words):
        return _model(_read(command, words, StepOptions, gpu))
    return _product(_read(command, words, FamilyOptions, gpu))


def _read(command: str, words: Sequence[str], options: type[T], gpu: str) -> T:
    """The words as `options`, on a GPU that the command has its own option for."""
    app, read = typer.Typer(add_completion=False), list[T]()
    app.command(context_settings={"help_option_names": []})(taking_all(read.append, options, without="gpu"))
    made: Any = typer.main.get_command(app)
    made.invoke(made.make_context(f"tilewalk {command}", list(words)))
    return replace(read[0], gpu=gpu)


def _model(options: StepOptions) -> Asked:
    from sim.cases import LlmCase
    from sim.studies.study import counted
    from viz.commands.llm_request import request

    found = request(options)
    llm = found.llm
    what = {
        "prefill": f"a prefill of {llm.batch} × {llm.tokens:,} tokens",
        "decode": f"one decode step of {counted(llm.batch, 'sequence')} behind {llm.context:,} tokens",
        "generate": f"{llm.new_tokens:,} tokens for {llm.batch} × {llm.tokens:,}",
        "training": f"a training step of {llm.batch} × {llm.tokens:,} tokens",
    }[llm.phase]
    text = f"{llm.model.name}, {what}"
    return Asked(LlmCase(llm, found.options, found.how), found.gpu, text, found.notes)


def _product(options: FamilyOptions) -> Asked:
    from sim.call import Options
    from sim.cases import GemmCase
    from viz.commands.request import how, workload

    gemm = workload(options)
    keywords = how(options) | {"without": frozenset(how(options)["without"])}
    case = GemmCase(gemm, Options(**keywords), choice("--family", options.family, FAMILIES))
    return Asked(case, load_gpu(options.gpu, options.sets or ()), f"{gemm.m:,} × {gemm.n:,} × {gemm.k:,} {gemm.dtype}")
