"""Who computes the points of a sweep: threads of this process, whose engine runs without the interpreter's lock, or the
workers of a Dask cluster. Any other `concurrent.futures.Executor` does as well."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from hwmodels.errors import ConfigError

if TYPE_CHECKING:
    from distributed import Client

LOCAL = "local"
CONNECT_S = 15
IGNORING_INTERRUPTS = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
"""What local workers run first: a terminal interrupts them too, but they end with who started them."""
DASK_IN_FLIGHT = 256
"""Tasks that a cluster holds at a time: enough for as many workers, and for those that are still to come."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def threads(n: int | None = None) -> Iterator[Executor]:
    """`n` threads, or one a core. At the end, what has not begun is dropped, and what runs is not waited for."""
    pool = ThreadPoolExecutor(n or cores())
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def dask(address: str, n_workers: int | None = None) -> Iterator[Executor]:
    """A Dask cluster by the address of its scheduler, or "local": `n_workers` processes of this machine, one a core.

    Raises ConfigError where Dask is not installed, and where nobody answers at the address."""
    check_dask()
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # of a worker that dies, the sweep tells if it must
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"distributed(\.|$)")
        with _local(n_workers or cores()) if address == LOCAL else _connected(address) as client:
            yield client.get_executor(pure=False)


@contextmanager
def _local(n_workers: int) -> Iterator[Client]:
    from distributed import Client, LocalCluster

    how: dict[str, Any] = {
        "processes": True,
        "threads_per_worker": 1,
        "dashboard_address": None,
        "silence_logs": logging.CRITICAL,
    }
    how["preload"] = [IGNORING_INTERRUPTS]
    # Interrupted while it starts, the cluster leaves semaphores to multiprocessing's own process, which takes them
    # away and would say so; it is started with these options.
    sys.warnoptions.append("ignore:resource_tracker")
    with LocalCluster(n_workers=n_workers, **how) as cluster, Client(cluster) as client:
        yield client


@contextmanager
def _connected(address: str) -> Iterator[Client]:
    from distributed import Client

    try:
        client = Client(address, timeout=CONNECT_S)
    except (OSError, ValueError) as error:
        raise ConfigError(f"dask = {address!r}: no scheduler answers there ({_first_line(error)})") from None
    with client:
        yield client


def check_dask() -> None:
    """Raise ConfigError where Dask is not installed."""
    if find_spec("distributed") is None:
        raise ConfigError("dask: is not installed; pip install 'tilewalk[dask]'")


def lost() -> tuple[type[BaseException], ...]:
    """What comes of a task whose worker died, or that was dropped."""
    distributed = sys.modules.get("distributed")
    killed = (distributed.KilledWorker,) if distributed is not None else ()
    return BrokenExecutor, CancelledError, *killed


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
