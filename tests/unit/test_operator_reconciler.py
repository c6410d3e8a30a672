"""One look at an object: what is written, what is told, and what happens when the server says no."""

import asyncio
import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from sternpost_core.policy_status import SegmentVersion
from sternpost_fakes.clock import FakeClock
from sternpost_fakes.kube_api import FakeApi
from sternpost_fakes.policies import FULL, MISSING, SMALLEST, SMALLEST_POOL, SWITCH, changed
from sternpost_operator.admission import Admission
from sternpost_operator.app import run_informed
from sternpost_operator.engines import Reuse, Said
from sternpost_operator.figures import Figures
from sternpost_operator.fleet import Fleet
from sternpost_operator.gateways import GatewayReport
from sternpost_operator.metrics import OperatorMetrics
from sternpost_operator.prometheus import FiguresUnavailable
from sternpost_operator.queries import Spans
from sternpost_operator.reconciler import Reconciler, World
from sternpost_operator.resources import (
    BUDGETS,
    EVENTS,
    PODS,
    POLICIES,
    POOLS,
    SERVICES,
    STATEFUL_SETS,
    SWITCHES,
    Key,
    Object,
    Resource,
)
from sternpost_operator.segments import Seen
from sternpost_operator.store import Store
from sternpost_operator.watcher import Watcher
from sternpost_operator.work_queue import WorkQueue

POLICY = changed(changed(FULL, "status", MISSING), "metadata", {"name": "support", "namespace": "agents"})
POLICY_KEY = Key("CachePolicy", "agents", "support")
POOL_KEY = Key("EnginePool", "agents", "small")
SWITCH_KEY = Key("CacheKillSwitch", "", "everything")


@dataclass
class FakeProbes:
    """Engines, gateways and figures at once; `asked` are the addresses."""

    reports: Mapping[str, GatewayReport] = field(default_factory=dict)
    seen: Seen = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    queried: list[str] = field(default_factory=list)

    async def figures(self, url: str, policy: str, spans: Spans) -> Figures:
        """Fail: a test that needs figures decides with them directly."""
        self.queried.append(f"{url} {policy} {spans.step}")
        raise FiguresUnavailable(f"{url} did not answer")


class FakeEngines(FakeProbes):
    """Says that every engine reuses tails."""

    async def ask(self, addresses: Mapping[str, str]) -> dict[str, Said]:
        """Return that."""
        self.asked += addresses.values()
        return dict.fromkeys(addresses, Said(Reuse.READY))


class FakeGateways(FakeProbes):
    """Says what a test has put into `reports`."""

    async def ask(self, addresses: Mapping[str, str]) -> dict[str, GatewayReport]:
        """Return that."""
        return {name: self.reports.get(name, GatewayReport(fault="no answer")) for name in addresses}

    async def versions(self, addresses: Mapping[str, str]) -> list[Seen]:
        """Return what a test has put into `seen`."""
        return [self.seen for _ in addresses]


class Scene:
    """A reconciler over a server in memory."""

    def __init__(self, *, separate: bool = False, **more: Any) -> None:
        self.api, self.clock = FakeApi(), FakeClock()
        self.engines, self.gateways = FakeEngines(), FakeGateways()
        queue = WorkQueue(self.clock)
        self.fleet = Fleet(self.api, self.gateways, queue, "app=gateway", 8080)
        self.world = World(
            api=self.api,
            store=Store(),
            queue=queue,
            clock=self.clock,
            engines=self.engines,
            gateways=self.gateways,
            fleet=self.fleet,
            figures=self.engines,
            metrics=OperatorMetrics(CollectorRegistry()),
            **more,
        )
        self.reconciler = Reconciler(self.world, Admission(self.world.store, separate=separate))

    def add(self, resource: Resource, value: Object) -> None:
        """Put an object on the server, and into the store as a watch would."""
        self.world.store.put(self.api.add(resource, value), resource.kind)

    async def look(self, key: Key) -> dict[str, Any]:
        """Look at an object once, and return its status on the server."""
        self.world.queue.add(key)
        taken = self.world.queue.take()
        assert key == taken
        await self.reconciler.work(key)
        plural = {"CachePolicy": "cachepolicies", "EnginePool": "enginepools"}.get(
            key.kind, "cachekillswitches"
        )
        status: dict[str, Any] = self.api.objects[plural, key.namespace, key.name].get("status", {})
        return status

    def phases(self) -> list[tuple[str, str]]:
        """Return the policies that metrics show, each with the phases that it is in."""
        return [
            (sample.labels["policy"], sample.labels["phase"])
            for metric in self.world.metrics.policy_phase.collect()
            for sample in metric.samples
            if sample.value == 1
        ]

    def told(self) -> list[str]:
        """Return the reasons of all events."""
        return [event["reason"] for event in self.api.of(EVENTS)]


