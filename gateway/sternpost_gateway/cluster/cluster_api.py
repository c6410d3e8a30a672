"""What the parts of this package need of the API server, whoever answers for it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from sternpost_gateway.cluster.resources import Event, Key, Listing, Resource


class ClusterApi(Protocol):
    """What a mirror needs of the API server; every method raises ClusterError when it fails."""

    async def list(self, resource: Resource, cached: bool, seconds: float, *, fresh: bool = False) -> Listing:
        """
        Return the collection, read from etcd or from the server's own cache.

        `fresh` asks over a connection that nobody has used: others may be dead without knowing it.
        """

    def watch(self, resource: Resource, version: int) -> AsyncGenerator[Event, None]:
        """Yield what happens after a version, until the server ends the watch."""

    async def exists(self, resource: Resource, key: Key, seconds: float) -> bool:
        """Ask for one object; False only if the server says that this very object is not there."""
