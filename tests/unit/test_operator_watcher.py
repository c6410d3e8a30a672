"""Watches and lists keep the store up with the cluster, and announce what has to be looked at."""

import asyncio
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pytest
from prometheus_client import CollectorRegistry

from sternpost_fakes.clock import FakeClock
from sternpost_fakes.kube_api import FakeApi
from sternpost_fakes.policies import SMALLEST, SMALLEST_POOL, SWITCH, changed
from sternpost_operator.app import REFUSALS_MAX, START_SECONDS, choose_budgets
from sternpost_operator.kube import ApiUnavailable, Forbidden, NotFound
from sternpost_operator.metrics import OperatorMetrics
from sternpost_operator.resources import (
    BUDGETS,
    BUDGETS_BEFORE_1_21,
    MANAGED_BY,
    MANAGED_LABEL,
    PODS,
    POLICIES,
    POOL_LABEL,
    POOLS,
    STATEFUL_SETS,
    SWITCHES,
    Key,
    Object,
    Resource,
)
from sternpost_operator.store import Store
from sternpost_operator.watcher import GONE, Watcher, find_budgets
from sternpost_operator.work_queue import WorkQueue

LABELS = {POOL_LABEL: "small", MANAGED_LABEL: MANAGED_BY}
POD = {"metadata": {"name": "small-0", "namespace": "agents", "labels": LABELS}}
POLICY = changed(SMALLEST, "metadata", {"name": "a", "namespace": "agents"})


Server = TypeVar("Server", bound=FakeApi)


class Scene(Generic[Server]):
    """A watcher over a server in memory."""

    def __init__(self, api: Server) -> None:
        self.api, self.store, self.clock = api, Store(), FakeClock()
        self.queue = WorkQueue(self.clock)
        self.registry = CollectorRegistry()
        metrics = OperatorMetrics(self.registry)
        self.watcher = Watcher(
            self.api, self.store, self.queue, self.clock, metrics, BUDGETS, asyncio.Event()
        )

    def announced(self) -> set[str]:
        """Return the keys whose time has come, as people read them."""
        self.clock.advance(1)
        found = set()
        while (key := self.queue.take()) is not None:
            self.queue.done(key)
            found.add(str(key))
        return found


def test_event_is_taken_over_and_announced() -> None:
    """The object is in the store when it is looked at."""
    scene = Scene(FakeApi())
    scene.watcher.saw(POOLS, None, scene.api.add(POOLS, SMALLEST_POOL))

    assert {"EnginePool agents/small"} == scene.announced()
    assert scene.store.get(Key("EnginePool", "agents", "small")) is not None


DEPENDENTS: dict[str, tuple[Resource, dict[str, Any], set[str]]] = {
    "pod": (PODS, POD, {"EnginePool agents/small"}),
    "stateful-set": (STATEFUL_SETS, POD, {"EnginePool agents/small"}),
    "strangers-pod": (PODS, {"metadata": {"name": "x", "namespace": "agents"}}, set()),
    "pool": (
        POOLS,
        changed(SMALLEST_POOL, "metadata.name", "qwen"),
        {"EnginePool agents/qwen", "CachePolicy agents/a"},
    ),
    "switch": (SWITCHES, SWITCH, {"CacheKillSwitch everything", "CachePolicy agents/a"}),
}


@pytest.mark.parametrize(("resource", "value", "expected"), DEPENDENTS.values(), ids=DEPENDENTS.keys())
@pytest.mark.parametrize("event", ["MODIFIED", GONE])
def test_what_depends_on_it_is_announced(
    resource: Resource, value: dict[str, Any], expected: set[str], event: str
) -> None:
    """A pod's change concerns its pool, a pool's its policies, a switch's all policies."""
    scene = Scene(FakeApi())
    scene.watcher.saw(POLICIES, None, scene.api.add(POLICIES, POLICY))
    scene.announced()
    scene.watcher.saw(resource, event, scene.api.add(resource, value))

    assert expected == scene.announced()


def test_status_of_a_policy_concerns_nobody_else() -> None:
    """Another edition concerns all policies, since one may have stood in another's way."""
    scene = Scene(FakeApi())
    first = scene.api.add(POLICIES, POLICY)
    scene.watcher.saw(POLICIES, None, first)
    scene.watcher.saw(POLICIES, None, scene.api.add(POLICIES, changed(POLICY, "metadata.name", "b")))
    scene.announced()
    other = {**first, "metadata": {**first["metadata"], "resourceVersion": "50"}}
    scene.watcher.saw(POLICIES, "MODIFIED", other)
    assert {"CachePolicy agents/a"} == scene.announced()

    scene.watcher.saw(POLICIES, GONE, other)
    assert {"CachePolicy agents/a", "CachePolicy agents/b", "EnginePool agents/qwen"} == scene.announced()


def test_older_version_does_not_replace_a_newer_one() -> None:
    """A watch that lags behind the operator's own writes changes nothing."""
    scene = Scene(FakeApi())
    newer = {
        "metadata": {"name": "a", "namespace": "agents", "uid": "u", "resourceVersion": "10"},
        "status": {"x": 1},
    }
    older = {"metadata": {**newer["metadata"], "resourceVersion": "9"}}  # type: ignore[dict-item]
    scene.store.put(newer, "CachePolicy")
    scene.watcher.saw(POLICIES, "MODIFIED", older)
    again = {"metadata": {**newer["metadata"], "uid": "v", "resourceVersion": "9"}}  # type: ignore[dict-item]

    assert newer == scene.store.get(Key("CachePolicy", "agents", "a"))
    scene.watcher.saw(POLICIES, "ADDED", again)
    assert again == scene.store.get(Key("CachePolicy", "agents", "a"))


