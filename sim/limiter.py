"""What bounds a kernel, from how busy each resource was and what CTA slots waited for.

1. A resource that is busy at least `NEAR_PEAK` of the time, and that running CTAs notably wait for, is the limiter: the
   busiest of these. CTAs wait for tensor cores and for shared memory together, in their MMAs; where both are as busy
   (to `TIE`), it is the tensor cores: in runs of the T4 and the V100 twice their rate then helps, and twice shared
   memory's does not.
2. Else, where slots stand empty for longer than anything else takes, and CTAs spend more time in their main loops than
   in starting and ending, there are too few CTAs: cutting the work finer would help.
3. Else it is what running CTAs wait for most. A memory that is busy at least `BUSY` of the time is waited for because
   of its bandwidth (requests queue), otherwise because of its latency. MMAs that keep the tensor cores busy for less
   than half of the time they take wait for each other: synchronisation.

   Tensor cores far from their peak are still the limiter where nothing takes CTAs longer: with one CTA an SM and two
   stages, loads and MMAs take turns, and faster tensor cores help more than faster loads. The evidence says so.

"Tensor cores" are the CUDA cores in kernels that multiply on them (`mma` is "fma"): the limiter is "cuda_cores" then.
Where the warps of an attention kernel spend more of a block on softmax and on converting keys and values than on its
products (`longest_part`), MMAs wait for these, and the longer one is the limiter.

The constants were set by simulating 120 rows of the H200's gemm.csv and tile_sweep.csv again with each resource twice
as fast (tests/test_report.py does so for a few).
"""

from __future__ import annotations

from sim.result import KernelResult
from sim.text import percent, quantity

NEAR_PEAK = 0.75
BUSY = 0.5
TIE = 0.02
NOTABLE = 0.05
"""Share of running CTAs' time from which a wait counts as one."""

WAIT_OF = {"tensor": "mma", "smem": "mma", "sm_port": "sm_port", "l2": "l2", "hbm": "hbm"}
"""Resource -> the wait that points at it."""
LIMITERS = {"barrier": "synchronisation", "issue": "issuing loads", "start": "launch and start", "epilogue": "epilogue"}
"""Wait -> limiter, where no resource's rate is at stake."""
MEMORIES = ("hbm", "l2", "sm_port")
ENDS = ("start", "epilogue")
NEARLY_FULL = 0.95
"""Waves from which the first one counts as full."""

WORDS = {
    "tensor": "the tensor cores",
    "mma": "the tensor cores",
    "cuda_cores": "the CUDA cores",
    "l2": "L2 bandwidth",
    "hbm": "HBM bandwidth",
    "sm_port": "the SM ports",
    "smem": "shared-memory bandwidth",
    "hbm latency": "HBM latency",
    "l2 latency": "L2 latency",
    "pcie": "PCIe",
    "conversion": "converting keys and values",
}
"""Limiters whose names are no words for a reader."""

NAMES = {
    "tensor": "the tensor cores",
    "cuda_cores": "the CUDA cores",
    "smem": "shared memory",
    "sm_port": "the SM ports",
    "l2": "L2",
    "hbm": "HBM",
    "softmax": "softmax",
    "conversion": "converting keys and values",
}
PHRASES = {
    "mma": "run MMAs",
    "hbm": "wait for HBM",
    "l2": "wait for L2",
    "sm_port": "wait for the SM ports",
    "barrier": "wait at barriers",
    "issue": "issue loads",
    "start": "wait for launch and start",
    "epilogue": "run epilogues",
}
"""What CTAs do in the time that a wait counts."""


def find_limiter(main: KernelResult) -> tuple[str, tuple[str, ...]]:
    """The limiter of a kernel and its evidence: at most three sentences with figures."""
    limiter, reason = _limiter(main)
    evidence = [_first(main, limiter, reason), *_second(main, limiter, reason), *_filling(main)]
    return _unit(main) if limiter == "tensor" else limiter, tuple(evidence)


def limiter_words(limiter: str) -> str:
    """A limiter in words."""
    return WORDS.get(limiter, limiter)


def limiter_code(limiter: str) -> str:
    """A limiter as scripts get it, all of one form: "hbm", "hbm_latency", "too_few_ctas"."""
    return limiter.lower().replace(" ", "_")


