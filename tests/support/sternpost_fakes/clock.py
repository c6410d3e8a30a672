"""A clock that stands still until a test moves it."""

from __future__ import annotations


class FakeClock:
    """Implements `sternpost_core.clock.Clock`; both readings move together."""

    def __init__(self, *, monotonic: float = 0.0, time: float = 1_700_000_000.0) -> None:
        self._monotonic = monotonic
        self._time = time

    def monotonic(self) -> float:
        """Return the seconds that were advanced, plus the start."""
        return self._monotonic

    def time(self) -> float:
        """Return the Unix time that was advanced to."""
        return self._time

    def advance(self, seconds: float) -> None:
        """Move both readings forward by `seconds`, which is not negative."""
        assert seconds >= 0, "a monotonic clock never goes back"
        self._monotonic += seconds
        self._time += seconds
