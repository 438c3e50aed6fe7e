"""The coarse world, in SimPy: a host thread, PCIe copies, streams, HBM allocation and kernels taken as whole.

What is modelled
- The host thread issues commands in order. A stream launch costs it `launch.stream_us`; a CUDA graph is launched
  once for that price; an eager program spends `launch.eager_us` on the first launch of each operation. At the end it
  waits for the GPU, which costs what `launch.sync_us` holds beyond one launch.
- Streams run their commands in order; a command may also wait for commands of other streams (events).
- One copy engine a direction, first come first served. A copy takes a set-up time (`pcie.copy_latency_us`, the call
  included) and then moves at the measured rate of its kind. Pinned copies are asynchronous. Pageable ones pass
  through a bounce buffer that the host thread fills (or empties), so it is blocked until they end; their rate is the
  one measured for the whole of that.
- Kernels run one at a time, at least `launch.graph_us` apart. How long one takes is asked of a callable (the seam to
  the fine engine) that is given the HBM rate taken by copies in flight. When that rate changes during a kernel, the
  rest of its work goes on at the new speed.
- HBM holds tensors up to `hbm.capacity_gb`. Memory is allotted and freed in stream order: a copy's target when the
  copy starts, a kernel's outputs when the kernel does. Exact bytes, without pages or fragmentation.

Not modelled: other processes on the host, NUMA, page faults, several GPUs behind one switch.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import simpy

from hwmodels.errors import ConfigError
from sim.program import KernelTime, Launch, Part, Program
from sim.result import HostSpan

if TYPE_CHECKING:
    from hwmodels.spec import Gpu

Work = Generator[simpy.Event, Any, None]
"""Something that takes time, as SimPy runs it."""
Issue = Generator[simpy.Event, Any, simpy.Event]
"""The host issuing a command; the value is the event of the command's end."""


@dataclass(frozen=True)
class HostOutcome:
    """What a program did, from its start until the host has seen the end of all its work.

    `compute_idle_s`: time in which no kernel ran; `copy_busy_s`: time in which a copy was under way, either direction.
    """

    end_to_end_s: float
    spans: tuple[HostSpan, ...]
    hbm_peak_bytes: int
    h2d_bytes: int
    d2h_bytes: int
    compute_idle_s: float
    copy_busy_s: float


def play(program: Program, gpu: Gpu) -> HostOutcome:
    """Run `program` on an idle `gpu`. Raises ConfigError where its tensors do not fit HBM, saying by how much."""
    if gpu.launch.sync_us < gpu.launch.stream_us:
        raise ConfigError(
            f"GPU {gpu.name}: launch.sync_us = {gpu.launch.sync_us:g} contains a launch, "
            f"so it must be at least launch.stream_us = {gpu.launch.stream_us:g}"
        )
    world = World(gpu)
    thread = _HostThread(world, program)
    world.env.run(until=world.env.process(thread.run()))
    spans = tuple(sorted(world.spans, key=lambda span: (span.start_s, span.end_s, span.lane, span.name)))
    end_s = world.env.now
    return HostOutcome(
        end_to_end_s=end_s,
        spans=spans,
        hbm_peak_bytes=world.hbm.peak_bytes,
        h2d_bytes=sum(span.bytes for span in spans if span.lane == "copy h2d"),
        d2h_bytes=sum(span.bytes for span in spans if span.lane == "copy d2h"),
        compute_idle_s=end_s - _covered_s([span for span in spans if span.lane == "stream"]),
        copy_busy_s=_covered_s([span for span in spans if span.lane.startswith("copy")]),
    )


