"""Results of earlier sweeps in the user's cache folder: one small file each, bounded, safe under several processes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from sim.sweep.outcome import Outcome, from_line, to_line

MOST_BYTES = 256_000_000
BLOCK_BYTES = 4096
"""What the smallest file takes of a disk."""
KEPT = 0.9
"""Part of the bound that is left when the oldest are removed."""
CHECKED_EVERY = 1 / 16
"""Of the bound: so much is written between two looks at how much there is."""
FOLDER = "TILEWALK_CACHE"


def cache_folder() -> Path:
    """TILEWALK_CACHE, else tilewalk in XDG_CACHE_HOME or ~/.cache."""
    named = os.environ.get(FOLDER)
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "tilewalk"


class Cache:
    """{digest: outcome} in files of `folder`. What cannot be read is not known; where nothing can be written, `tell`
    is called once with the reason, and nothing more is written."""

    def __init__(
        self, folder: Path | None = None, most_bytes: int = MOST_BYTES, tell: Callable[[str], None] | None = None
    ) -> None:
        self.folder = (folder or cache_folder()) / "sweep"
        self._most_bytes, self._tell = most_bytes, tell
        self._writable, self._ready = True, False
        self._unchecked = most_bytes  # bytes that may have come since it was looked at

    def get(self, digest: str) -> Outcome | None:
        """What is known of a point."""
        try:
            found = from_line(self._path(digest).read_bytes())
        except OSError:
            return None
        return found[1] if found is not None and found[0] == digest else None

    def put(self, digest: str, outcome: Outcome) -> None:
        """Keep what became of a point."""
        if not self._writable:
            return
        path, line = self._path(digest), to_line(digest, outcome)
        try:
            if not self._ready:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._ready = True
            self._replace(path, line)
        except OSError as error:
            self._writable = False
            if self._tell:
                self._tell(f"cache {self.folder}: cannot be written ({error.strerror or error}); goes on without")
            return
        self._unchecked += _on_disk(len(line))
        if self._unchecked > self._most_bytes * CHECKED_EVERY:
            self.prune()

    def prune(self) -> None:
        """Remove the oldest until the bound is kept."""
        self._unchecked = 0
        files = sorted(self._files())
        total = sum(size for _, size, _ in files)
        if total <= self._most_bytes:
            return
        for _, size, path in files:
            with contextlib.suppress(OSError):  # another process was first
                path.unlink()
            total -= size
            if total <= self._most_bytes * KEPT:
                return

    def _path(self, digest: str) -> Path:
        return self.folder / digest[:2] / f"{digest[2:]}.json"

    def _replace(self, path: Path, line: bytes) -> None:
        """Whole or not at all, whoever else writes the same. One process has one temporary file at a time."""
        temporary = self.folder / f"{os.getpid()}-{id(self):x}.tmp"
        temporary.write_bytes(line)
        try:
            os.replace(temporary, path)
        except FileNotFoundError:  # the first of its folder
            path.parent.mkdir(exist_ok=True)
            os.replace(temporary, path)

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        """(when written, bytes on disk, path) of each."""
        for parent, _, names in os.walk(self.folder):
            for name in names:
                path = Path(parent, name)
                with contextlib.suppress(OSError):
                    known = path.stat()
                    yield known.st_mtime, _on_disk(known.st_size), path


def _on_disk(n_bytes: int) -> int:
    return -(-n_bytes // BLOCK_BYTES) * BLOCK_BYTES
