"""Where time comes from, so that nothing reads a clock that a test cannot turn."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two readings of time, both in seconds."""

    def monotonic(self) -> float:
        """Return seconds since an unnamed start; never goes back, so durations are taken from it."""

    def time(self) -> float:
        """Return seconds since the Unix epoch; may jump, so only dates are made from it."""


class SystemClock:
    """The machine's own clocks."""

    def monotonic(self) -> float:
        """Return `time.monotonic()`."""
        return time.monotonic()

    def time(self) -> float:
        """Return `time.time()`."""
        return time.time()
