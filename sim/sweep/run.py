"""How a sweep goes: points that are not known yet are made into tasks, simulated, and kept as they come.

Which points share a task, who computes them and in what order they end changes nothing: a point's outcome depends on
the point alone, and the table is put together in the order of the points.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Executor, Future
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from threading import Event
from typing import NamedTuple

from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.cases import Figures, GemmCase
from sim.operation import kernels_on
from sim.schedule.choose import complete
from sim.schedule.config import KernelConfig
from sim.sweep import executors
from sim.sweep.cache import Cache
from sim.sweep.digest import digest_of, error_digest, gpu_digest, source_digest
from sim.sweep.journal import Journal
from sim.sweep.outcome import Outcome, outcome_of
from sim.sweep.points import Config, Point, Sweep, Workload
from sim.sweep.table import Columns, Table

TASK_S = 0.25
"""Seconds that a task should take, so that handing it out costs little beside."""
MOST_IN_TASK = 64
IN_FLIGHT_A_CORE = 2
STOP_S = 0.1
"""After which a run that waits for its workers sees that it was told to end."""
WORTH_KEEPING_S = 0.002
"""Of a point, to go into the cache, where it costs a tenth to a quarter of that."""
MOST_ATTEMPTS = 3
"""Of a point whose worker dies."""
FORGET_EVERY = 256
"""Points of models after which a process forgets their kernels: nearby points share them, and memory is bounded."""
KEPT = "finished points are kept, and the same sweep goes on from there"


@dataclass
class Counts:
    """Points so far, by where their outcomes are from."""

    total: int
    simulated: int = 0
    cached: int = 0
    kept: int = 0
    """Finished by an earlier run of the sweep, or the same as another point."""
    refused: int = 0
    """Whose GPU cannot be; nothing to simulate."""

    @property
    def done(self) -> int:
        """All of these."""
        return self.simulated + self.cached + self.kept + self.refused


Progress = Callable[[Counts], None]


class Work(NamedTuple):
    """One point to simulate, by digest."""

    digest: str
    workload: Workload
    config: Config


class Task(NamedTuple):
    """Points that are simulated one after another on one GPU."""

    gpu: Gpu
    works: tuple[Work, ...]
    source: str
    """`source_digest` of who asks: a worker with other code must not answer."""
    attempt: int = 1


def run_sweep(
    sweep: Sweep,
    journal: Path | None = None,
    *,
    executor: Executor | None = None,
    threads: int | None = None,
    in_flight: int | None = None,
    cache: Cache | None = None,
    progress: Progress | None = None,
    stop: Event | None = None,
) -> Table:
    """Simulate every point of a sweep that is not known from `journal`, the file of its finished points, or `cache`.

    `journal`: None for a temporary file; otherwise it stays, for a later run to go on from, until `Table.discard`.
    `executor`: any; without one, `threads` of this process (None: one a core). `in_flight`: tasks that are out at a
    time, of up to 64 points. `cache` is asked about every point, and takes those that took 2 ms or more. Points that
    cannot be simulated are rows with the reason. `stop`, set by another thread, ends the run: what is out is dropped.

    Raises CancelledError after `stop`, and ConfigError where `journal` cannot be written, where workers have other code
    than this process, and where a point's worker died 3 times.
    """
    folder = None if journal else TemporaryDirectory(prefix="tilewalk-")
    kept = Journal(Path(folder.name, "points") if folder else Path(journal or ""))
    most = in_flight or IN_FLIGHT_A_CORE * (threads or executors.cores())
    try:
        with nullcontext(executor) if executor is not None else executors.threads(threads) as pool:
            run = _Run(sweep, kept, pool, most, cache, progress, stop or Event())
            run.go()
    except BaseException:
        kept.close()
        raise
    return Table(sweep, run.columns, run.order, kept, run.counts, folder)


def simulate(task: Task) -> tuple[list[Outcome], float]:
    """Outcomes of a task's points, and the seconds they took. Raises ConfigError in a process with other code."""
    if task.source != source_digest():
        raise ConfigError("workers: have another version of Tilewalk or of its libraries; must have the same")
    began = time.perf_counter()
    return [_outcome(work, task.gpu) for work in task.works], time.perf_counter() - began


_points = itertools.count(1)


def _outcome(work: Work, gpu: Gpu) -> Outcome:
    if not next(_points) % FORGET_EVERY:
        kernels_on.cache_clear()
    try:
        return outcome_of(_figures(work, gpu))
    except ConfigError as error:
        return Outcome(error=str(error))


def _figures(work: Work, gpu: Gpu) -> Figures:
    case, config = work.workload, work.config
    if config is None:
        return case.figures(gpu)
    if not isinstance(case, GemmCase):
        raise ConfigError("kernel configuration: must not be given with a model, whose kernels are chosen (sweep)")
    if not isinstance(config, KernelConfig):
        given = dict(config.fields)
        config = complete(case.gemm, gpu, family=given.pop("family", case.family), **given)
    return replace(case, config=config).figures(gpu)


