"""A mirror is never wrong for long, and never loses what was not taken away."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sternpost_core.clock import SystemClock
from sternpost_fakes.cluster import FakeCluster, names
from sternpost_fakes.gateway import eventually
from sternpost_fakes.virtual_time import run_virtual
from sternpost_gateway.cluster.errors import ClusterError
from sternpost_gateway.cluster.mirror import Mirror, absent, changed, merged, without
from sternpost_gateway.cluster.resources import POLICIES, Event, EventKind, Key, Listing, Object

POLL_SECONDS = 0.05


def item(name: str, version: int, **fields: object) -> Object:
    """Return an object of a version."""
    return {
        "metadata": {"name": name, "namespace": "agents", "resourceVersion": str(version)},
        **fields,
    }


def key(name: str) -> Key:
    """Return the key of `item(name, ...)`."""
    return Key("agents", name)


def make(cluster: FakeCluster, on_change: Callable[[], None] = lambda: None) -> Mirror:
    """Return a mirror that polls quickly."""
    return Mirror(POLICIES, cluster, SystemClock(), random.Random(7), POLL_SECONDS, on_change)


@asynccontextmanager
async def running(mirror: Mirror) -> AsyncIterator[None]:
    """Let a mirror run for the length of a block."""
    task = asyncio.create_task(mirror.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_an_older_form_never_replaces_a_newer_one() -> None:
    """A list that was slow on the way changes nothing."""
    store = {key("a"): item("a", 7)}

    assert store == merged(store, Listing(9, (item("a", 6),)))


def test_nothing_new_is_the_same_store() -> None:
    """Who compares by identity sees that nothing has changed."""
    store = {key("a"): item("a", 7)}

    assert merged(store, Listing(9, (item("a", 7),))) is store


@pytest.mark.parametrize(
    ("listing", "expected"),
    [
        pytest.param(Listing(9, ()), [key("a")], id="a newer list without it asks for a check"),
        pytest.param(Listing(7, ()), [], id="a list of its own version says nothing"),
        pytest.param(Listing(6, ()), [], id="an older list says nothing"),
        pytest.param(Listing(9, (item("a", 7),)), [], id="a list with it says that it is there"),
    ],
)
def test_absence_is_noticed_in_newer_lists_only(listing: Listing, expected: list[Key]) -> None:
    """An object may be younger than the list."""
    assert expected == absent({key("a"): item("a", 7)}, listing)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        pytest.param(Event(EventKind.MODIFIED, item("a", 8)), {key("a"): item("a", 8)}, id="a newer form"),
        pytest.param(Event(EventKind.MODIFIED, item("a", 6)), {key("a"): item("a", 7)}, id="an older form"),
        pytest.param(Event(EventKind.DELETED, item("a", 8)), {}, id="a deletion"),
        pytest.param(Event(EventKind.DELETED, item("a", 6)), {key("a"): item("a", 7)}, id="an old deletion"),
        pytest.param(
            Event(EventKind.BOOKMARK, {"metadata": {"resourceVersion": "9"}}),
            {key("a"): item("a", 7)},
            id="a bookmark",
        ),
        pytest.param(
            Event(EventKind.ADDED, item("b", 8)),
            {key("a"): item("a", 7), key("b"): item("b", 8)},
            id="another object",
        ),
        pytest.param(
            Event(EventKind.MODIFIED, {}), {key("a"): item("a", 7)}, id="an object without metadata"
        ),
    ],
)
def test_events_are_merged_by_version(event: Event, expected: dict[Key, Object]) -> None:
    """Whatever the order in which things arrive, the newest stays."""
    assert expected == changed({key("a"): item("a", 7)}, event)


def test_a_successor_outlives_the_check_of_its_predecessor() -> None:
    """An object that was made anew while its absence was checked stays."""
    store = {key("a"): item("a", 12)}

    assert store == without(store, key("a"), version=11)


async def test_news_come_by_the_watch() -> None:
    """What is created, changed and deleted is seen without a poll."""
    cluster = FakeCluster()
    mirror = Mirror(POLICIES, cluster, SystemClock(), random.Random(7), 60.0, lambda: None)
    cluster.put("a")
    async with running(mirror):
        await eventually(lambda: names(mirror.objects) == {"a"})
        cluster.put("b")
        await eventually(lambda: names(mirror.objects) == {"a", "b"})
        cluster.delete("a")
        await eventually(lambda: names(mirror.objects) == {"b"})


async def test_news_come_by_the_poll_when_the_watch_is_deaf() -> None:
    """A watch that gets nothing and does not end delays news by a poll, the deletion too."""
    cluster = FakeCluster()
    cluster.put("a")
    mirror = make(cluster)
    async with running(mirror):
        await eventually(lambda: names(mirror.objects) == {"a"})
        cluster.deaf = True
        cluster.put("b", spec={"killLevel": "NoSuffixReads"})
        cluster.delete("a")
        await eventually(lambda: names(mirror.objects) == {"b"})


@pytest.mark.parametrize("seed", range(20))
def test_packets_that_are_dropped_delay_news_by_a_poll(seed: int) -> None:
    """The watch is dead, and the connection that the poll has kept, too: it asks again over a new one."""
    cluster = FakeCluster()

    async def main() -> float:
        loop, seen = asyncio.get_running_loop(), asyncio.Event()
        mirror = Mirror(POLICIES, cluster, SystemClock(), random.Random(seed), 5.0, seen.set)
        async with running(mirror):
            await asyncio.sleep(random.Random(seed).uniform(20.0, 30.0))
            cluster.deaf = cluster.is_silent = True
            seen.clear()
            cluster.put("b", spec={"killLevel": "NoSuffixReads"})
            began = loop.time()
            async with asyncio.timeout(60.0):
                await seen.wait()
            return loop.time() - began

    assert run_virtual(lambda clock: main()) <= 7.0


@pytest.mark.parametrize("error", [None, ClusterError("cut")], ids=["orderly", "cut"])
async def test_a_deletion_between_two_watches_is_not_missed(error: Exception | None) -> None:
    """Each watch begins with a list."""
    cluster = FakeCluster()
    cluster.put("ghost")
    mirror = Mirror(POLICIES, cluster, SystemClock(), random.Random(7), 60.0, lambda: None)
    async with running(mirror):
        await eventually(lambda: names(mirror.objects) == {"ghost"})
        cluster.deaf = True
        cluster.delete("ghost")
        cluster.deaf = False
        cluster.end_watches(error)
        await eventually(lambda: not mirror.objects)


async def test_an_empty_answer_removes_nothing() -> None:
    """A server that has lost its data cannot switch anything back on."""
    cluster = FakeCluster()
    cluster.put("kill")
    mirror = make(cluster)
    async with running(mirror):
        await eventually(lambda: names(mirror.objects) == {"kill"})
        cluster.says_nothing = True
        asked = cluster.requests
        await eventually(lambda: cluster.requests > asked + 4)
        assert {"kill"} == names(mirror.objects)


async def test_an_outage_changes_nothing_and_is_told() -> None:
    """What was known stays for as long as it takes; afterwards all is current again."""
    cluster = FakeCluster()
    cluster.put("a")
    mirror = make(cluster)
    async with running(mirror):
        await eventually(lambda: names(mirror.objects) == {"a"})
        cluster.down = True
        cluster.end_watches(ClusterError("cut"))
        await eventually(lambda: mirror.error is not None)
        assert {"a"} == names(mirror.objects)
        cluster.down = False
        cluster.put("b")
        await eventually(lambda: names(mirror.objects) == {"a", "b"} and mirror.error is None)


async def test_a_cache_that_lags_brings_nothing_back() -> None:
    """An object that was deleted does not come back with an old list."""
    cluster = FakeCluster()
    cluster.put("a")
    mirror = make(cluster)
    async with running(mirror):
        await eventually(lambda: names(mirror.objects) == {"a"})
        cluster.lag = 1
        cluster.delete("a")
        await eventually(lambda: not mirror.objects)
        asked = cluster.requests
        await eventually(lambda: cluster.requests > asked + 3)
        assert {} == mirror.objects


async def test_a_restored_backup_counts() -> None:
    """After etcd went back, edits are seen again although their versions are lower than before."""
    cluster = FakeCluster()
    cluster.put("a", spec={"n": 1})
    early = cluster.version
    for n in range(2, 6):
        cluster.put("a", spec={"n": n})
    mirror = make(cluster)
    async with running(mirror):
        await eventually(lambda: mirror.objects.get(key("a"), {}).get("spec") == {"n": 5})
        cluster.restore(early)
        await eventually(lambda: mirror.objects[key("a")]["spec"] == {"n": 1})
        cluster.put("a", spec={"n": 9})
        await eventually(lambda: mirror.objects[key("a")]["spec"] == {"n": 9})


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["put", "delete", "down", "up", "poll", "lag"]),
            st.sampled_from("abc"),
        ),
        max_size=30,
    ),
    seed=st.integers(0, 2**16),
)
def test_whatever_goes_wrong_the_copy_is_right_in_the_end(steps: list[tuple[str, str]], seed: int) -> None:
    """After any faults, one consistent list makes the copy equal to the server's data."""

    async def scenario() -> None:
        cluster = FakeCluster()
        mirror = Mirror(POLICIES, cluster, SystemClock(), random.Random(seed), 60.0, lambda: None)
        for action, name in steps:
            await _step(cluster, mirror, action, name)
        cluster.down, cluster.lag = False, 0
        await mirror.refresh(cached=False)
        assert cluster.objects == mirror.objects

    asyncio.run(scenario())


async def _step(cluster: FakeCluster, mirror: Mirror, action: str, name: str) -> None:
    """Do one thing to the server, or have the mirror ask."""
    if action == "put":
        cluster.put(name)
    elif action == "delete" and key(name) in cluster.objects:
        cluster.delete(name)
    elif action in ("down", "up"):
        cluster.down = action == "down"
    elif action == "lag":
        cluster.lag = 2
    elif action == "poll":
        try:
            await mirror.refresh()
        except ClusterError:
            assert cluster.down
