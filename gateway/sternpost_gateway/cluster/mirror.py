"""
A copy of one collection of the API server, kept by three means at once.

A watch brings news within milliseconds. A poll every few seconds brings them when the watch is dead without
knowing it. And each new watch begins with a list, so that what happened in between is not missed. Whatever
arrives is merged by version: nothing older ever replaces something newer, and no failure, no empty answer and
no half answer ever removes anything.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from typing import Final

from sternpost_core.clock import Clock
from sternpost_gateway.cluster.cluster_api import ClusterApi
from sternpost_gateway.cluster.errors import ClusterError, Expired, Silent
from sternpost_gateway.cluster.resources import (
    Event,
    EventKind,
    Key,
    Listing,
    Object,
    Resource,
    key_of,
    version_of,
)

logger = logging.getLogger(__name__)

POLL_SHARE: Final = 0.2
"""By how much a poll comes early or late, so that many gateways do not ask in step."""

KEPT_SECONDS: Final = 0.5
"""How long a poll may take over a connection that was kept; if that is dead, it asks again over a new one."""

ANSWER_SECONDS: Final = 1.0
"""How long it may take then: with a period of 5 s +-20%, a change is seen within 7 s of a dead watch, where
the server answers within half of this."""

LIST_SECONDS: Final = 10.0
"""How long the list before a watch may take; it is read from etcd."""

BACKOFF_SECONDS: Final = (0.5, 1.0, 2.0, 4.0)
"""Between two attempts to watch, unless a poll is answered before; the last is used again and again, because
giving up is no option."""

SPREAD_POLLS: Final = 2.0
SPREAD_SECONDS_MAX: Final = 20.0
"""Over so many of their periods, and no longer, restarts spread their first lists: fifty gateways that
restart together ask as calmly as ever."""

CHECKS_MAX: Final = 64
"""Objects whose absence is checked in one round; the rest wait for the next."""

Store = Mapping[Key, Object]


class Mirror:
    """
    Holds a collection; `on_change` is told after each change.

    `objects` is replaced, never edited, so that whoever holds it holds one moment.
    """

    def __init__(
        self,
        resource: Resource,
        api: ClusterApi,
        clock: Clock,
        chance: random.Random,
        poll_seconds: float,
        on_change: Callable[[], None],
    ) -> None:
        self.resource = resource
        self.objects: Store = {}
        self.heard_at: float | None = None
        self.error: ClusterError | None = None
        self._version = -1
        self._api = api
        self._clock = clock
        self._chance = chance
        self._poll_seconds = poll_seconds
        self._on_change = on_change
        self._first_after = 0.0
        self._answers = asyncio.Event()

    def restore(self, items: Iterable[Object]) -> None:
        """
        Begin with what was known before a restart; it counts until the server says something newer.

        Who knows something asks a little later, so that many who restart together do not ask at once.
        """
        spread = min(SPREAD_SECONDS_MAX, SPREAD_POLLS * self._poll_seconds)
        self._first_after = self._chance.uniform(0.0, spread)
        self.objects = {key_of(item): item for item in items}

    async def run(self) -> None:
        """Keep the copy fresh until cancelled."""
        await asyncio.sleep(self._first_after)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_watching())
            group.create_task(self._keep_polling())

    async def refresh(
        self, cached: bool = True, seconds: float = ANSWER_SECONDS, *, fresh: bool = False
    ) -> int:
        """
        List once; return the collection's version.

        Raises:
            ClusterError: the server could not be asked; the copy is as it was.
        """
        listing = await self._api.list(self.resource, cached, seconds, fresh=fresh)
        self._heard()
        if listing.version < self._version:
            if cached:
                # A server whose cache lags: what it lists may have been deleted since.
                return listing.version
            self._go_back(listing)
        self._version = listing.version
        self._take(merged(self.objects, listing))
        for key in absent(self.objects, listing)[:CHECKS_MAX]:
            if not await self._api.exists(self.resource, key, seconds):
                self._take(without(self.objects, key, listing.version))
        return listing.version

    async def _keep_watching(self) -> None:
        failures = 0
        while True:
            try:
                version = await self.refresh(cached=False, seconds=LIST_SECONDS)
                failures = 0
                await self._watch(version)
            except Expired:
                # Listing again is all that it asks for.
                failures = min(failures + 1, len(BACKOFF_SECONDS))
            except ClusterError as error:
                self._failed(error)
                failures = min(failures + 1, len(BACKOFF_SECONDS))
            await self._rest(self._pause(failures))

    async def _rest(self, seconds: float) -> None:
        """Wait, for no longer than until a poll shows that the server answers."""
        self._answers.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._answers.wait()

    async def _watch(self, version: int) -> None:
        async with aclosing(self._api.watch(self.resource, version)) as events:
            async for event in events:
                self._heard()
                self._take(changed(self.objects, event))
                self._version = max(self._version, version_of(event.item))

    async def _keep_polling(self) -> None:
        while True:
            spread = self._poll_seconds * POLL_SHARE
            await asyncio.sleep(self._poll_seconds + self._chance.uniform(-spread, spread))
            try:
                await self._poll()
            except ClusterError as error:
                self._failed(error)
            else:
                self._answers.set()

    async def _poll(self) -> None:
        try:
            await self.refresh(seconds=KEPT_SECONDS)
        except Silent:
            await self.refresh(fresh=True)

    def _pause(self, failures: int) -> float:
        if failures == 0:
            # The server ended the watch as agreed.
            return self._chance.uniform(0, BACKOFF_SECONDS[0])
        return BACKOFF_SECONDS[failures - 1] * self._chance.uniform(1 - POLL_SHARE, 1 + POLL_SHARE)

    def _go_back(self, listing: Listing) -> None:
        """
        Take over a consistent list that is older than what was known: etcd was restored from a backup.

        Versions begin again at the backup's, so what is held must not count as newer any more.
        """
        logger.error("%s: the API server went back to version %d", self.resource, listing.version)
        listed = {key_of(item): item for item in listing.items}
        self._take({key: listed.get(key, item) for key, item in self.objects.items()})

    def _take(self, store: Store) -> None:
        if store is not self.objects:
            self.objects = store
            self._on_change()

    def _heard(self) -> None:
        if self.error is not None:
            logger.info("%s: the API server answers again", self.resource)
        self.error = None
        self.heard_at = self._clock.monotonic()

    def _failed(self, error: ClusterError) -> None:
        if self.error is None or str(self.error) != str(error):
            logger.warning("%s; what was known last stays", error)
        self.error = error


def merged(store: Store, listing: Listing) -> Store:
    """Return the store with all that the listing has newer; the same one where that is nothing."""
    newer = {
        key_of(item): item for item in listing.items if version_of(item) > held_version(store, key_of(item))
    }
    return {**store, **newer} if newer else store


def absent(store: Store, listing: Listing) -> list[Key]:
    """
    Return what a listing that is newer than the object does not hold.

    Absence from a list is a hint, not a statement: a list may come from a server that has lost its data. The
    caller asks for each object by name.
    """
    listed = {key_of(item) for item in listing.items}
    return [key for key, item in store.items() if key not in listed and version_of(item) < listing.version]


def without(store: Store, key: Key, version: int) -> Store:
    """Return the store without an object, unless a newer one has taken its place."""
    if held_version(store, key) >= version:
        return store
    return {known: item for known, item in store.items() if known != key}


def changed(store: Store, event: Event) -> Store:
    """Return the store after an event; the same one where the event is old news or a bookmark."""
    key, version = key_of(event.item), version_of(event.item)
    if event.kind is EventKind.BOOKMARK or version <= held_version(store, key):
        return store
    if event.kind is not EventKind.DELETED:
        return {**store, key: event.item}
    return without(store, key, version) if key in store else store


def held_version(store: Store, key: Key) -> int:
    """Return the version of an object that is held, -1 of one that is not."""
    held = store.get(key)
    return version_of(held) if held is not None else -1
