"""The configuration from an API server: what goes live, what is kept, and what it says about itself."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sternpost_core.kill import KillLevel
from sternpost_core.rollout import FOR_ALL
from sternpost_fakes.clock import FakeClock
from sternpost_fakes.cluster import FakeCluster
from sternpost_fakes.gateway import eventually
from sternpost_gateway.cluster.errors import ClusterError
from sternpost_gateway.cluster.resources import Event, Key, Listing, Resource
from sternpost_gateway.cluster.snapshot import SNAPSHOT_FILE
from sternpost_gateway.cluster.source import ClusterConfig
from sternpost_gateway.config import Config
from sternpost_gateway.fleet import Engine


@dataclass(slots=True)
class Collections:
    """An API server with a collection for each resource."""

    of: dict[str, FakeCluster] = field(default_factory=dict)

    def __getitem__(self, plural: str) -> FakeCluster:
        """Return a collection."""
        return self.of.setdefault(plural, FakeCluster())

    async def list(self, resource: Resource, cached: bool, seconds: float, *, fresh: bool = False) -> Listing:
        """List a collection."""
        return await self[resource.plural].list(resource, cached, seconds, fresh=fresh)

    def watch(self, resource: Resource, version: int) -> AsyncGenerator[Event, None]:
        """Watch a collection."""
        return self[resource.plural].watch(resource, version)

    async def exists(self, resource: Resource, key: Key, seconds: float) -> bool:
        """Ask a collection for an object."""
        return await self[resource.plural].exists(resource, key, seconds)


@dataclass(slots=True)
class Live:
    """What was told, and the source that told it."""

    source: ClusterConfig
    configs: list[Config]
    engines: list[tuple[Engine, ...]]


def make(server: Collections, state: Path | None = None, fails: bool = False) -> Live:
    """Return a source; `fails` makes the first configuration be refused by whoever is told."""
    configs: list[Config] = []
    engines: list[tuple[Engine, ...]] = []

    def on_config(config: Config) -> None:
        configs.append(config)
        if fails and len(configs) == 1:
            raise RuntimeError("a fault of ours")

    source = ClusterConfig(
        server, FakeClock(), random.Random(7), None, FOR_ALL, state, on_config, engines.append
    )
    return Live(source, configs, engines)


@asynccontextmanager
async def running(live: Live) -> AsyncIterator[None]:
    """Let a source keep up for the length of a block."""
    live.source.load()
    task = asyncio.create_task(live.source.watch())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def put_policy(server: Collections, **spec: Any) -> None:
    """Apply a policy."""
    full = {"match": {"models": ["qwen"]}, "poolRef": {"name": "qwen"}, **spec}
    server["cachepolicies"].put("support", **kind("CachePolicy"), spec=full)


def kind(name: str) -> dict[str, str]:
    """Return what names an object's kind."""
    return {"apiVersion": "sternpost.dev/v1alpha1", "kind": name}


def put_pool(server: Collections) -> None:
    """Apply a pool with one pod."""
    spec = {"selector": {"matchLabels": {"app": "vllm"}}}
    server["enginepools"].put("qwen", **kind("EnginePool"), spec=spec)
    status = {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
    server["pods"].put("vllm-0", spec={}, status=status)


def level(live: Live) -> KillLevel | None:
    """Return the kill level of the live policy."""
    return next((item.kill_level for item in live.source.config.policies.policies), None)


async def test_objects_of_all_kinds_go_live() -> None:
    """A policy, then a pool with its engine, then a switch."""
    server = Collections()
    live = make(server)
    async with running(live):
        put_policy(server)
        await eventually(lambda: level(live) is KillLevel.NONE)
        put_pool(server)
        await eventually(lambda: live.engines[-1:] == [(Engine("http://10.0.0.1:8000", "agents/qwen"),)])
        spec = {"level": "NewEpoch", "selector": {}}
        server["cachekillswitches"].put("all", "", **kind("CacheKillSwitch"), spec=spec)
        await eventually(lambda: bool(live.source.config.switches))


async def test_a_failure_of_ours_does_not_end_the_watch() -> None:
    """The next edit is taken over as if nothing had been."""
    server = Collections()
    live = make(server, fails=True)
    async with running(live):
        put_policy(server)
        await eventually(lambda: len(live.configs) == 1)
        put_policy(server, killLevel="NoSuffixReads")
        await eventually(lambda: level(live) is KillLevel.NO_SUFFIX_READS)


async def test_a_restart_without_the_api_server_knows_all_it_knew(tmp_path: Path) -> None:
    """Policies with their kill level, and the engines."""
    server = Collections()
    before = make(server, tmp_path)
    async with running(before):
        put_policy(server, killLevel="NoSuffixReads")
        put_pool(server)
        await eventually(lambda: level(before) is not None and bool(before.engines))
        await eventually(lambda: "vllm-0" in _text(tmp_path))
    after = make(Collections({name: _down() for name in server.of}), tmp_path)
    async with running(after):
        assert KillLevel.NO_SUFFIX_READS is level(after)
        assert before.engines[-1:] == after.engines[-1:]
        await eventually(lambda: bool(after.source.status.faults))


async def test_a_damaged_snapshot_begins_with_nothing(tmp_path: Path) -> None:
    """The API server knows it all anyway."""
    (tmp_path / SNAPSHOT_FILE).write_bytes(b"{")
    live = make(Collections(), tmp_path)
    live.source.load()

    assert Config() == live.source.config


async def test_faults_name_the_object_or_the_server() -> None:
    """Both kinds are told; the outage ends with the first answer."""
    server = Collections()
    live = make(server)
    async with running(live):
        put_policy(server, colour="red")
        await eventually(lambda: "CachePolicy agents/support: spec.colour" in _paths(live))
        server["enginepools"].down = True
        server["enginepools"].end_watches(ClusterError("cut"))
        await eventually(lambda: "enginepools" in _paths(live))
        server["enginepools"].down = False
        await eventually(lambda: "enginepools" not in _paths(live))


def _paths(live: Live) -> list[str]:
    return [fault.path for fault in live.source.status.faults]


def _text(state: Path) -> str:
    path = state / SNAPSHOT_FILE
    return path.read_text() if path.exists() else ""


def _down() -> FakeCluster:
    cluster = FakeCluster()
    cluster.down = True
    return cluster
