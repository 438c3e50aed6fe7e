"""What the simulator refuses, in the words of the command line: names of fields become the options that set them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from hwmodels.errors import ConfigError
from viz.commands.llm_options import StepOptions

FIELDS = {
    "backend": ("attention",),
    "dtype": ("dtype", "matmul_dtype", "kv_dtype"),
    "rank": ("low_rank", "lora_rank"),
    "adapters": ("lora_adapters",),
    "weights_format": ("weights",),
    **{
        name: (name,)
        for name in (
            *("kv_dtype", "page", "weights", "weight_group", "compress_head", "matmul_dtype", "low_rank", "lora_rank"),
            *("lora_adapters", "program", "fusion", "optimizer", "checkpointing", "phase", "balance"),
        )
    },
}
"""Field -> options that may have set it; of several, the one that has the value."""
UNDERSCORED = tuple(name for name in FIELDS if "_" in name)
"""Fields whose name alone is no word of prose."""
ASSIGNED = re.compile(rf"(?<![-\w])({'|'.join(FIELDS)}) = ('[^']*'|[\w.+-]+)")
WITH_VALUE = re.compile(r"\b(with|and) (backend|phase) '([^']*)'")
ALONE = re.compile(rf"(?<![-\w])({'|'.join(UNDERSCORED)})\b")
PHASES_OF = {"backward": "training"}
"""Phase of an operation -> that of the command."""
INNER = re.compile(r"^family = '\w+': nothing fits [\w.-]+ and the workload: ")
WHERE = re.compile(r"(?:(?<=\()|(?<=, ))(?:execution|attention|workload gemm|language model|training step)\)$")
"""What refused, behind a reason or alone."""
DIVIDED = re.compile(r"\bmust divide k = (\d+)")


@contextlib.contextmanager
def in_options(options: StepOptions) -> Iterator[None]:
    """Name options, not fields, in a `ConfigError` that leaves the block."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(reworded(str(error), options)) from error


def reworded(text: str, options: StepOptions) -> str:
    """`text` with each field and its value as the option that set it."""

    def assigned(found: re.Match[str]) -> str:
        value = found[2].strip("'")
        names = FIELDS[found[1]]
        name = next((name for name in names if str(getattr(options, name)) == value), names[0])
        return _flag(name) if value == "True" else f"{_flag(name)} {value}"

    text = ASSIGNED.sub(assigned, INNER.sub("", text))
    text = WITH_VALUE.sub(
        lambda found: f"{found[1]} {_flag(FIELDS[found[2]][0])} {PHASES_OF.get(found[3], found[3])}", text
    )
    text = ALONE.sub(lambda found: _flag(FIELDS[found[1]][0]), text)
    text = DIVIDED.sub(r"must divide the \1 inputs of a layer", text)
    return WHERE.sub("command line)", text).replace("must be None", "must not be given")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
