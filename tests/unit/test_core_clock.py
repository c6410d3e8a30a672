"""Both clocks keep the protocol."""

import time

import pytest

from sternpost_core.clock import Clock, SystemClock
from sternpost_fakes.clock import FakeClock


def test_system_clock_is_the_machines() -> None:
    """The readings lie between two readings of the standard library's."""
    clock: Clock = SystemClock()

    before = time.monotonic(), time.time()
    monotonic, unix = clock.monotonic(), clock.time()

    assert before[0] <= monotonic <= time.monotonic()
    # A wall clock may be set back while the test runs, so only gross errors count.
    assert abs(unix - before[1]) < 3600


def test_fake_clock_moves_only_when_advanced() -> None:
    """Both readings move together."""
    clock = FakeClock(monotonic=5.0, time=1000.0)

    clock.advance(2.5)

    assert (7.5, 1002.5) == (clock.monotonic(), clock.time())


def test_fake_clock_never_goes_back() -> None:
    """A negative step is a mistake of the test."""
    with pytest.raises(AssertionError, match="never goes back"):
        FakeClock().advance(-1)
