"""The configuration from the API server: three mirrors, settled into what goes live."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import replace
from operator import is_
from pathlib import Path
from typing import Final

from sternpost_core.clock import Clock
from sternpost_core.errors import Fault
from sternpost_core.rollout import Rollout
from sternpost_gateway.availability import missing_features
from sternpost_gateway.cluster.cluster_api import ClusterApi
from sternpost_gateway.cluster.engines import PoolEngines
from sternpost_gateway.cluster.mirror import Mirror, Store
from sternpost_gateway.cluster.resources import POLICIES, POOLS, SWITCHES, Resource
from sternpost_gateway.cluster.settle import Settled, Stores, settle
from sternpost_gateway.cluster.snapshot import Snapshot
from sternpost_gateway.config import Config, ConfigStatus
from sternpost_gateway.fleet import Engine

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 5.0
"""Between two polls of a collection: with answers within 1 s, no change is missed for more than 7 s."""

POOLS_POLL_SECONDS: Final = 10.0
"""Between two polls of the pools, which switch nothing off; far less than what makes ramps stand still."""

SAVE_SECONDS: Final = 1.0
"""Between looks whether the snapshot on disk is still what is known."""


class ClusterConfig:
    """Holds the live configuration; `on_config` is told about each new one, before anybody can see it."""

    def __init__(
        self,
        api: ClusterApi,
        clock: Clock,
        chance: random.Random,
        namespace: str | None,
        undecided: Rollout,
        state: Path | None,
        on_config: Callable[[Config], None],
        on_engines: Callable[[tuple[Engine, ...]], None],
    ) -> None:
        self.config = Config()
        self._engines = PoolEngines(api, clock, chance, on_engines)
        self._on_config = on_config
        self._settled = Settled()
        self._undecided = undecided
        self._snapshot = Snapshot(state)
        self._started = clock.monotonic()

        def mirror(resource: Resource, poll_seconds: float = POLL_SECONDS) -> Mirror:
            scoped = replace(resource, namespace=namespace)
            return Mirror(scoped, api, clock, chance, poll_seconds, self._settle)

        self._policies, self._switches = mirror(POLICIES), mirror(SWITCHES)
        self._pools = mirror(POOLS, POOLS_POLL_SECONDS)

    @property
    def mirrors(self) -> tuple[Mirror, ...]:
        """Return the mirrors of all collections."""
        return (self._policies, self._pools, self._switches)

    @property
    def status(self) -> ConfigStatus:
        """Return what a person asks: faults of objects and of the server, and when all was heard of last."""
        unheard = [
            Fault(str(mirror.resource), str(mirror.error), "an API server that answers")
            for mirror in (*self.mirrors, *self._engines.mirrors)
            if mirror.error is not None
        ]
        heard = [mirror.heard_at for mirror in self.mirrors]
        read_at = min(self._started if at is None else at for at in heard)
        return ConfigStatus((*self._settled.faults, *unheard), read_at)

    def load(self) -> None:
        """Begin with what was known before a restart; the API server is not needed for it."""
        kept = self._snapshot.load()
        for mirror in self.mirrors if kept else ():
            mirror.restore(kept.get(mirror.resource.plural, ()))
        self._engines.restore(kept)
        self._settle()

    async def watch(self) -> None:
        """Keep up with the API server; runs until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for mirror in self.mirrors:
                group.create_task(mirror.run())
            group.create_task(self._engines.run())
            group.create_task(self._keep_saved())

    def _settle(self) -> None:
        try:
            self._take_over()
        except Exception:
            # The outermost boundary of an edit: whatever it breaks, the watch goes on and brings the next.
            logger.exception("an edit could not be taken over; what was live stays")

    def _take_over(self) -> None:
        stores = Stores(self._policies.objects, self._pools.objects, self._switches.objects)
        settled = settle(stores, self._settled, self._undecided)
        for fault in settled.faults:
            if fault not in self._settled.faults:
                logger.error("refused, the last good form stays live: %s", fault)
        if settled.config != self.config:
            self._go_live(settled.config)
        self._settled = settled

    def _go_live(self, config: Config) -> None:
        self._on_config(config)
        known = self.config.policies.policies
        self.config = config
        self._engines.configure(config.pools)
        names = ", ".join(policy.full_name for policy in config.policies.policies) or "none"
        logger.info("policies live: %s", names)
        for policy in config.policies.policies:
            for note in missing_features(policy) if policy not in known else ():
                logger.warning("policy %s: %s", policy.full_name, note)

    async def _keep_saved(self) -> None:
        saved: tuple[Store, ...] = ()
        while True:
            await asyncio.sleep(SAVE_SECONDS)
            stores = tuple(mirror.objects for mirror in (*self.mirrors, *self._engines.mirrors))
            # A mirror replaces its store and never edits it: the same stores have been written already.
            if len(stores) == len(saved) and all(map(is_, stores, saved)):
                continue
            objects = {mirror.resource.plural: mirror.objects.values() for mirror in self.mirrors}
            if await asyncio.to_thread(self._snapshot.save, {**objects, **self._engines.saved()}):
                saved = stores
