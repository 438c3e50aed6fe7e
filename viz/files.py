"""Writing a file whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hwmodels.errors import ConfigError


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path beside `path`; rename it to `path` when the block ends well, remove it otherwise.

    Raises `ConfigError` where the file cannot be written.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        if target.is_dir():
            raise IsADirectoryError(21, "is a directory")
        temporary.touch()  # refuses here what cannot be written, before the work that fills it
        yield temporary
        os.replace(temporary, target)
    except OSError as error:
        raise ConfigError(f"path = {str(path)!r}: cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
