"""Engines that come back to a running pool."""

from __future__ import annotations

import pytest

from sternpost_fakes.clock import FakeClock
from sternpost_gateway.fleet import Engine
from sternpost_gateway.slow_start import FIRST_LOOK_SECONDS, WEIGHT_MIN, WINDOW_SECONDS, SlowStart

ENGINES = [Engine(f"http://engine-{number}") for number in range(4)]


def running(clock: FakeClock, engines: list[Engine] = ENGINES) -> SlowStart:
    """Return the slow start of a pool that has been serving for long."""
    slow_start = SlowStart(clock)
    for engine in engines:
        slow_start.began(engine)
    clock.advance(WINDOW_SECONDS)
    return slow_start


def test_engines_that_a_gateway_finds_at_its_own_start_are_not_new() -> None:
    """They have served before; one that joins them soon afterwards is."""
    clock = FakeClock()
    slow_start = SlowStart(clock)
    for engine in ENGINES[:3]:
        slow_start.began(engine)
    clock.advance(2 * FIRST_LOOK_SECONDS)
    slow_start.began(ENGINES[3])

    assert [1.0, 1.0, 1.0, WEIGHT_MIN] == slow_start.weights(ENGINES)


@pytest.mark.parametrize(
    ("age", "expected"),
    [
        pytest.param(0.0, WEIGHT_MIN, id="at-once"),
        pytest.param(WINDOW_SECONDS / 2, 0.5, id="half-way"),
        pytest.param(WINDOW_SECONDS, 1.0, id="at-the-end"),
    ],
)
def test_weight_of_a_returning_engine_rises(age: float, expected: float) -> None:
    """One of four comes back: its weight grows with time, the others keep theirs."""
    clock = FakeClock()
    slow_start = running(clock)
    slow_start.began(ENGINES[0])
    clock.advance(age)

    assert [expected, 1.0, 1.0, 1.0] == slow_start.weights(ENGINES)


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        pytest.param(2, [WEIGHT_MIN] * 2 + [1.0] * 2, id="half"),
        pytest.param(3, [1.0] * 4, id="most"),
        pytest.param(4, [1.0] * 4, id="all"),
    ],
)
def test_nobody_starts_slowly_where_most_are_new(new: int, expected: list[float]) -> None:
    """Somebody has to serve."""
    slow_start = running(FakeClock())
    for engine in ENGINES[:new]:
        slow_start.began(engine)

    assert expected == slow_start.weights(ENGINES)


def test_engine_never_heard_of_has_full_weight() -> None:
    """Without a beginning there is nothing to start slowly from."""
    slow_start = running(FakeClock())
    slow_start.began(ENGINES[0])
    slow_start.forget(ENGINES[0])

    assert [1.0] * 4 == slow_start.weights(ENGINES)
