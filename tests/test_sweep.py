"""Sweeps: points in order, every point once, the same table however it came about."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from threading import Event, Timer
from typing import Any

import pytest

from hwmodels.catalog import load_gpu
from hwmodels.errors import ConfigError
from hwmodels.levers import variant
from sim.call import Options
from sim.cases import Figures, GemmCase, LlmCase
from sim.schedule.config import KernelConfig
from sim.sweep import executors
from sim.sweep.cache import BLOCK_BYTES, Cache, cache_folder
from sim.sweep.digest import digest_of, gpu_digest, source_digest
from sim.sweep.journal import HEADER, Journal
from sim.sweep.outcome import Outcome, from_line, to_line
from sim.sweep.points import Hardware, Parts, Point, Product, Sweep, workloads
from sim.sweep.run import Counts, run_sweep
from sim.sweep.table import Table
from workloads.gemm import Gemm
from workloads.llm import Llm
from workloads.models.catalog import load_model

TILE = Parts.of(family="multistage", block_m=64, block_n=64, block_k=64)
NARROW = Hardware("h200_sxm", ("hbm.bandwidth_gb_per_s=*0.5",))


def case(**fields: Any) -> GemmCase:
    return GemmCase(Gemm(**fields))


def gemms(n: int = 6, **fields: Any) -> Any:
    """So many products of different m."""
    return workloads({"m": [64 * i for i in range(1, n + 1)], "n": 128, "k": 256, **fields}, case)


def sweep(n: int = 6) -> Sweep:
    return Sweep((Product(gemms(n), (Hardware(), NARROW), (TILE,)),))


def csv_of(table: Table, folder: Path) -> bytes:
    table.to_csv(folder / "table.csv")
    return (folder / "table.csv").read_bytes()


def rows(table: Table) -> list[dict[str, Any]]:
    return [dict(zip(table.columns, row, strict=True)) for row in table]


class Counting:
    """Stands in for `GemmCase.figures`: counts calls, answers with figures that tell points apart."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.stop_after: int | None = None

    def __call__(self, work: GemmCase, gpu: Any, kept: Any = None) -> Figures:
        if self.stop_after is not None and len(self.asked) >= self.stop_after:
            raise KeyboardInterrupt
        self.asked.append(work.gemm.m)
        moved = dict.fromkeys(("hbm", "l2", "sm", "smem"), work.gemm.m)
        return Figures(work.gemm.m / 3, 0.1, 0, {"tensor": 1.0}, moved, {})


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    stub = Counting()

    def figures(work: GemmCase, gpu: Any, kept: Any = None) -> Figures:
        return stub(work, gpu, kept)

    monkeypatch.setattr(GemmCase, "figures", figures)
    monkeypatch.setattr("sim.sweep.run.WORTH_KEEPING_S", 0.0)
    return stub


# Points.
def test_points_come_in_a_fixed_order() -> None:
    both = Sweep((Product([case(m=m, n=1, k=1) for m in (1, 2)], (Hardware(), NARROW), (None, TILE)),))
    found = [(point.hardware.sets, point.workload.gemm.m, point.config) for point in both]  # type: ignore[union-attr]
    expected = [(sets, m, config) for sets in ((), NARROW.sets) for m in (1, 2) for config in (None, TILE)]
    assert found == expected
    assert both.n_points == 8


def test_a_product_of_any_size_is_not_made_before_it_is_asked_for() -> None:
    sizes = list(range(1, 10_001))
    large = Sweep((Product(workloads({"m": sizes, "n": sizes, "k": sizes}, case)),))
    assert large.n_points == 10**12
    first = next(iter(large)).workload
    assert isinstance(first, GemmCase)
    assert first.gemm == Gemm(1, 1, 1)


def test_a_list_of_points_is_a_sweep() -> None:
    points = [Point(NARROW, case(m=8, n=8, k=8), None), Point(Hardware(), case(m=16, n=8, k=8), TILE)]
    assert list(Sweep.of(points)) == points


