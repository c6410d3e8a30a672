"""A gateway's copy of the API server's objects in virtual time: what it misses, and what it asks."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from sternpost_core.kill import KillLevel
from sternpost_core.policy import Match, Policy
from sternpost_fakes.clock import FakeClock
from sternpost_fakes.cluster import FakeCluster, names
from sternpost_fakes.virtual_time import VirtualClock, run_virtual
from sternpost_gateway.cluster.engines import POLL_SECONDS as PODS_POLL_SECONDS
from sternpost_gateway.cluster.errors import ClusterError, Expired
from sternpost_gateway.cluster.mirror import BACKOFF_SECONDS, Mirror
from sternpost_gateway.cluster.resources import PODS, POLICIES, POOLS, SWITCHES
from sternpost_gateway.cluster.source import POLL_SECONDS, POOLS_POLL_SECONDS
from sternpost_gateway.kills import Kills

GHOST_SECONDS_MAX = 30.0
"""For which what is gone may still be believed to be there."""

GATEWAYS = 50
REQUESTS_MAX = 50.0
WINDOW_SECONDS = 5
"""A second, over any five, that so many gateways may ask of the API server."""

FETCH_SECONDS_MAX = 10
KILLING = (POLICIES, SWITCHES)
"""Within which a gateway that restarts asks for what may switch something off."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Faults are what these tests are about: nobody needs to read of each."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def mirror_of(cluster: FakeCluster, clock: VirtualClock, seed: int = 1) -> Mirror:
    """Return a copy with a gateway's own period of polls."""
    return Mirror(POLICIES, cluster, clock, random.Random(seed), POLL_SECONDS, lambda: None)


@pytest.mark.parametrize(
    ("ended_by", "down_seconds"),
    [
        pytest.param(None, 0.0, id="in-order"),
        pytest.param(Expired("410: too old resource version"), 0.0, id="410"),
        pytest.param(ClusterError("504: Too large resource version"), 10.0, id="504"),
        pytest.param(ClusterError("cut"), 20.0, id="down-for-long"),
    ],
)
@pytest.mark.parametrize("lag", [0, 1], ids=["cache-is-current", "cache-lags"])
def test_f6_deletion_that_no_watch_has_told_leaves_no_ghost(
    ended_by: Exception | None, down_seconds: float, lag: int
) -> None:
    """However the watch comes back, what was deleted meanwhile is gone within half a minute."""

    async def scenario(clock: VirtualClock) -> float:
        cluster = FakeCluster()
        for name in ("ghost", "stays"):
            cluster.put(name)
        mirror = mirror_of(cluster, clock)
        running = asyncio.ensure_future(mirror.run())
        await asyncio.sleep(1.0)
        assert {"ghost", "stays"} == names(mirror.objects)
        cluster.deaf, cluster.down, cluster.lag = True, down_seconds > 0.0, lag
        cluster.delete("ghost")
        deleted = clock.monotonic()
        cluster.deaf = False
        cluster.end_watches(ended_by)
        await asyncio.sleep(down_seconds)
        cluster.down = False
        while names(mirror.objects) != {"stays"}:
            await asyncio.sleep(0.1)
            assert clock.monotonic() - deleted < 2 * GHOST_SECONDS_MAX, "the ghost stays"
        running.cancel()
        return clock.monotonic() - deleted

    assert run_virtual(scenario) <= GHOST_SECONDS_MAX


def test_f4_half_an_hour_without_an_api_server_changes_nothing() -> None:
    """What was known stays, its age grows, and the first answer afterwards brings what is new."""

    async def scenario(clock: VirtualClock) -> tuple[set[str], float, set[str]]:
        cluster = FakeCluster()
        cluster.put("a")
        mirror = mirror_of(cluster, clock)
        running = asyncio.ensure_future(mirror.run())
        await asyncio.sleep(1.0)
        cluster.down = True
        cluster.end_watches(ClusterError("cut"))
        await asyncio.sleep(1800.0)
        kept, age = names(mirror.objects), clock.monotonic() - (mirror.heard_at or 0.0)
        cluster.down = False
        cluster.put("b")
        await asyncio.sleep(7.0)
        running.cancel()
        return kept, age, names(mirror.objects)

    kept, age, after = run_virtual(scenario)

    assert ({"a"}, {"a", "b"}) == (kept, after)
    assert age == pytest.approx(1800.0, abs=10.0)