class Hbm:
    """GPU memory by named allocation: what is held, and the high-water mark."""

    def __init__(self, gpu_name: str, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.peak_bytes = 0
        self._gpu_name = gpu_name
        self._held: dict[str, int] = {}

    @property
    def used_bytes(self) -> int:
        """Bytes held now."""
        return sum(self._held.values())

    def alloc(self, name: str, n_bytes: int) -> None:
        """Hold `n_bytes` under `name`. Raises ConfigError where they do not fit."""
        needed_bytes = self.used_bytes + n_bytes
        if needed_bytes > self.capacity_bytes:
            raise ConfigError(
                f"HBM of {self._gpu_name}: {name} ({n_bytes / 1e9:.3f} GB), with {self.used_bytes / 1e9:.3f} GB in use,"
                f" needs {needed_bytes / 1e9:.3f} GB; hbm.capacity_gb = {self.capacity_bytes / 1e9:g} is "
                f"{(needed_bytes - self.capacity_bytes) / 1e9:.3g} GB too small"
            )
        self._held[name] = n_bytes
        self.peak_bytes = max(self.peak_bytes, needed_bytes)

    def free(self, name: str) -> None:
        """Give back what `name` holds."""
        del self._held[name]


class World:
    """One host and one GPU at time 0, idle. `copy` and `kernel` are work to `enqueue` on streams named at will."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.env = simpy.Environment()
        self.hbm = Hbm(gpu.name, round(gpu.hbm.capacity_gb * 1e9))
        self.spans: list[HostSpan] = []
        self._last_of_stream: dict[str, simpy.Event] = {}
        self._copy_engines = {"h2d": simpy.Resource(self.env), "d2h": simpy.Resource(self.env)}
        self._sms = simpy.Resource(self.env)
        self._next_kernel_s = 0.0
        self._flow_gb_per_s = {"h2d": 0.0, "d2h": 0.0}
        self._flow_changed = self.env.event()

    def enqueue(self, stream: str, work: Work, after: Iterable[simpy.Event] = ()) -> simpy.Event:
        """Put `work` at the end of `stream`; it starts when all before it, and all of `after`, is done.

        Returns the event of its end, for other commands to wait on.
        """
        waits = [*after, *([self._last_of_stream[stream]] if stream in self._last_of_stream else [])]
        done = self.env.process(self._once(waits, work))
        self._last_of_stream[stream] = done
        return done

    def idle(self) -> simpy.Event:
        """The event that all work enqueued so far is done."""
        return self.env.all_of(list(self._last_of_stream.values()))

    def copy(self, name: str, n_bytes: int, direction: str, home: str) -> Work:
        """Copy `n_bytes` between HBM and `home` ("pinned" or "pageable"); direction "h2d" or "d2h"."""
        with self._copy_engines[direction].request() as turn:
            yield turn
            start_s = self.env.now
            yield self.env.timeout(self.gpu.pcie.copy_latency_us * 1e-6)
            rate_gb_per_s = copy_rate_gb_per_s(self.gpu, direction, home)
            self._set_flow(direction, rate_gb_per_s)
            yield self.env.timeout(n_bytes / (rate_gb_per_s * 1e9))
            self._set_flow(direction, 0.0)
            self.note(f"copy {direction}", name, start_s, n_bytes)

    def kernel(self, name: str, kernel_s: KernelTime) -> Work:
        """Run a kernel once the SMs are free and ready for another."""
        with self._sms.request() as turn:
            yield turn
            yield self.env.timeout(max(0.0, self._next_kernel_s - self.env.now))
            start_s = self.env.now
            yield from self._execute(kernel_s)
            self._next_kernel_s = self.env.now + self.gpu.launch.graph_us * 1e-6
            self.note("stream", name, start_s)

    def note(self, lane: str, name: str, start_s: float, n_bytes: int = 0) -> None:
        """Record that `name` ran in `lane` from `start_s` until now."""
        self.spans.append(HostSpan(lane, name, start_s, self.env.now, n_bytes))

    def _once(self, waits: Sequence[simpy.Event], work: Work) -> Work:
        yield self.env.all_of(waits)
        yield from work

    def _execute(self, kernel_s: KernelTime) -> Work:
        """Let a kernel's time pass; its speed follows the copies in flight."""
        work_left = 1.0
        while True:
            whole_s = kernel_s(sum(self._flow_gb_per_s.values()))
            start_s, rest_s = self.env.now, work_left * whole_s
            finished = self.env.timeout(rest_s)
            yield finished | self._flow_changed
            if finished.processed or self.env.now - start_s >= rest_s:
                return
            work_left -= (self.env.now - start_s) / whole_s

    def _set_flow(self, direction: str, gb_per_s: float) -> None:
        self._flow_gb_per_s[direction] = gb_per_s
        changed, self._flow_changed = self._flow_changed, self.env.event()
        changed.succeed()


def copy_rate_gb_per_s(gpu: Gpu, direction: str, home: str) -> float:
    """Rate of a large copy between HBM and `home` ("pinned" or "pageable"), GB/s."""
    return float(getattr(gpu.pcie, f"{home}_{direction}_gb_per_s"))


class _HostThread:
    """The host's side of a program: places tensors, issues copies and launches in order, waits for the end."""

    def __init__(self, world: World, program: Program) -> None:
        self._world = world
        self._program = program
        self._tensors = program.by_name()
        self._frees = program.freed_after()
        self._ready: dict[str, simpy.Event] = {}
        """For each tensor that is in HBM or on its way there, the event that its data are complete."""
        self._weight_parts: list[simpy.Event] = []
        """Ends of all kernels so far that use a piece of streamed weights."""
        self._n_launched = 0

    def run(self) -> Work:
        """Issue the whole program and wait for it."""
        self._place_residents()
        for launch, frees in zip(self._program.launches, self._frees, strict=True):
            yield from self._upload_reads(launch)
            yield from self._issue(launch, frees)
        yield from self._bring_results_back()
        yield from self._synchronise()

    def _place_residents(self) -> None:
        for name in self._program.residents():
            self._world.hbm.alloc(name, self._tensors[name].bytes)
            self._ready[name] = self._world.env.timeout(0.0)

    def _upload_reads(self, launch: Launch) -> Work:
        for tensor in [self._tensors[name] for name in launch.reads if name not in self._ready]:
            work = self._allot_and_copy(tensor.name, tensor.bytes, tensor.home)
            self._ready[tensor.name] = yield from self._issue_copy(work, "h2d", tensor.name, tensor.home)

    def _issue(self, launch: Launch, frees: tuple[str, ...]) -> Work:
        """Launch the parts in order: the first brings the outputs into being, the last frees what is read no more."""
        inputs = [self._ready[name] for name in launch.reads]
        creates = tuple(name for name in launch.writes if name not in self._ready)
        for i in range(len(launch.parts)):
            done = yield from self._issue_part(launch, i, inputs, creates, frees if i == len(launch.parts) - 1 else ())
            creates = ()
        self._ready.update(dict.fromkeys(launch.writes, done))

    def _issue_part(
        self, launch: Launch, i: int, after: list[simpy.Event], creates: tuple[str, ...], frees: tuple[str, ...]
    ) -> Issue:
        """Launch one part, behind the copy of its piece of the weights where they are streamed. Returns its end."""
        part = launch.parts[i]
        suffix = f" {i + 1}/{len(launch.parts)}" if launch.weights else ""
        if launch.weights:
            piece = launch.weights + suffix
            after = [*after, (yield from self._stream_in(launch, part, piece))]
            frees = (*frees, piece)
        yield from self._pay_launch(launch.name + suffix, launch.first and i == 0)
        work = self._compute(launch.name + suffix, part.kernel_s, creates, frees)
        done = self._world.enqueue("compute", work, after)
        if launch.weights:
            self._weight_parts.append(done)
        return done

    def _stream_in(self, launch: Launch, part: Part, piece: str) -> Issue:
        """Copy a piece of weights once the piece before the last is used up, so that two are in HBM at most."""
        home = self._tensors[launch.weights].home
        buffer_free = self._weight_parts[-2:-1]
        work = self._allot_and_copy(piece, part.weight_bytes, home)
        return (yield from self._issue_copy(work, "h2d", piece, home, buffer_free))

    def _allot_and_copy(self, name: str, n_bytes: int, home: str) -> Work:
        self._world.hbm.alloc(name, n_bytes)
        yield from self._world.copy(name, n_bytes, "h2d", home)

    def _issue_copy(self, work: Work, stream: str, name: str, home: str, after: Iterable[simpy.Event] = ()) -> Issue:
        """Enqueue a copy and return its end. A pageable one holds the host thread until then, a pinned one does not."""
        copied = self._world.enqueue(stream, work, after)
        if home == "pageable":
            start_s = self._world.env.now
            yield copied
            self._world.note("host", f"stage {name}", start_s)
        return copied

    def _compute(self, name: str, kernel_s: KernelTime, creates: tuple[str, ...], frees: tuple[str, ...]) -> Work:
        for tensor in creates:
            self._world.hbm.alloc(tensor, self._tensors[tensor].bytes)
        yield from self._world.kernel(name, kernel_s)
        for tensor in frees:
            self._world.hbm.free(tensor)

    def _pay_launch(self, name: str, first: bool) -> Work:
        """The host time of one launch; a graph is launched once, with its first kernel."""
        costs, mode = self._world.gpu.launch, self._program.launch_mode
        if mode != "graph" or self._n_launched == 0:
            start_s = self._world.env.now
            yield self._world.env.timeout((costs.eager_us if mode == "eager" and first else costs.stream_us) * 1e-6)
            self._world.note("host", f"launch {name}", start_s)
        self._n_launched += 1

    def _bring_results_back(self) -> Work:
        home = self._program.result_home
        for name in self._program.results() if home != "hbm" else ():
            work = self._world.copy(name, self._tensors[name].bytes, "d2h", home)
            yield from self._issue_copy(work, "d2h", name, home, [self._ready[name]])

    def _synchronise(self) -> Work:
        """Wait until the GPU has done everything, and then for the host to notice."""
        start_s = self._world.env.now
        yield self._world.idle()
        launch = self._world.gpu.launch
        yield self._world.env.timeout((launch.sync_us - launch.stream_us) * 1e-6)
        self._world.note("host", "synchronise", start_s)


def _covered_s(spans: Iterable[HostSpan]) -> float:
    """Length of the union of the spans' times."""
    covered_s, reached_s = 0.0, 0.0
    for span in sorted(spans, key=lambda span: span.start_s):
        covered_s += max(0.0, span.end_s - max(span.start_s, reached_s))
        reached_s = max(reached_s, span.end_s)
    return covered_s
