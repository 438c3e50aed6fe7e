"""Tables of measured kernels, one folder per GPU; the PROTOCOL.md beside them says how and under which licence."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from hwmodels.errors import ConfigError


def measured_path(gpu_name: str, table: str) -> Path:
    """The shipped table, such as `("h200_sxm", "gemm")` or `("h200_sxm", "gemm.csv")`, as a file to open.

    Works in a checkout and in an installed wheel. Raises ConfigError where there is none of that name.
    """
    folder = Path(str(files(__name__)))
    found = {(path.parent.name, path.stem): path for path in sorted(folder.glob("*/*.csv"))}
    key = (gpu_name, table.removesuffix(".csv"))
    if key not in found:
        known = ", ".join(f"{gpu}/{stem}" for gpu, stem in found)
        raise ConfigError(f"no measured table {table!r} of GPU {gpu_name!r}; known: {known}")
    return found[key]
