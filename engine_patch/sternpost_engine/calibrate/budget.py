"""The time that a calibration may take."""

from __future__ import annotations

from dataclasses import dataclass

from sternpost_core.clock import Clock


@dataclass(frozen=True, slots=True)
class Budget:
    """`seconds` from `began` on, by the clock's monotonic time."""

    clock: Clock
    seconds: float
    began: float

    @property
    def elapsed(self) -> float:
        """The seconds since the beginning."""
        return self.clock.monotonic() - self.began

    def has(self, seconds: float, *, share: float = 1.0) -> bool:
        """Whether so many more seconds would still lie within this share of the budget."""
        return self.elapsed + seconds <= self.seconds * share


def start_budget(clock: Clock, seconds: float) -> Budget:
    """Return a budget that begins now."""
    return Budget(clock, seconds, clock.monotonic())