async def test_list_finds_what_a_watch_has_missed() -> None:
    """An object that went without an event is dropped, and its pool is looked at."""
    scene = Scene(FakeApi())
    scene.watcher.saw(PODS, None, scene.api.add(PODS, POD))
    scene.announced()
    scene.api.objects.clear()
    await scene.watcher.list_everything()

    assert ({"EnginePool agents/small"}, 0) == (scene.announced(), len(scene.store))


async def test_list_without_news_announces_nothing() -> None:
    """Once a minute everything is listed; that alone is no reason to look."""
    scene = Scene(FakeApi())
    scene.api.add(POLICIES, POLICY)
    scene.api.add(PODS, POD)
    await scene.watcher.list_everything()
    scene.announced()
    await scene.watcher.list_everything()

    assert set() == scene.announced()


async def test_failed_list_drops_nothing() -> None:
    """An error is never taken for an empty cluster."""
    scene = Scene(FakeApi())
    scene.watcher.saw(POLICIES, None, scene.api.add(POLICIES, POLICY))
    scene.api.is_down = True
    with pytest.raises(ApiUnavailable):
        await scene.watcher.list_everything()

    assert 1 == len(scene.store)


class Hanging(FakeApi):
    """A server whose lists are on their way for as long as a test wants."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()

    async def list_all(self, resource: Resource, *, labels: str = "", namespace: str = "") -> list[Object]:
        """Return what there was when the list was asked for."""
        found = await super().list_all(resource, labels=labels, namespace=namespace)
        if resource == POLICIES:
            self.asked.set()
            await self.go_on.wait()
        return found


async def test_what_a_watch_says_while_a_list_is_on_its_way_stays() -> None:
    """A policy that was made meanwhile is not forgotten for a minute, and one that went stays away."""
    scene = Scene(Hanging())
    gone = scene.api.add(POLICIES, {**POLICY, "metadata": {"name": "gone", "namespace": "agents"}})
    scene.watcher.saw(POLICIES, None, gone)
    listing = asyncio.create_task(scene.watcher.list_everything())
    await scene.api.asked.wait()
    scene.watcher.saw(POLICIES, "ADDED", scene.api.add(POLICIES, POLICY))
    scene.watcher.saw(POLICIES, GONE, gone)
    scene.api.go_on.set()
    await listing

    assert ["a"] == [value["metadata"]["name"] for value in scene.store.of_kind(POLICIES.kind)]


async def test_all_kinds_are_known_before_anything_is_decided() -> None:
    """A kill whose switch comes with a later list must not look like one that was lifted."""
    scene = Scene(Hanging())
    listing = asyncio.create_task(scene.watcher.list_everything())
    waiting = asyncio.create_task(scene.watcher.complete())
    await scene.api.asked.wait()
    before = waiting.done()
    scene.api.go_on.set()
    await listing
    await waiting

    assert (False, True) == (before, waiting.done())


async def test_a_kind_that_may_not_be_listed_keeps_no_other_away() -> None:
    """The right is named by the error, everything else is taken over, and decisions are made."""
    scene = Scene(FakeApi())
    scene.api.forbidden.add("list enginepools.sternpost.dev")
    scene.api.add(SWITCHES, SWITCH)
    with pytest.raises(Forbidden, match=r"may not list enginepools\.sternpost\.dev"):
        await scene.watcher.list_everything()
    await scene.watcher.complete()

    assert 1 == len(scene.store)


async def test_the_lists_age_grows_until_the_next_one() -> None:
    """While a list hangs, too, for that is when somebody has to hear of it."""
    scene, ages = Scene(FakeApi()), []
    for seconds in (70, 5):
        scene.clock.advance(seconds)
        ages.append(scene.registry.get_sample_value("sternpost_operator_list_age_seconds"))
        await scene.watcher.list_everything()
    ages.append(scene.registry.get_sample_value("sternpost_operator_list_age_seconds"))

    assert [70.0, 5.0, 0.0] == ages


async def test_budgets_are_the_servers_version() -> None:
    """A server that has no policy/v1 has the beta."""

    class Old(FakeApi):
        async def list_all(
            self, resource: Resource, *, labels: str = "", namespace: str = ""
        ) -> list[Object]:
            raise NotFound("list poddisruptionbudgets.policy")

    assert (BUDGETS, BUDGETS_BEFORE_1_21) == (await find_budgets(FakeApi()), await find_budgets(Old()))


@dataclass
class Starting(FakeApi):
    """A server that refuses everybody so many times, and then has the beta alone, as one before 1.21."""

    refusals: int = 0

    async def list_all(self, resource: Resource, *, labels: str = "", namespace: str = "") -> list[Object]:
        """Refuse, or answer."""
        right = f"list {resource.full_plural}"
        if self.refusals:
            self.refusals -= 1
            raise Forbidden(right, "no such role")
        raise NotFound(right)


@pytest.mark.parametrize(
    ("refusals", "expected"),
    [
        pytest.param(REFUSALS_MAX - 1, BUDGETS_BEFORE_1_21, id="has-just-started"),
        pytest.param(REFUSALS_MAX, BUDGETS, id="means-it"),
    ],
)
async def test_a_server_that_has_just_started_is_asked_again(refusals: int, expected: Resource) -> None:
    """It knows nobody's rights for a moment; an operator that believed it would list what there is not."""
    waited: list[float] = []

    async def pause(seconds: float) -> None:
        waited.append(seconds)

    assert expected == await choose_budgets(Starting(refusals=refusals), pause)
    assert [START_SECONDS] * (REFUSALS_MAX - 1) == waited
