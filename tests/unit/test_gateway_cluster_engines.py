"""The pods of a pool become engines, and stop being engines, as the API server tells."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sternpost_core.clock import SystemClock
from sternpost_core.pool import Adopted, EnginePool, parse_pool
from sternpost_fakes.cluster import FakeCluster
from sternpost_fakes.gateway import eventually
from sternpost_gateway.cluster.engines import PoolEngines, members, resource_of
from sternpost_gateway.cluster.pods import slim_pod
from sternpost_gateway.fleet import Engine

ADOPTING = EnginePool(
    name="qwen", namespace="agents", engines=Adopted(match_labels={"app": "vllm", "a": "b"}, port=9000)
)
POOL = "agents/qwen"


def running_pool() -> EnginePool:
    """Return a pool whose engines the operator runs."""
    engine = {"model": "m", "image": "i"}
    return parse_pool(
        {
            "apiVersion": "sternpost.dev/v1alpha1",
            "kind": "EnginePool",
            "metadata": {"name": "qwen", "namespace": "agents"},
            "spec": {"engine": engine},
        }
    )


def pod(ip: str, ready: str = "True", phase: str = "Running", **metadata: Any) -> dict[str, Any]:
    """Return a pod."""
    return {
        "metadata": {"name": f"pod-{ip}", "namespace": "agents", **metadata},
        "spec": {"containers": [{"name": "engine", "ports": [{"name": "http", "containerPort": 8100}]}]},
        "status": {"podIP": ip, "phase": phase, "conditions": [{"type": "Ready", "status": ready}]},
    }


def fields(ip: str, ready: str = "True") -> dict[str, Any]:
    """Return what `FakeCluster.put` needs to make a pod."""
    made = pod(ip, ready)
    return {"spec": made["spec"], "status": made["status"]}


def told_nothing() -> list[tuple[Engine, ...]]:
    """Return where to write what is told."""
    return []


@asynccontextmanager
async def watched(cluster: FakeCluster, told: list[tuple[Engine, ...]]) -> AsyncIterator[PoolEngines]:
    """Let the engines of the adopting pool be watched for the length of a block."""
    engines = PoolEngines(cluster, SystemClock(), random.Random(7), told.append)
    engines.configure([ADOPTING])
    task = asyncio.create_task(engines.run())
    try:
        yield engines
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_pods_are_selected_by_the_pools_labels_in_its_namespace() -> None:
    """Those that it adopts by their own labels, those that the operator runs by the pool's name."""
    adopting, running = resource_of(ADOPTING), resource_of(running_pool())

    assert ("agents", "a=b,app=vllm") == (adopting.namespace, adopting.labels)
    assert ("agents", "sternpost.dev/pool=qwen") == (running.namespace, running.labels)


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param([pod("10.0.0.2"), pod("10.0.0.1")], ["10.0.0.1:9000", "10.0.0.2:9000"], id="all ready"),
        pytest.param([pod("10.0.0.1"), pod("10.0.0.2", "False")], ["10.0.0.1:9000"], id="one is not ready"),
        pytest.param(
            [pod("10.0.0.1"), pod("10.0.0.2", deletionTimestamp="2026-01-01T00:00:00Z")],
            ["10.0.0.1:9000"],
            id="one is ending",
        ),
        pytest.param([pod("10.0.0.1"), pod("", "True")], ["10.0.0.1:9000"], id="one has no address"),
        pytest.param(
            [pod("10.0.0.1", "Unknown"), pod("10.0.0.2", "Unknown")],
            ["10.0.0.1:9000", "10.0.0.2:9000"],
            id="the cluster has lost sight of all",
        ),
        pytest.param([pod("10.0.0.1", phase="Failed")], [], id="over"),
        pytest.param([], [], id="none"),
    ],
)
def test_members_are_the_pods_that_can_serve(pods: list[dict[str, Any]], expected: list[str]) -> None:
    """In the order of their addresses, with the pool's name."""
    assert [Engine(f"http://{item}", POOL) for item in expected] == members(ADOPTING, pods)


def test_an_engine_of_the_operators_serves_at_the_port_that_is_named_so() -> None:
    """The pool need not say it."""
    assert [Engine("http://10.0.0.1:8100", POOL)] == members(running_pool(), [pod("10.0.0.1")])


def test_another_revision_at_the_same_address_is_another_engine() -> None:
    """Whatever was believed of the one before, its blocks and tails among it, is void."""
    revised = [pod("10.0.0.1", labels={"sternpost.dev/revision": name}) for name in ("a", "b")]
    before, after = (members(ADOPTING, [one]) for one in revised)

    assert [Engine("http://10.0.0.1:9000", POOL, "a")] == before
    assert [Engine("http://10.0.0.1:9000", POOL, "b")] == after


def test_revision_outlives_a_restart() -> None:
    """What is kept of a pod on disk makes the same engine."""
    revised = pod("10.0.0.1", labels={"sternpost.dev/revision": "a", "app": "vllm"})

    assert members(ADOPTING, [revised]) == members(ADOPTING, [slim_pod(revised)])


async def test_pods_that_come_and_go_are_told() -> None:
    """Each change is told once, with all engines."""
    cluster, told = FakeCluster(), told_nothing()
    cluster.put("one", **fields("10.0.0.1"))
    async with watched(cluster, told):
        await eventually(lambda: bool(told) and len(told[-1]) == 1)
        cluster.put("two", **fields("10.0.0.2"))
        await eventually(lambda: len(told[-1]) == 2)
        cluster.put("one", **fields("10.0.0.1", "False"))
        await eventually(lambda: told[-1] == (Engine("http://10.0.0.2:9000", POOL),))
        cluster.delete("two")
        cluster.delete("one")
        await eventually(lambda: told[-1] == ())


async def test_a_pool_that_is_gone_takes_its_engines_with_it() -> None:
    """And its watch ends."""
    cluster, told = FakeCluster(), told_nothing()
    cluster.put("one", **fields("10.0.0.1"))
    async with watched(cluster, told) as engines:
        await eventually(lambda: bool(told) and len(told[-1]) == 1)
        engines.configure([])
        assert () == told[-1] and () == engines.mirrors
        asked = cluster.requests
        cluster.end_watches()
        await asyncio.sleep(0.05)
        assert asked == cluster.requests


async def test_engines_outlive_a_restart_without_the_api_server() -> None:
    """What was saved is served at once."""
    cluster, told, again = FakeCluster(), told_nothing(), told_nothing()
    cluster.put("one", **fields("10.0.0.1"))
    async with watched(cluster, told) as engines:
        await eventually(lambda: bool(told) and len(told[-1]) == 1)
        saved = {name: list(items) for name, items in engines.saved().items()}
    cluster.down = True
    restarted = PoolEngines(cluster, SystemClock(), random.Random(7), again.append)
    restarted.restore(saved)
    restarted.configure([ADOPTING])

    assert told[-1] == again[-1]