# The table.
def test_each_row_says_which_point_it_is_and_what_simulating_it_gives() -> None:
    table = run_sweep(sweep(2))
    found = rows(table)
    assert table.columns[:8] == ("m", "n", "k", "dtype", "gpu", "hbm.bandwidth_gb_per_s_factor", "family", "block_m")
    assert [(row["m"], row["hbm.bandwidth_gb_per_s_factor"]) for row in found] == [
        (64, None),
        (128, None),
        (64, 0.5),
        (128, 0.5),
    ]
    gpu = variant(load_gpu("h200_sxm"), NARROW.sets)
    named = found[3]["tiles"]
    assert named.startswith("multistage_64x64x64")
    from sim.schedule.choose import complete

    gemm = Gemm(128, 128, 256)
    config = complete(gemm, gpu, family="multistage", block_m=64, block_n=64, block_k=64)
    figures = GemmCase(gemm, config=config).figures(gpu)
    assert (found[3]["time_s"], found[3]["energy_j"]) == (figures.time_s, figures.energy_j)
    assert (found[3]["hbm_bytes"], found[3]["limiter"]) == (figures.bytes["hbm"], figures.limiter)
    assert {row["error"] for row in found} == {None}


def test_columns_are_what_differs_from_the_usual(counting: Counting) -> None:
    usual = run_sweep(Sweep((Product([case(m=1, n=1, k=1)]),)))
    assert usual.columns[:6] == ("m", "n", "k", "dtype", "gpu", "time_s")
    odd = [case(m=1, n=1, k=1), GemmCase(Gemm(1, 1, 1, epilogue="bias"), Options(clock_mhz=1000.0))]
    table = run_sweep(Sweep((Product(odd),)))
    assert [(row["epilogue"], row["clock_mhz"]) for row in rows(table)] == [("none", None), ("bias", 1000.0)]


def test_a_model_has_its_own_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = dict.fromkeys(("hbm", "l2", "sm", "smem"), 1)
    monkeypatch.setattr(LlmCase, "figures", lambda *_: Figures(1.0, 1.0, 8, {"idle": 1.0}, moved, {}))
    model = load_model("llama3-8b")
    both = [LlmCase(Llm(model, "decode", context=64)), LlmCase(Llm(model, "prefill", tokens=32))]
    table = run_sweep(Sweep((Product(both),)))
    assert [(row["model"], row["phase"], row["context"], row["tokens"]) for row in rows(table)] == [
        ("llama3-8b", "decode", 64, None),
        ("llama3-8b", "prefill", None, 32),
    ]


def test_what_cannot_be_simulated_is_a_row_with_the_reason(counting: Counting) -> None:
    odd = workloads({"m": 64, "n": 64, "k": [64, 33], "weights_format": "int4"}, case)
    hardware = (Hardware(), Hardware("h200_sxm", ("l2.capacity_mib=-1",)))
    table = run_sweep(Sweep((Product(odd, hardware), Product([case(m=1, n=1, k=1)], configs=(Parts.of(block_m=3),)))))
    told = [row["error"] for row in rows(table)]
    assert told[0] is None
    assert "k = 33: must be a multiple of 2" in told[1]
    assert all("l2.capacity_mib = -1" in text for text in told[2:4])
    assert "tile = 3: must be a multiple of 16" in told[4]
    assert table.n_errors == 4
    assert table.counts.refused == 2


def test_configurations_are_for_gemms() -> None:
    model = LlmCase(Llm(load_model("llama3-8b"), "decode", context=64))
    (row,) = rows(run_sweep(Sweep((Product([model], configs=(TILE,)),))))
    assert "must not be given with a model" in row["error"]


