"""An API server in memory whose answers can be delayed, lost, stale or wrong on command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from sternpost_gateway.cluster.errors import ClusterError, Expired, Silent
from sternpost_gateway.cluster.resources import Event, EventKind, Key, Listing, Object, Resource, key_of


class FakeCluster:
    """
    One collection with etcd's numbering; the plural of the resource that is asked for is ignored.

    `deaf` watches get nothing and do not end; nothing comes over connections that were kept while it
    `is_silent`. `lag` is how many versions a cached list is behind. `down`
    makes every request fail.
    """

    def __init__(self) -> None:
        self.version = 10
        self.objects: dict[Key, Object] = {}
        self.history: list[tuple[int, dict[Key, Object]]] = [(10, {})]
        self.down = False
        self.deaf = False
        self.lag = 0
        self.says_nothing = False
        self.is_silent = False
        self.requests = 0
        self._watches: list[asyncio.Queue[Event | Exception | None]] = []

    def put(self, name: str, namespace: str = "agents", **fields: Any) -> Object:
        """Create or replace an object."""
        key = Key(namespace, name)
        kind = EventKind.MODIFIED if key in self.objects else EventKind.ADDED
        self.version += 1
        metadata = {"name": name, "resourceVersion": str(self.version)}
        if namespace:
            metadata["namespace"] = namespace
        item: Mapping[str, Any] = {"metadata": metadata, **fields}
        self.objects[key] = item
        self._tell(Event(kind, item))
        return item

    def delete(self, name: str, namespace: str = "agents") -> None:
        """Delete an object."""
        self.version += 1
        item = self.objects.pop(Key(namespace, name))
        gone = {**item, "metadata": {**item["metadata"], "resourceVersion": str(self.version)}}
        self._tell(Event(EventKind.DELETED, gone))

    def restore(self, version: int) -> None:
        """Go back to an earlier version, as etcd does from a backup."""
        known, objects = max((moment for moment in self.history if moment[0] <= version), key=lambda m: m[0])
        self.version, self.objects = known, dict(objects)
        self.end_watches()

    def end_watches(self, error: Exception | None = None) -> None:
        """End all watches, in an orderly way or with an error."""
        for queue in self._watches:
            queue.put_nowait(error)
        self._watches.clear()

    async def list(self, resource: Resource, cached: bool, seconds: float, *, fresh: bool = False) -> Listing:
        """Return the collection; a cached one may be old."""
        self._check()
        if self.is_silent and not fresh:
            await asyncio.sleep(seconds)
            raise Silent("no answer came")
        if self.says_nothing:
            return Listing(self.version + 1, ())
        if not cached or not self.lag:
            return Listing(self.version, tuple(self.objects.values()))
        version, objects = self.history[max(0, len(self.history) - 1 - self.lag)]
        return Listing(version, tuple(objects.values()))

    async def watch(self, resource: Resource, version: int) -> AsyncGenerator[Event, None]:
        """Yield what happens from now on; what happened since `version` is not kept, as after compaction."""
        self._check()
        if version < self.version:
            raise Expired("too old resource version")
        queue: asyncio.Queue[Event | Exception | None] = asyncio.Queue()
        self._watches.append(queue)
        while (event := await queue.get()) is not None:
            if isinstance(event, Exception):
                raise event
            yield event

    async def exists(self, resource: Resource, key: Key, seconds: float) -> bool:
        """Ask for one object."""
        self._check()
        if self.says_nothing:
            raise ClusterError("the server does not say")
        return key in self.objects

    def _check(self) -> None:
        self.requests += 1
        if self.down:
            raise ClusterError("the API server is down")

    def _tell(self, event: Event) -> None:
        self.history.append((self.version, dict(self.objects)))
        if not self.deaf:
            for queue in self._watches:
                queue.put_nowait(event)


def names(objects: Mapping[Key, Object]) -> set[str]:
    """Return the names of objects."""
    return {key_of(item).name for item in objects.values()}
