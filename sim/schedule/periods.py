"""Which kernels are sampled, and by what period: `sim.sampling` looks for its repetition."""

from __future__ import annotations

WHOLE_ITERATIONS, HUGE_ITERATIONS = 1_000_000, 20_000_000
"""k-iterations of agents up to which any kernel is simulated whole (0.1 s), and one that may drift (3 s)."""
QUICK_ITERATIONS = 200_000
"""k-iterations of agents up to which a kernel is simulated whole where quickness is asked for (20 ms)."""
LARGEST_PERIOD = 1_000_000
"""k-iterations of agents in a band that is a sampling period, at most."""
LEAST_PERIODS, PERIOD_WAVES = 8, 4
LEAST_BAND = 1.5
"""Waves that a band must have for its traffic to repeat."""


def sample_items(n_items: int, n_agents: int, band: int, k_iterations: int, steady: bool, quick: bool) -> int:
    """Items of one sampling period, or 0 where all is simulated.

    A period is a band of the raster, since traffic repeats by bands, or some waves where bands are long. Narrow bands,
    static schedules and several matrices are sampled only where simulating all of them would take too long: their SMs
    drift apart over the whole run, until they read twice as much from DRAM. `quick` samples them too, a wave at a time.
    """
    narrow = band < LEAST_BAND * n_agents
    if quick:
        long = n_items * k_iterations >= QUICK_ITERATIONS
        return n_agents if long and n_items >= LEAST_PERIODS * n_agents else 0
    if n_items * k_iterations < (HUGE_ITERATIONS if narrow or not steady else WHOLE_ITERATIONS):
        return 0
    period = PERIOD_WAVES * n_agents if narrow or band * k_iterations > LARGEST_PERIOD else band
    return period if n_items >= LEAST_PERIODS * period else 0
