"""One timer bounds each write of an exchange, however many there are."""

from __future__ import annotations

import asyncio

import pytest

from sternpost_fakes.virtual_time import VirtualClock, run_virtual
from sternpost_gateway.stall import Stall

SECONDS = 30.0


async def write(stall: Stall, seconds: float) -> str:
    """Write something that takes so long; return how it ended."""
    stall.begin()
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        if stall.takes_back():
            return "stalled"
        raise
    finally:
        stall.end()
    return "written"


@pytest.mark.parametrize(
    ("waits", "expected"),
    [
        pytest.param([0.0, 29.0, 0.0], ["written"] * 3, id="slow-and-written"),
        pytest.param([29.0] * 5, ["written"] * 5, id="each-has-its-own-time"),
        pytest.param([0.0, 31.0], ["written", "stalled"], id="too-slow"),
        pytest.param([29.0, 31.0, 1.0], ["written", "stalled", "written"], id="too-slow-and-others-not"),
    ],
)
def test_each_write_has_so_long_and_no_longer(waits: list[float], expected: list[str]) -> None:
    """Time that others took does not count, and a write that stalls ends at its own limit."""

    async def scenario(clock: VirtualClock) -> list[tuple[str, float]]:
        stall = Stall(SECONDS)
        found = []
        for seconds in waits:
            began = clock.monotonic()
            found.append((await write(stall, seconds), clock.monotonic() - began))
        stall.close()
        return found

    found = run_virtual(scenario)

    assert expected == [outcome for outcome, _ in found]
    assert [min(seconds, SECONDS) for seconds in waits] == [pytest.approx(took) for _, took in found]


def test_nothing_is_cancelled_between_writes_or_after_the_end() -> None:
    """A stream may rest for hours, and a closed exchange leaves no timer behind."""

    async def scenario(clock: VirtualClock) -> list[str]:
        stall = Stall(SECONDS)
        found = [await write(stall, 1.0)]
        await asyncio.sleep(7200.0)
        found.append(await write(stall, 29.0))
        stall.begin()
        stall.close()
        await asyncio.sleep(2 * SECONDS)
        return found

    assert ["written"] * 2 == run_virtual(scenario)


def test_a_cancellation_from_elsewhere_stays_one() -> None:
    """Who is told to stop stops, also when the write has stalled at the same moment."""

    async def scenario(clock: VirtualClock) -> list[bool]:
        found = []
        for seconds in (10.0, SECONDS):
            task = asyncio.ensure_future(write(Stall(SECONDS), 3600.0))
            asyncio.get_running_loop().call_later(seconds, task.cancel)
            await asyncio.wait([task])
            found.append(task.cancelled())
        return found

    assert [True, True] == run_virtual(scenario)