@pytest.mark.parametrize("seed", range(5))
def test_f4_watch_is_back_with_the_first_answered_poll(seed: int) -> None:
    """Nobody waits out a pause that grew in the outage: what changes after that poll comes by the watch."""

    async def scenario(clock: VirtualClock) -> set[str]:
        cluster = FakeCluster()
        mirror = Mirror(POLICIES, cluster, clock, random.Random(seed), BACKOFF_SECONDS[0], lambda: None)
        running = asyncio.ensure_future(mirror.run())
        await asyncio.sleep(1.0)
        cluster.down = True
        cluster.end_watches(ClusterError("cut"))
        await asyncio.sleep(60.0 + BACKOFF_SECONDS[-1] * seed / 5)
        cluster.down = False
        await asyncio.sleep(2 * BACKOFF_SECONDS[0])
        # A watch brings what happens within no time; a poll would not.
        cluster.put("new")
        await asyncio.sleep(0.001)
        running.cancel()
        return names(mirror.objects)

    assert {"new"} == run_virtual(scenario)


@pytest.mark.parametrize("seed", range(5))
def test_f9_fifty_gateways_that_restart_together_ask_calmly(seed: int) -> None:
    """Each knows four collections from its disk, and lists them anew at moments of its own."""

    async def scenario(clock: VirtualClock) -> list[int]:
        cluster = FakeCluster()
        chance = random.Random(seed)
        mirrors = [mirror for _ in range(GATEWAYS) for mirror in restarted(cluster, clock, chance)]
        running = [asyncio.ensure_future(mirror.run()) for mirror in mirrors]
        counts, late = [], 0
        for second in range(60):
            before = cluster.requests
            await asyncio.sleep(1.0)
            counts.append(cluster.requests - before)
            if second == FETCH_SECONDS_MAX:
                late = sum(mirror.heard_at is None for mirror in mirrors if mirror.resource in KILLING)
        for task in running:
            task.cancel()
        assert 0 == late, "each has heard of what switches off"
        return counts

    counts = run_virtual(scenario)
    windows = [sum(counts[first : first + WINDOW_SECONDS]) for first in range(60 - WINDOW_SECONDS + 1)]

    assert max(windows) / WINDOW_SECONDS <= REQUESTS_MAX, counts


def restarted(cluster: FakeCluster, clock: VirtualClock, chance: random.Random) -> list[Mirror]:
    """Return the copies of a gateway that has read them from its disk."""
    periods = {
        POLICIES: POLL_SECONDS,
        SWITCHES: POLL_SECONDS,
        POOLS: POOLS_POLL_SECONDS,
        PODS: PODS_POLL_SECONDS,
    }
    own = random.Random(chance.random())
    mirrors = [Mirror(kind, cluster, clock, own, seconds, lambda: None) for kind, seconds in periods.items()]
    for mirror in mirrors:
        mirror.restore([cluster.put("a")])
    return mirrors


def test_f9_what_was_killed_stays_killed_at_each_of_fifty_that_restart(tmp_path: Path) -> None:
    """Whatever each hears first, also that its policy switches nothing off."""
    policy = Policy(name="support", namespace="agents", pool="qwen", match=Match(models=("qwen",)))
    levels = set()
    for number in range(GATEWAYS):
        folder = tmp_path / str(number)
        folder.mkdir()
        Kills(FakeClock(), folder).latch(KillLevel.NEW_EPOCH, None, "drill", "test")
        again = Kills(FakeClock(), folder)
        again.configure([policy], [])
        levels.add((again.table.level(policy.full_name), again.table.level(None)))

    assert {(KillLevel.NEW_EPOCH, KillLevel.NEW_EPOCH)} == levels


def test_f6_pod_that_no_watch_has_told_of_is_no_ghost_for_long() -> None:
    """Over a watch that is silent, and by the latest poll that there can be."""

    async def scenario(clock: VirtualClock) -> float:
        cluster = FakeCluster()
        for name in ("ghost", "stays"):
            cluster.put(name)
        mirror = Mirror(PODS, cluster, clock, Latest(), PODS_POLL_SECONDS, lambda: None)
        running = asyncio.ensure_future(mirror.run())
        await asyncio.sleep(0.1)
        cluster.deaf = True
        cluster.delete("ghost")
        deleted = clock.monotonic()
        while names(mirror.objects) != {"stays"}:
            await asyncio.sleep(0.1)
            assert clock.monotonic() - deleted < 2 * GHOST_SECONDS_MAX, "the ghost stays"
        running.cancel()
        return clock.monotonic() - deleted

    assert run_virtual(scenario) <= GHOST_SECONDS_MAX


class Latest(random.Random):
    """Draws the largest number each time."""

    def uniform(self, a: float, b: float) -> float:
        """Return the upper end."""
        return b