def _unit(main: KernelResult) -> str:
    """What multiplies."""
    return "cuda_cores" if main.config.get("mma") == "fma" else "tensor"


def _limiter(main: KernelResult) -> tuple[str, str]:
    """(limiter, the wait that led to it)."""
    busy, waits = main.utilisation, main.waits
    running = _running(main)
    for name in sorted(WAIT_OF, key=lambda name: -busy[name] - TIE * (name == "tensor")):
        if busy[name] >= NEAR_PEAK and waits[WAIT_OF[name]] >= NOTABLE * running:
            return name, WAIT_OF[name]
    ends = sum(waits[name] for name in ENDS)
    if waits["idle"] >= max(waits.values()) and running - ends > ends:
        return "too few CTAs", "idle"
    reason = max(PHRASES, key=lambda name: waits[name])
    if reason == "mma":
        part = main.config.get("longest_part", "tensor")
        if part != "tensor":
            return part, reason
        return ("tensor" if busy["tensor"] >= 0.5 * waits["mma"] else "synchronisation"), reason
    if reason in MEMORIES:
        return reason if busy[reason] >= BUSY or reason == "sm_port" else f"{reason} latency", reason
    return LIMITERS[reason], reason


def _running(main: KernelResult) -> float:
    """Share of slot time in which there is a CTA, its launch included."""
    return sum(main.waits[name] for name in PHRASES)


def _share(main: KernelResult, reason: str) -> str:
    """A wait as a share of the time of CTAs that run."""
    running = _running(main)
    return percent(main.waits[reason] / running if running else 0.0)


def _first(main: KernelResult, limiter: str, reason: str) -> str:
    """The sentence that gives the limiter's own figures."""
    if reason == "idle":
        return f"Slots for CTAs stand empty for {percent(main.waits['idle'])} of the time."
    text = f"CTAs {PHRASES[reason]} for {_share(main, reason)} of their time"
    if reason == "start":
        return f"{text}, which is {quantity(main.time_s, 's')}."
    if reason == "mma" and limiter == "tensor" and main.utilisation["tensor"] < NEAR_PEAK:
        only = _busy(main, limiter, "only ")
        return f"{text}, the largest share, but {only} of the time: waits are not hidden behind MMAs."
    if limiter in ("softmax", "conversion"):
        return f"{text}, most of it {NAMES[limiter]}."
    if limiter in NAMES:
        return f"{_busy(main, limiter)} of the time; {text}."
    if reason in LIMITERS:
        return f"{text}."
    resource = "tensor" if reason == "mma" else reason
    return f"{text}, though {_busy(main, resource, 'only ')} of it."


def _busy(main: KernelResult, resource: str, only: str = "") -> str:
    name = _name(main, resource)
    text = f"{name} {'are' if name.endswith('s') else 'is'} busy {only}{percent(main.utilisation[resource])}"
    return text if only else text[0].upper() + text[1:]


def _name(main: KernelResult, resource: str) -> str:
    return NAMES[_unit(main) if resource == "tensor" else resource]


def _second(main: KernelResult, limiter: str, reason: str) -> list[str]:
    """The next wait, and the busiest resource where that is another."""
    second = max((name for name in PHRASES if name != reason), key=lambda name: main.waits[name])
    busiest = max(WAIT_OF, key=lambda name: main.utilisation[name])
    texts = [f"{'Next, they' if reason != 'idle' else 'CTAs mostly'} {PHRASES[second]} ({_share(main, second)})"]
    if busiest != limiter and main.utilisation[busiest] >= BUSY:
        texts.append(f"the busiest resource is {_name(main, busiest)} ({percent(main.utilisation[busiest])})")
    return ["; ".join(texts) + "."] if main.waits[second] > NOTABLE * _running(main) else []


def _filling(main: KernelResult) -> list[str]:
    """Waves that leave slots empty."""
    if main.config.get("stream_k") and main.waves >= 1:
        return []
    last = main.waves - int(main.waves)
    if main.waves < NEARLY_FULL:
        return [f"The work fills {percent(main.waves)} of the slots."]
    if 0 < last < 0.5 and main.waves < 10:
        return [f"The last of {main.waves:.2f} waves fills {percent(last)} of the slots."]
    return []
