"""How far a calibration is, and about how long it will take: phases with their expected cost, corrected as they end."""

from __future__ import annotations

from collections.abc import Callable

from sim.calibration.predictions import Predictions

Told = Callable[[str, float | None], None]
"""What is being done, and about how many seconds are left, None where that is not known yet."""
LEAST_SPENT_S = 1.0
"""Rough cost of simulations after which their speed is known well enough to tell the time left."""


class Plan:
    """Phases in order with the rough cost (as `predictions.cost_s`, seconds) that each is expected to have."""

    def __init__(self, predictions: Predictions, told: Told) -> None:
        self._predictions, self._told = predictions, told
        self._expected: dict[str, float] = {}
        self._now, self._text, self._since_s = "", "starting", 0.0

    def expect(self, phase: str, cost_s: float) -> None:
        """Announce a phase."""
        self._expected[phase] = cost_s

    def begin(self, phase: str) -> None:
        """A phase begins; the one before has ended, whatever it was expected to cost."""
        self._expected.pop(self._now, None)
        self._now, self._since_s = phase, self._predictions.done_s
        self.say(phase)

    def skip(self, phase: str) -> None:
        """A phase will not come."""
        self._expected.pop(phase, None)

    def say(self, text: str) -> None:
        """Tell what is being done within the phase."""
        self._text = text
        self.tell()

    def tell(self) -> None:
        """Tell again, with the time left as it looks now."""
        self._told(self._text, self.left_s())

    def left_s(self) -> float | None:
        """About how many seconds are left, at the speed so far."""
        p = self._predictions
        if p.spent_s < LEAST_SPENT_S:
            return None
        left = dict(self._expected)
        if self._now in left:
            left[self._now] = max(0.0, left[self._now] - (p.done_s - self._since_s))
        return sum(left.values()) * p.wall_s / p.spent_s
