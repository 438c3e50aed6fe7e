"""Kernels of a stream in closed form are what the events of the host's program give."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels import load_gpu
from hwmodels.errors import ConfigError
from sim.host import play
from sim.program import LAUNCH_MODES, Launch, Part, Program, Tensor
from sim.stream import Issued, play_kernels

GPU = load_gpu("h200_sxm")


def _constant(time_s: float) -> Callable[[float], float]:
    return lambda rate: time_s


KERNELS = st.lists(st.tuples(st.floats(1e-7, 1e-3), st.booleans()), min_size=1, max_size=30)


@pytest.mark.small
@given(kernels=KERNELS, launch=st.sampled_from(LAUNCH_MODES))
@settings(max_examples=60, deadline=None)
def test_closed_form_and_events_agree(kernels: list[tuple[float, bool]], launch: str):
    issued = [Issued(f"k{i}", time_s, first) for i, (time_s, first) in enumerate(kernels)]
    launches = tuple(
        Launch(each.name, ("x",), ("x",), (Part(_constant(each.time_s)),), first=each.first) for each in issued
    )
    events = play(Program((Tensor("x", 100),), launches, launch_mode=launch), GPU)
    closed = play_kernels(issued, 100, GPU, launch)
    assert closed.end_to_end_s == pytest.approx(events.end_to_end_s, rel=1e-12)
    assert closed.compute_idle_s == pytest.approx(events.compute_idle_s, rel=1e-9, abs=1e-15)
    assert closed.hbm_peak_bytes == events.hbm_peak_bytes
    assert [(span.lane, span.name) for span in closed.spans] == [(span.lane, span.name) for span in events.spans]
    for one, other in zip(closed.spans, events.spans, strict=True):
        assert (one.start_s, one.end_s) == pytest.approx((other.start_s, other.end_s), rel=1e-9, abs=1e-15)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match="HBM of h200_sxm"):
        play_kernels([Issued("k", 1e-6, True)], 10**12, GPU, "graph")
