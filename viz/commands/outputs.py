"""Files that a command writes: checked before anything long begins, written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from hwmodels.errors import ConfigError
from viz.commands.values import refused


def checked(paths: Mapping[str, str | None]) -> dict[str, Path]:
    """{option: path} of those given, links followed. Raises `ConfigError` for one that cannot be written, or is named
    twice."""
    found: dict[str, Path] = {}
    for option, text in paths.items():
        if text is not None:
            path = writable(f"--{option}", text)
            twice = next((other for other, known in found.items() if known == path), None)
            if twice is not None:
                raise refused(f"--{option}", text, f"another file than that of --{twice}")
            found[option] = path
    return found


def check_inputs(paths: Mapping[str, Path], inputs: Mapping[str, str | None]) -> None:
    """Raise `ConfigError` where a file that is to be written is one that is read: {option: its words}."""
    for option, path in paths.items():
        for name, text in inputs.items():
            if text is not None and "\0" not in text and path == Path(os.path.realpath(text)):
                raise refused(f"--{option}", text, f"another file than that of --{name}")


def check_format(path: Path) -> None:
    """Raise `ConfigError` for a figure in a format that is not written."""
    from viz.sheet import FORMATS

    if path.suffix.lower().removeprefix(".") not in FORMATS:
        raise refused("--figure", path.name, f"a file that ends in .{', .'.join(FORMATS)}")


def writable(option: str, text: str) -> Path:
    """The file that `text` names, proven by a temporary one beside it."""
    try:
        path = Path(os.path.realpath(text))
        if not text or path.is_dir():
            raise refused(option, text, "the name of a file, not of a folder")
        if path.exists() and not path.is_file():
            raise refused(option, text, "the name of a file, not of a device or pipe")
        if path.exists() and _is_standard_stream(path):
            raise refused(option, text, "another file than standard output and standard error go to")
        if path.exists() and not os.access(path, os.W_OK):
            raise refused(option, text, "a file that may be overwritten; this one is read-only")
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
            return path
    except OSError as error:
        raise refused(option, text, f"a file that can be written ({error.strerror or error})") from None
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise refused(option, text, f"a file name ({error})") from None


def _is_standard_stream(path: Path) -> bool:
    """Whether stdout or stderr goes into this file, which replacing it would cut off."""
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):  # a closed one goes nowhere
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return True
    return False