@pytest.mark.extra
def test_csv_parquet_and_pandas_say_the_same(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pandas = pytest.importorskip("pandas")
    table = run_sweep(Sweep((*sweep(2).products, Product([case(m=10**5, n=10**5, k=10**5, dtype="fp64")]))))
    assert table.n_errors == 1
    table.to_csv(tmp_path / "t.csv")
    table.to_parquet(tmp_path / "t.parquet")
    read = parquet.read_table(tmp_path / "t.parquet").to_pylist()
    assert read == rows(table)
    frame = table.to_pandas()
    assert list(frame.columns) == list(table.columns)
    assert frame["time_s"].tolist()[:4] == [row["time_s"] for row in read[:4]]
    assert frame["hbm_bytes"].dtype == "Int64"
    again = pandas.read_csv(tmp_path / "t.csv")
    assert again["time_s"].tolist()[:4] == pytest.approx(frame["time_s"].tolist()[:4], rel=1e-15)


# However it is run.
def test_threads_tasks_and_order_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = csv_of(run_sweep(sweep(), threads=1), tmp_path)
    assert csv_of(run_sweep(sweep(), threads=3, in_flight=7), tmp_path) == expected
    monkeypatch.setattr("sim.sweep.run.MOST_IN_TASK", 1)
    assert csv_of(run_sweep(sweep(), threads=2), tmp_path) == expected

    class Backwards(ThreadPoolExecutor):
        """Ends what was handed out last first."""

        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            waited.append((made := Future[Any](), fn, args))
            if len(waited) == 4:
                for future, run, given in reversed(waited):
                    future.set_result(run(*given))
                waited.clear()
            return made

    waited: list[tuple[Future[Any], Any, Any]] = []
    assert csv_of(run_sweep(sweep(), executor=Backwards(1), in_flight=4), tmp_path) == expected


def test_no_more_is_out_than_asked_for(counting: Counting) -> None:
    most = 0

    class Watched(ThreadPoolExecutor):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            nonlocal most
            out.append(future := super().submit(fn, *args, **kwargs))
            most = max(most, sum(not each.done() for each in out))
            return future

    out: list[Future[Any]] = []
    with Watched(2) as pool:
        run_sweep(Sweep((Product(gemms(500)),)), executor=pool, in_flight=3)
    assert 1 <= most <= 3
    assert len(counting.asked) == 500


# Interrupted.
@pytest.mark.parametrize("after", [0, 1, 5, 11])
def test_an_interrupted_sweep_goes_on_where_it_was(after: int, counting: Counting, tmp_path: Path) -> None:
    expected = csv_of(run_sweep(sweep(), threads=1), tmp_path)
    counting.asked.clear()
    journal = tmp_path / "points"

    def interrupt(counts: Counts) -> None:
        if counts.done >= after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(sweep(), journal, threads=1, in_flight=1, progress=interrupt)
    finished = len(Journal(journal))
    table = run_sweep(sweep(), journal)
    assert csv_of(table, tmp_path) == expected
    assert table.counts == Counts(12, simulated=12 - finished, kept=finished)
    table.discard()
    assert not journal.exists()


def test_a_sweep_told_to_stop_waits_for_nobody_and_goes_on_later(counting: Counting, tmp_path: Path) -> None:
    class Slow(Executor):
        """Does one task, and never the next."""

        def __init__(self) -> None:
            self.out: list[Future[Any]] = []

        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            self.out.append(Future())
            if len(self.out) == 1:
                self.out[0].set_result(fn(*args))
            else:
                Timer(0.05, stop.set).start()
            return self.out[-1]

    slow, stop, journal = Slow(), Event(), tmp_path / "points"
    with pytest.raises(CancelledError):
        run_sweep(sweep(), journal, executor=slow, in_flight=1, stop=stop)
    assert [future.cancelled() for future in slow.out] == [False, True]
    table = run_sweep(sweep(), journal)
    assert (table.counts.kept, table.counts.simulated) == (1, 11)
    table.discard()


def test_a_changed_sweep_keeps_the_points_it_shares(counting: Counting, tmp_path: Path) -> None:
    run_sweep(sweep(4), tmp_path / "points").close()
    counting.asked.clear()
    table = run_sweep(sweep(6), tmp_path / "points")
    assert sorted(counting.asked) == [320, 320, 384, 384]
    assert [row["m"] for row in rows(table)] == 2 * [64, 128, 192, 256, 320, 384]


def test_the_same_point_twice_is_simulated_once(counting: Counting) -> None:
    table = run_sweep(Sweep((*sweep(3).products, *sweep(3).products)))
    assert len(counting.asked) == 6
    assert [row["time_s"] for row in rows(table)][:6] == [row["time_s"] for row in rows(table)][6:]


# The file of finished points.
DIGESTS = [f"{i:064x}" for i in range(4)]
FOUND = Outcome(0.1 + 0.2, 1e-300, 3, "tensor", 1, 2, 3, 2**60, "tile", None)


def test_a_half_written_line_is_cut_off_and_a_harmed_one_is_not_known(tmp_path: Path) -> None:
    path = tmp_path / "points"
    with Journal(path) as journal:
        for digest in DIGESTS:
            journal.add(digest, FOUND)
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    harmed = lines[2].replace(b"tensor", b"tenser")
    path.write_bytes(b"".join((lines[0], lines[1], harmed, b"\0junk\n", lines[3], lines[4][:-20])))
    with Journal(path) as journal:
        assert [digest in journal for digest in DIGESTS] == [True, False, True, False]
        assert journal[DIGESTS[2]] == FOUND
        journal.add(DIGESTS[3], FOUND)
        assert journal[DIGESTS[3]] == FOUND
    with Journal(path) as journal:
        assert len(journal) == 3


@pytest.mark.parametrize("n_bytes", [0, 1, len(HEADER) - 1, len(HEADER)])
def test_a_file_that_was_only_begun_is_used(n_bytes: int, tmp_path: Path) -> None:
    path = tmp_path / "points"
    path.write_bytes(HEADER[:n_bytes])
    with Journal(path) as journal:
        journal.add(DIGESTS[0], FOUND)
    with Journal(path) as journal:
        assert journal[DIGESTS[0]] == FOUND


def test_another_file_is_left_alone(tmp_path: Path) -> None:
    (path := tmp_path / "points").write_text("my notes\n")
    with pytest.raises(ConfigError, match="holds no finished points"):
        Journal(path)
    assert path.read_text() == "my notes\n"
    with pytest.raises(ConfigError, match="cannot be written: No such file"):
        Journal(tmp_path / "no" / "points")


def test_one_process_writes_it_at_a_time(tmp_path: Path) -> None:
    with Journal(tmp_path / "points"), pytest.raises(ConfigError, match="another sweep is writing it"):
        Journal(tmp_path / "points")


def test_outcomes_survive_being_written_exactly() -> None:
    assert from_line(to_line(DIGESTS[0], FOUND)) == (DIGESTS[0], FOUND)
    refused = Outcome(error="line\nend, ü and \ud800")
    assert from_line(to_line(DIGESTS[0], refused)) == (DIGESTS[0], refused)
    assert from_line(b"[]\n") is from_line(b"\xff\n") is from_line(b'{"point": 1}\n') is None


# The cache.
def test_a_second_sweep_takes_everything_from_the_cache(counting: Counting, tmp_path: Path) -> None:
    expected = csv_of(run_sweep(sweep(), cache=Cache(tmp_path)), tmp_path)
    counting.asked.clear()
    table = run_sweep(sweep(), cache=Cache(tmp_path))
    assert counting.asked == []
    assert table.counts == Counts(12, cached=12)
    assert csv_of(table, tmp_path) == expected


def test_a_corrupt_entry_is_computed_again(counting: Counting, tmp_path: Path) -> None:
    run_sweep(sweep(), cache=Cache(tmp_path))
    entries = sorted(tmp_path.rglob("*.json"))
    whole = entries[2].read_bytes()
    entries[0].write_bytes(b"")
    entries[1].write_bytes(entries[1].read_bytes().replace(b"0.1", b"0.2"))
    entries[2].write_bytes(entries[3].read_bytes())
    entries[3].unlink()
    counting.asked.clear()
    table = run_sweep(sweep(), cache=Cache(tmp_path))
    assert len(counting.asked) == 4
    assert table.counts.cached == 8
    assert entries[2].read_bytes() == whole


def test_a_cache_that_cannot_be_written_is_told_once(counting: Counting, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    told: list[str] = []
    table = run_sweep(sweep(), cache=Cache(tmp_path / "file" / "cache", tell=told.append))
    assert table.counts.simulated == 12
    assert len(told) == 1
    assert told[0].endswith("cannot be written (Not a directory); goes on without")


def test_the_cache_is_bounded_and_loses_the_oldest(tmp_path: Path) -> None:
    cache = Cache(tmp_path, most_bytes=10 * BLOCK_BYTES)
    for i in range(40):
        digest = f"{i:064x}"
        cache.put(digest, FOUND)
        if cache.get(digest):
            os.utime(cache._path(digest), (i, i))
    cache.prune()
    left = [i for i in range(40) if cache.get(f"{i:064x}")]
    assert 9 <= len(left) <= 10
    assert left == list(range(40 - len(left), 40))


def test_several_processes_share_a_cache(tmp_path: Path) -> None:
    with ProcessPoolExecutor(2) as pool:
        assert all(pool.map(_put_and_get, [tmp_path] * 4))
    assert list(tmp_path.rglob("*.tmp")) == []


def _put_and_get(folder: Path) -> bool:
    cache = Cache(folder, most_bytes=20 * BLOCK_BYTES)
    for i in range(200):
        digest = f"{i % 40:064x}"
        cache.put(digest, FOUND)
        if cache.get(digest) not in (FOUND, None):
            return False
    return True


def test_the_cache_folder_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWALK_CACHE", "there")
    assert cache_folder() == Path("there")
    monkeypatch.delenv("TILEWALK_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "caches")
    assert cache_folder() == Path("caches/tilewalk")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "tilewalk"


# Digests.
def test_a_digest_tells_apart_all_that_matters() -> None:
    gpu = load_gpu("h200_sxm")
    model = load_model("llama3-8b")
    gpus = [gpu, variant(gpu, ["l2.capacity_mib=49"]), load_gpu("h100_sxm")]
    works: list[Any] = [
        case(m=1, n=2, k=3),
        case(m=1, n=3, k=2),
        GemmCase(Gemm(1, 2, 3), Options(without=frozenset({"clock"}))),
        GemmCase(Gemm(1, 2, 3), family="multistage"),
        LlmCase(Llm(model, "decode")),
        LlmCase(Llm(load_model("llama3-8b-2layers"), "decode")),
    ]
    configs = [None, TILE, KernelConfig("multistage", 64, 64, 64, 3, 4), KernelConfig("multistage", 64, 64, 64, 4, 4)]
    found = [digest_of(work, config, gpu_digest(each)) for each in gpus for work in works for config in configs]
    assert len(set(found)) == len(found) == 72
    again = digest_of(case(m=1, n=2, k=3), None, gpu_digest(load_gpu("h200_sxm")))
    assert again == found[0]


def test_sources_of_values_are_no_part_of_a_digest() -> None:
    gpu = load_gpu("h200_sxm")
    same = variant(gpu, [f"l2.capacity_mib={gpu.l2.capacity_mib}"])
    assert same.provenance != gpu.provenance
    assert gpu_digest(same) == gpu_digest(gpu)
    assert len(source_digest()) == 64


# Executors.
def test_processes_do_as_well(tmp_path: Path) -> None:
    expected = csv_of(run_sweep(sweep(3), threads=1), tmp_path)
    with ProcessPoolExecutor(2) as pool:
        assert csv_of(run_sweep(sweep(3), executor=pool), tmp_path) == expected


def test_an_executor_that_breaks_is_one_error_and_loses_nothing(tmp_path: Path) -> None:
    journal = tmp_path / "points"
    expected = csv_of(run_sweep(sweep(3), threads=1), tmp_path)
    with ProcessPoolExecutor(1) as pool:

        def kill(counts: Counts) -> None:
            if counts.simulated >= 2:
                for pid in list(pool._processes):
                    os.kill(pid, signal.SIGKILL)

        with pytest.raises(ConfigError, match="finished points are kept"):
            run_sweep(sweep(3), journal, executor=pool, in_flight=1, progress=kill)
    table = run_sweep(sweep(3), journal)
    assert table.counts.kept >= 2
    assert csv_of(table, tmp_path) == expected


def test_a_worker_with_other_code_must_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    class Elsewhere(ThreadPoolExecutor):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            return super().submit(fn, args[0]._replace(source="other"))

    with Elsewhere(1) as pool, pytest.raises(ConfigError, match="another version of Tilewalk"):
        run_sweep(sweep(1), executor=pool)


class Losing(Executor):
    """Loses every task of more than `keeps` points, and what has `m` in it."""

    def __init__(self, m: int | None = None) -> None:
        self.m, self.lost = m, 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = Future[Any]()
        if len(args[0].works) > 1 or any(work.workload.gemm.m == self.m for work in args[0].works):
            self.lost += 1
            future.cancel()
            future.set_running_or_notify_cancel()
        else:
            future.set_result(fn(*args))
        return future


def test_lost_points_are_run_again_one_by_one(counting: Counting) -> None:
    losing = Losing()
    table = run_sweep(Sweep((Product(gemms(200)),)), executor=losing)
    assert losing.lost > 0
    assert sorted(counting.asked) == [64 * i for i in range(1, 201)]
    assert table.counts.simulated == 200


def test_a_point_that_kills_its_workers_ends_the_sweep_and_keeps_the_others(counting: Counting, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="3 died, or were lost, with the same point; finished points are kept"):
        run_sweep(sweep(6), tmp_path / "points", executor=Losing(m=192), in_flight=1)
    with Journal(tmp_path / "points") as journal:
        assert len(journal) >= 2


def test_without_dask_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install 'tilewalk\[dask\]'"), executors.dask("local"):
        pass


@pytest.mark.slow
@pytest.mark.extra
def test_a_cluster_that_loses_a_worker_gives_the_same_table(tmp_path: Path) -> None:
    """Several processes of a real cluster, one of which is killed in the middle."""
    pytest.importorskip("distributed")
    many = Sweep((Product(gemms(40), (Hardware(), NARROW), (TILE,)),))
    expected = csv_of(run_sweep(many), tmp_path)
    journal = tmp_path / "points"
    killed: list[int] = []
    with executors.dask("local", n_workers=3) as pool:
        client: Any = pool._client  # type: ignore[attr-defined]
        pids = sorted(client.run(os.getpid).values())

        def kill_one(counts: Counts) -> None:
            if counts.simulated >= 5 and not killed:
                killed.append(pids[0])
                os.kill(pids[0], signal.SIGKILL)

        table = run_sweep(many, journal, executor=pool, in_flight=12, progress=kill_one)
        deadline = time.monotonic() + 20
        while len(now := set(client.run(os.getpid).values())) < 3 and time.monotonic() < deadline:
            time.sleep(0.2)
    assert killed
    assert killed[0] not in now
    assert table.counts == Counts(80, simulated=80)
    assert csv_of(table, tmp_path) == expected
    points = [json.loads(line)["point"] for line in journal.read_bytes().splitlines()[1:]]
    assert len(points) == len(set(points)) == 80


@pytest.mark.extra
def test_nobody_at_the_address_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(executors, "CONNECT_S", 1)
    with pytest.raises(ConfigError, match="no scheduler answers there"), executors.dask("tcp://127.0.0.1:9"):
        pass
    with pytest.raises(ConfigError, match="no scheduler answers there"), executors.dask("not an address"):
        pass