class _Run:
    """One run of a sweep: what is known, what is out, what was counted."""

    def __init__(
        self,
        sweep: Sweep,
        journal: Journal,
        pool: Executor,
        in_flight: int,
        cache: Cache | None,
        progress: Progress | None,
        stop: Event,
    ) -> None:
        self.sweep, self.counts = sweep, Counts(sweep.n_points)
        self.columns, self.order = Columns(sweep.shown), bytearray()
        self._journal, self._pool, self._most, self._cache, self._tell = journal, pool, in_flight, cache, progress
        self._stop = stop
        self._out: dict[Future[tuple[list[Outcome], float]], Task] = {}
        self._ended: SimpleQueue[Future[tuple[list[Outcome], float]]] = SimpleQueue()
        self._asked: set[str] = set()
        """Digests of the points that are out."""
        self._point_s = TASK_S
        """About how long a point takes."""

    def go(self) -> None:
        """Simulate what is not known, until all of it is in the journal."""
        try:
            for task in self._tasks():
                while len(self._out) >= self._most:
                    self._collect()
                self._submit(task)
            while self._out:
                self._collect()
            self._journal.sync()
        finally:
            for future in self._out:
                future.cancel()

    def _tasks(self) -> Iterator[Task]:
        """Points to simulate, some at a time."""
        source = source_digest()
        for hardware, points in itertools.groupby(self.sweep, key=lambda point: point.hardware):
            try:
                gpu = hardware.resolved()
            except ConfigError as error:
                self._refuse(points, error)
                continue
            waiting: list[Work] = []
            for work in self._unknown(points, gpu_digest(gpu)):
                waiting.append(work)
                if len(waiting) >= min(MOST_IN_TASK, TASK_S / self._point_s):
                    yield Task(gpu, tuple(waiting), source)
                    waiting.clear()
            if waiting:
                yield Task(gpu, tuple(waiting), source)

    def _unknown(self, points: Iterable[Point], of_gpu: str) -> Iterator[Work]:
        """Of points on one GPU, those whose outcome nobody knows yet."""
        for point in points:
            digest = self._noted(point, of_gpu)
            if digest in self._journal or digest in self._asked:
                self.counts.kept += 1
            elif self._cache is not None and (found := self._cache.get(digest)) is not None:
                self._journal.add(digest, found)
                self.counts.cached += 1
            else:
                self._asked.add(digest)
                yield Work(digest, point.workload, point.config)
                continue
            self._progress()

    def _refuse(self, points: Iterable[Point], error: ConfigError) -> None:
        """Points on a GPU that cannot be."""
        of_gpu = error_digest(error)
        for point in points:
            digest = self._noted(point, of_gpu)
            if digest not in self._journal:
                self._journal.add(digest, Outcome(error=str(error)))
            self.counts.refused += 1
            self._progress()

    def _noted(self, point: Point, of_gpu: str) -> str:
        """The digest of the next point; what the table needs to know of it is kept."""
        digest = digest_of(point.workload, point.config, of_gpu)
        self.order += bytes.fromhex(digest)
        self.columns.note(point)
        return digest

    def _submit(self, task: Task) -> None:
        try:
            future = self._pool.submit(simulate, task)
        except RuntimeError as error:  # BrokenExecutor is one
            raise ConfigError(f"workers: are gone ({error}); {KEPT}") from error
        self._out[future] = task
        future.add_done_callback(self._ended.put)

    def _collect(self) -> None:
        """Wait for a task and keep what it found."""
        future = self._next()
        task = self._out.pop(future)
        try:
            outcomes, seconds = future.result()
        except executors.lost():
            self._again(task)
            return
        self._point_s = max(1e-6, seconds / len(outcomes))
        for work, outcome in zip(task.works, outcomes, strict=True):
            self._asked.discard(work.digest)
            self._journal.add(work.digest, outcome)
            if self._cache is not None and self._point_s >= WORTH_KEEPING_S:
                self._cache.put(work.digest, outcome)
            self.counts.simulated += 1
        self._progress()

    def _next(self) -> Future[tuple[list[Outcome], float]]:
        """A task that has ended. Raises CancelledError where the run was told to end."""
        while not self._stop.is_set():
            with suppress(Empty):
                return self._ended.get(timeout=STOP_S)
        raise CancelledError

    def _again(self, task: Task) -> None:
        """Hand out the points of a worker that died once more, each by itself: one of them may be to blame."""
        if task.attempt == MOST_ATTEMPTS:
            raise ConfigError(f"workers: {MOST_ATTEMPTS} died, or were lost, with the same point; {KEPT}")
        for work in task.works:
            self._submit(task._replace(works=(work,), attempt=task.attempt + 1))

    def _progress(self) -> None:
        if self._stop.is_set():
            raise CancelledError
        if self._tell:
            self._tell(self.counts)