def condition(status: Mapping[str, Any], kind: str) -> tuple[str, str]:
    """Return status and reason of a condition."""
    return next((one["status"], one["reason"]) for one in status["conditions"] if one["type"] == kind)


async def test_policy_without_a_pool_is_accepted_and_waits() -> None:
    """Objects may come in any order."""
    scene = Scene()
    scene.add(POLICIES, POLICY)
    status = await scene.look(POLICY_KEY)

    assert ("True", "Valid") == condition(status, "Accepted")
    assert ("False", "PoolNotFound") == condition(status, "Ready")
    assert ["PoolNotFound"] == scene.told()


async def test_a_policys_phase_is_shown_for_as_long_as_there_is_a_policy() -> None:
    """Exactly one phase at a time, and nothing of a policy that is gone."""
    scene = Scene()
    scene.add(POLICIES, POLICY)
    await scene.look(POLICY_KEY)
    waiting = scene.phases()
    scene.world.store.put({**POLICY, "spec": {}}, POLICIES.kind)
    await scene.look(POLICY_KEY)
    rejected = scene.phases()
    scene.world.store.drop(POLICY_KEY)
    await scene.look(POLICY_KEY)

    assert [("agents/support", "Waiting")] == waiting
    assert [] == scene.phases()
    assert 1 == len(rejected)


async def test_second_look_costs_no_call() -> None:
    """A steady policy is decided from the store."""
    scene = Scene()
    scene.add(POLICIES, POLICY)
    await scene.look(POLICY_KEY)
    scene.api.calls.clear()
    scene.clock.advance(300)
    await scene.look(POLICY_KEY)

    assert [] == scene.api.calls


