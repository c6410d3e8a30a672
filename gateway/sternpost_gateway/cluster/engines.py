"""
The engines of the pools: the pods that the API server names, for as long as they can serve.

Each pool has its own mirror, because each has its own selector. Readiness as the API server tells it decides
who is a member; whether a member answers, the prober finds out by itself.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from sternpost_core.clock import Clock
from sternpost_core.pool import PORT_DEFAULT, Adopted, EnginePool
from sternpost_gateway.cluster.cluster_api import ClusterApi
from sternpost_gateway.cluster.mirror import Mirror
from sternpost_gateway.cluster.pods import is_leaving, is_ready, pod_address, revision_of, slim_pod
from sternpost_gateway.cluster.resources import PODS, Object, Resource
from sternpost_gateway.fleet import Engine

logger = logging.getLogger(__name__)

POOL_LABEL: Final = "sternpost.dev/pool"
"""The label of pods that the operator runs for a pool; its value is the pool's name."""

PORT_NAME: Final = "http"
"""The name of the port that an engine serves on, where its container names one so."""

POLL_SECONDS: Final = 24.0
"""Between two polls of a pool's pods: even a late one finds a deletion that no watch has told within 30 s."""

POOLS_MAX: Final = 256
"""Pools that one gateway serves; each costs a watch."""


class PoolEngines:
    """Mirrors the pods of each pool; `on_engines` is told about all engines whenever they change."""

    def __init__(
        self,
        api: ClusterApi,
        clock: Clock,
        chance: random.Random,
        on_engines: Callable[[tuple[Engine, ...]], None],
    ) -> None:
        self._api = api
        self._clock = clock
        self._chance = chance
        self._on_engines = on_engines
        self._pools: dict[str, EnginePool] = {}
        self._mirrors: dict[Resource, Mirror] = {}
        self._told: tuple[Engine, ...] = ()
        self._kept: Mapping[str, Sequence[Object]] = {}
        self._change = asyncio.Event()

    @property
    def mirrors(self) -> tuple[Mirror, ...]:
        """Return the mirrors of all pools."""
        return tuple(self._mirrors.values())

    def restore(self, kept: Mapping[str, Sequence[Object]]) -> None:
        """Begin with the pods that were known before a restart, by `saved`'s names."""
        self._kept = kept

    def saved(self) -> dict[str, Iterable[Object]]:
        """Return the pods that are known, by the names that `restore` takes."""
        return {
            _saved_name(resource): [slim_pod(pod) for pod in mirror.objects.values()]
            for resource, mirror in self._mirrors.items()
        }

    def configure(self, pools: Sequence[EnginePool]) -> None:
        """Take the pools as they are now."""
        if len(pools) > POOLS_MAX:
            logger.error("there are %d pools; the first %d are served", len(pools), POOLS_MAX)
        self._pools = {pool.full_name: pool for pool in pools[:POOLS_MAX]}
        wanted = {resource_of(pool) for pool in self._pools.values()}
        self._mirrors = {resource: self._mirror(resource) for resource in wanted}
        self._change.set()
        self._tell()

    async def run(self) -> None:
        """Keep the mirrors of the pools running until cancelled."""
        running: dict[Resource, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                for resource in [known for known in running if known not in self._mirrors]:
                    running.pop(resource).cancel()
                for resource, mirror in self._mirrors.items():
                    if resource not in running:
                        running[resource] = group.create_task(mirror.run())
                await self._change.wait()
                self._change.clear()

    def _mirror(self, resource: Resource) -> Mirror:
        if resource in self._mirrors:
            return self._mirrors[resource]
        mirror = Mirror(resource, self._api, self._clock, self._chance, POLL_SECONDS, self._tell)
        if (name := _saved_name(resource)) in self._kept:
            mirror.restore(self._kept[name])
        return mirror

    def _tell(self) -> None:
        engines = tuple(
            engine
            for pool in self._pools.values()
            if (mirror := self._mirrors.get(resource_of(pool))) is not None
            for engine in members(pool, mirror.objects.values())
        )
        if engines != self._told:
            self._told = engines
            self._on_engines(engines)


def resource_of(pool: EnginePool) -> Resource:
    """Return the collection of a pool's pods."""
    engines = pool.engines
    labels = engines.match_labels if isinstance(engines, Adopted) else {POOL_LABEL: pool.name}
    selector = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
    return replace(PODS, namespace=pool.namespace, labels=selector)


def members(pool: EnginePool, pods: Iterable[Object]) -> list[Engine]:
    """
    Return the engines of a pool.

    Where no pod at all is ready, all that have an address and stay are members: the cluster may have lost
    sight of its nodes, and the prober still finds out which of them answer.
    """
    staying = [pod for pod in pods if not is_leaving(pod)]
    chosen = [pod for pod in staying if is_ready(pod)] or staying
    found = sorted(
        (address, revision_of(pod)) for pod in chosen if (address := _address(pool, pod)) is not None
    )
    return [Engine(f"http://{address}", pool.full_name, revision) for address, revision in found]


def _address(pool: EnginePool, pod: Object) -> str | None:
    if isinstance(pool.engines, Adopted):
        return pod_address(pod, "", pool.engines.port)
    return pod_address(pod, PORT_NAME, PORT_DEFAULT)


def _saved_name(resource: Resource) -> str:
    return f"{resource}?{resource.labels}"
