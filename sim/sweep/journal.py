"""The file of finished points: lines that are only ever added, so that an interrupt loses none of them."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from hwmodels.errors import ConfigError
from sim.sweep.outcome import Outcome, from_line, to_line

HEADER = json.dumps({"tilewalk": "finished points of a sweep", "schema": 1}).encode() + b"\n"
SYNC_EVERY_S = 2.0
"""What a failing power supply may cost at most; an interrupt or a killed process costs nothing."""


class Journal:
    """{digest: outcome} in a file, of which memory holds digests and places. One process writes it at a time.

    A last line that is half written is cut off, a harmed one is not known. Raises ConfigError for another kind of file,
    one that cannot be written, and one that another process writes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._at: dict[bytes, int] = {}
        self._synced = time.monotonic()
        try:
            self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0)
            self._reading = path.open("rb")
            try:
                self._lock()
                self._end = self._read()
            except BaseException:
                self._close()
                raise
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror or error} (finished points)") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __contains__(self, digest: str) -> bool:
        return bytes.fromhex(digest) in self._at

    def __len__(self) -> int:
        return len(self._at)

    def __getitem__(self, digest: str) -> Outcome:
        self._reading.seek(self._at[bytes.fromhex(digest)])
        found = from_line(self._reading.readline())
        if found is None or found[0] != digest:
            raise ConfigError(f"{self.path}: changed while it was in use (finished points)")
        return found[1]

    def add(self, digest: str, outcome: Outcome) -> None:
        """Keep what became of a point. It is in the file when this returns."""
        line = to_line(digest, outcome)
        self._file.seek(self._end)
        self._write(line)
        self._at[bytes.fromhex(digest)] = self._end
        self._end += len(line)
        if time.monotonic() - self._synced > SYNC_EVERY_S:
            self.sync()

    def sync(self) -> None:
        """Have the disk hold all of it."""
        os.fsync(self._file.fileno())
        self._synced = time.monotonic()

    def close(self) -> None:
        """Close the file, which stays."""
        if not self._file.closed:
            self.sync()
            self._close()

    def remove(self) -> None:
        """Close and delete the file."""
        self.path.unlink(missing_ok=True)
        self._close()

    def _close(self) -> None:
        self._file.close()
        self._reading.close()

    def _write(self, line: bytes) -> None:
        try:
            left = memoryview(line)
            while left:
                left = left[self._file.write(left) or 0 :]
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be written: {error.strerror or error} (finished points)") from error

    def _lock(self) -> None:
        with contextlib.suppress(ImportError):  # no such locks on Windows
            import fcntl

            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(f"{self.path}: another sweep is writing it (finished points)") from None

    def _read(self) -> int:
        """Take in the lines that are there. The place where the next one goes."""
        header = self._reading.readline()
        if header != HEADER:
            if not HEADER.startswith(header):
                raise ConfigError(f"{self.path}: holds no finished points of a sweep; must be moved away")
            self._file.seek(0)
            self._write(HEADER)
            return len(HEADER)
        end = len(HEADER)
        for line in self._reading:
            if not line.endswith(b"\n"):
                break
            found = from_line(line)
            if found is not None:
                self._at[bytes.fromhex(found[0])] = end
            end += len(line)
        self._file.truncate(end)
        return end