async def test_pool_is_rendered_and_its_engines_are_asked() -> None:
    """The children exist afterwards, and policies of the pool are looked at again."""
    scene = Scene()
    scene.add(POOLS, SMALLEST_POOL)
    scene.add(POLICIES, changed(POLICY, "spec.poolRef.name", "small"))
    labels = {"sternpost.dev/pool": "small"}
    ready = {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
    scene.add(
        PODS, {"metadata": {"name": "small-0", "namespace": "agents", "labels": labels}, "status": ready}
    )
    status = await scene.look(POOL_KEY)

    assert [1, 1, 1] == [len(scene.api.of(resource)) for resource in (STATEFUL_SETS, SERVICES, BUDGETS)]
    assert (["http://10.0.0.1:8000"], 1) == (scene.engines.asked, status["readyReplicas"])
    assert POLICY_KEY == scene.world.queue.take()


async def test_engines_get_the_texts_that_accepted_policies_name() -> None:
    """Those of a policy that is refused are left out, and so are those of another pool."""
    scene = Scene()
    scene.add(POOLS, SMALLEST_POOL)
    mine = changed(POLICY, "spec.poolRef.name", "small")
    scene.add(POLICIES, mine)
    scene.add(POLICIES, changed(changed(POLICY, "metadata.name", "far"), "spec.match.models", ["far"]))
    refused = changed(mine, "spec.suffixCache.calibration.configMapRef.name", "other")
    scene.add(POLICIES, changed(refused, "metadata.name", "refused"))
    await scene.look(POOL_KEY)
    (stateful_set,) = scene.api.of(STATEFUL_SETS)
    volumes = stateful_set["spec"]["template"]["spec"]["volumes"]

    assert [{"configMap": {"name": "support-middles"}}] == volumes[0]["projected"]["sources"]


async def test_stale_decision_is_not_written() -> None:
    """Somebody else was faster: the object is read again, and nothing is told of the decision."""
    scene = Scene()
    scene.add(POLICIES, POLICY)
    scene.api.add(POLICIES, {**POLICY, "metadata": {**POLICY["metadata"], "generation": 2}})
    status = await scene.look(POLICY_KEY)

    assert ({}, []) == (status, scene.told())
    scene.clock.advance(2)
    assert 2 == (await scene.look(POLICY_KEY))["observedGeneration"]


async def test_missing_right_is_named_in_the_status() -> None:
    """Whoever looks at the object learns which verb on what is missing."""
    scene = Scene()
    scene.add(POOLS, SMALLEST_POOL)
    scene.api.forbidden = {"patch statefulsets.apps"}
    status = await scene.look(POOL_KEY)
    message = next(one["message"] for one in status["conditions"] if one["type"] == "Degraded")

    assert ("True", "MissingPermission") == condition(status, "Degraded")
    assert "patch statefulsets.apps" in message
    assert ["MissingPermission"] == scene.told()


async def test_refusal_of_what_a_pool_becomes_is_told_once() -> None:
    """Whoever looks at the pool learns what the server does not take; once it does, all is well again."""
    scene = Scene()
    scene.add(POOLS, SMALLEST_POOL)
    scene.api.refused = {"patch services"}
    status = await scene.look(POOL_KEY)
    scene.clock.advance(2)
    assert ("True", "Refused") == condition(status, "Degraded")
    assert status == await scene.look(POOL_KEY)
    assert ["Refused"] == scene.told()
    scene.api.refused = set()
    scene.clock.advance(2)

    assert ("False", "AsExpected") == condition(await scene.look(POOL_KEY), "Degraded")


async def test_refused_status_is_not_written_again_and_again() -> None:
    """There is no way left to tell it but the log."""
    scene = Scene()
    scene.add(POOLS, SMALLEST_POOL)
    scene.api.refused = {"update enginepools.sternpost.dev/status"}

    assert {} == await scene.look(POOL_KEY)
    assert 1 == scene.api.calls.count("update enginepools.sternpost.dev/status")


@pytest.mark.parametrize("resource", [SERVICES, STATEFUL_SETS, BUDGETS], ids=lambda one: one.kind)
async def test_what_somebody_else_has_made_stays_as_it_is(resource: Resource) -> None:
    """A Service of the pool's name may lead others to their engines, and would go when the pool goes."""
    scene = Scene()
    theirs = scene.api.add(resource, {"metadata": {"name": "small", "namespace": "agents"}, "spec": {}})
    scene.add(POOLS, SMALLEST_POOL)
    status = await scene.look(POOL_KEY)

    assert theirs == scene.api.of(resource)[0]
    assert ("True", "NotOwned") == condition(status, "Degraded")
    assert f"a {resource.kind} agents/small already" in status["conditions"][0]["message"]


async def test_missing_right_for_events_stops_nothing() -> None:
    """The status says the same."""
    scene = Scene()
    scene.add(POLICIES, POLICY)
    scene.api.forbidden = {"create events"}

    assert ("True", "Valid") == condition(await scene.look(POLICY_KEY), "Accepted")


async def test_failures_come_again_later_and_later() -> None:
    """A server that is down is asked again after one second, then two."""
    scene = Scene()
    scene.add(POLICIES, POLICY)
    scene.api.is_down = True
    await scene.look(POLICY_KEY)
    assert scene.world.queue.take() is None
    scene.clock.advance(1)
    assert POLICY_KEY == scene.world.queue.take()
    await scene.reconciler.work(POLICY_KEY)
    scene.clock.advance(1)
    assert scene.world.queue.take() is None


async def test_younger_of_two_policies_stands_back() -> None:
    """The one that works keeps working; the other says in whose way it is."""
    scene = Scene()
    scene.add(POLICIES, POLICY)
    scene.add(POLICIES, changed(POLICY, "metadata", {"name": "other", "namespace": "agents"}))
    first = await scene.look(POLICY_KEY)
    second = await scene.look(Key("CachePolicy", "agents", "other"))

    assert (("True", "Valid"), ("False", "Conflict")) == (
        condition(first, "Accepted"),
        condition(second, "Accepted"),
    )
    assert "agents/support" in second["conditions"][0]["message"]


@pytest.mark.parametrize(
    ("separate", "expected"),
    [
        pytest.param(False, ("False", "Conflict"), id="gateways-see-all-namespaces"),
        pytest.param(True, ("True", "Valid"), id="gateways-see-one-namespace"),
    ],
)
async def test_a_policy_of_another_namespace_is_in_the_way_of_gateways_that_see_both(
    separate: bool, expected: tuple[str, str]
) -> None:
    """One request could match both there; where no gateway sees both, none could."""
    scene = Scene(separate=separate)
    scene.add(POLICIES, POLICY)
    scene.add(POLICIES, changed(POLICY, "metadata", {"name": "support", "namespace": "others"}))
    scene.add(POLICIES, changed(POLICY, "metadata", {"name": "second", "namespace": "others"}))
    status = await scene.look(Key("CachePolicy", "others", "support"))
    second = await scene.look(Key("CachePolicy", "others", "second"))

    assert expected == condition(status, "Accepted")
    assert ("False", "Conflict") == condition(second, "Accepted")


async def test_older_policy_that_is_gone_makes_room() -> None:
    """What stood back is accepted then."""
    scene = Scene()
    scene.add(POLICIES, POLICY)
    scene.add(POLICIES, changed(POLICY, "metadata", {"name": "other", "namespace": "agents"}))
    await scene.look(Key("CachePolicy", "agents", "other"))
    scene.world.store.drop(POLICY_KEY)
    status = await scene.look(Key("CachePolicy", "agents", "other"))

    assert ("True", "Valid") == condition(status, "Accepted")


async def test_switch_kills_the_policies_that_it_selects() -> None:
    """The policy's rollout stands still, and reads are off when it comes back."""
    scene = Scene()
    scene.add(POOLS, {**SMALLEST_POOL, "status": {"readyReplicas": 1}})
    scene.add(POLICIES, changed(changed(POLICY, "spec.poolRef.name", "small"), "spec.killLevel", "None"))
    scene.add(SWITCHES, SWITCH)
    status = await scene.look(POLICY_KEY)

    assert ("Killed", 0) == (status["phase"], status["readWeight"])


async def test_a_kill_outlives_the_start_of_an_operator() -> None:
    """The policy is seen before its switch; until both are, nothing looks like a kill that was lifted."""
    first, second = Scene(), Scene()
    first.add(POOLS, {**SMALLEST_POOL, "status": {"readyReplicas": 1}})
    first.add(POLICIES, changed(changed(POLICY, "spec.poolRef.name", "small"), "spec.killLevel", "None"))
    first.add(SWITCHES, SWITCH)
    killed = copy.deepcopy(await first.look(POLICY_KEY))
    second.api.objects = first.api.objects
    world = second.world
    watcher = Watcher(
        second.api, world.store, world.queue, world.clock, world.metrics, BUDGETS, asyncio.Event()
    )
    working = asyncio.create_task(run_informed(watcher, second.reconciler))
    watcher.saw(POLICIES, None, second.api.objects["cachepolicies", "agents", "support"])
    await _let_everybody_work()
    await watcher.list_everything()
    await _let_everybody_work()
    working.cancel()
    after = second.api.objects["cachepolicies", "agents", "support"]["status"]

    assert "Killed" == killed["phase"] == after["phase"]
    assert killed["decisions"] == after["decisions"]


async def _let_everybody_work() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_switch_says_who_obeys() -> None:
    """Gateways are found by their label and asked; one that does not answer is named."""
    scene = Scene()
    ready = {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
    for name in ("a", "b"):
        metadata = {"name": name, "namespace": "x", "labels": {"app": "gateway"}}
        scene.add(PODS, {"metadata": metadata, "status": ready})
    scene.gateways.reports = {"a": GatewayReport({"": 1, "agents/support": 1}, 0.5)}
    scene.add(SWITCHES, SWITCH)
    status = await scene.look(SWITCH_KEY)

    assert (2, 1) == (status["gateways"], status["obeying"])
    assert [{"gateway": "b", "reason": "no answer"}] == status["missing"]


async def test_versions_that_gateways_have_seen_get_one_number() -> None:
    """The policy is looked at when there is news, and its status names them."""
    scene = Scene()
    ready = {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
    metadata = {"name": "a", "namespace": "x", "labels": {"app": "gateway"}}
    scene.add(PODS, {"metadata": metadata, "status": ready})
    scene.add(POLICIES, POLICY)
    await scene.look(POLICY_KEY)
    scene.gateways.seen = {"agents/support": (SegmentVersion("tail", 1, "0123456789abcdef" * 4),)}
    await scene.fleet.ask()
    assert POLICY_KEY == scene.world.queue.take()
    await scene.reconciler.work(POLICY_KEY)
    await scene.fleet.ask()

    status = scene.api.of(POLICIES)[0]["status"]
    assert [{"segment": "tail", "version": "v1", "contentId": "0123456789abcdef"}] == status["segments"]
    assert scene.world.queue.take() is None


async def test_figures_are_asked_for_where_the_policy_says() -> None:
    """The policy's own address counts before the operator's; without an answer the rollout holds."""
    scene = Scene(prometheus_url="http://other")
    scene.add(POOLS, {**SMALLEST_POOL, "status": {"readyReplicas": 1}})
    policy = changed(changed(POLICY, "spec.poolRef.name", "small"), "spec.killLevel", "None")
    scene.add(POLICIES, changed(policy, "spec.rollout.paused", False))
    await scene.look(POLICY_KEY)
    scene.clock.advance(15)
    status = await scene.look(POLICY_KEY)

    assert ["http://prometheus.monitoring:9090 agents/support 60"] == scene.engines.queried
    assert "Holding" == status["phase"]


@pytest.mark.parametrize(
    "value",
    [
        pytest.param({**SMALLEST, "spec": None}, id="blank"),
        pytest.param({**SMALLEST, "spec": {"match": [], "poolRef": 7}}, id="of-wrong-types"),
        pytest.param({**SMALLEST, "apiVersion": "sternpost.dev/v9"}, id="of-another-version"),
        pytest.param(changed(SMALLEST, "spec.match.models", ["x" * 1_000_000]), id="huge"),
    ],
)
async def test_any_object_gets_an_answer(value: dict[str, Any]) -> None:
    """Whatever the server lets through is refused with a condition, and nothing else stops."""
    scene = Scene()
    scene.add(POLICIES, {**value, "metadata": {"name": "bad", "namespace": "agents"}})
    status = await scene.look(Key("CachePolicy", "agents", "bad"))

    assert ("False", "Invalid") == condition(status, "Accepted")


async def test_object_that_is_gone_is_forgotten() -> None:
    """There is nothing to look at, and no call to learn it."""
    scene = Scene()
    scene.world.queue.add(POLICY_KEY)
    assert POLICY_KEY == scene.world.queue.take()
    await scene.reconciler.work(POLICY_KEY)

    assert (0, []) == (len(scene.world.queue), scene.api.calls)
