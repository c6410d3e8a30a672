"""Engines over pooled, kept-alive connections."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from sternpost_gateway.bounded import Bounded
from sternpost_gateway.dialer import Dialer, Origin, origin_of
from sternpost_gateway.settings import Limits, Timeouts
from sternpost_gateway.tls import Tls
from sternpost_gateway.upstream import UpstreamRequest, UpstreamResponse
from sternpost_gateway.upstream_connection import READ_BYTES, Keeping, UpstreamConnection

ORIGINS_MAX: Final = 4096
"""Engines whose addresses are remembered in parts."""


class PooledUpstream:
    """
    An `Upstream` whose connections wait for the next request, the latest first.

    How many there are is bounded by the gateway's own admission; a second bound would queue unseen.
    """

    def __init__(self, limits: Limits, timeouts: Timeouts, tls: Tls | None = None) -> None:
        self._timeouts = timeouts
        self._dialer = Dialer(timeouts, tls)
        self._keeping = Keeping(
            kept_bytes_max=limits.read_buffer_bytes,
            idle_seconds=timeouts.idle_seconds,
            buffer=memoryview(bytearray(READ_BYTES)),
            on_free=self._free,
            on_lost=self._lost,
        )
        self._origins: Bounded[str, Origin] = Bounded(ORIGINS_MAX)
        self._open: dict[UpstreamConnection, Origin] = {}
        self._idle: dict[Origin, dict[UpstreamConnection, float]] = {}
        self._sweep_timer: asyncio.TimerHandle | None = None

    async def send(self, request: UpstreamRequest) -> UpstreamResponse:
        """Send a request and wait until the answer begins; raises as `Upstream.send` says."""
        origin = self._origin(request.engine)
        kept = None if request.fresh else self._take(origin)
        connection = kept or await self._connect(origin)
        return await connection.ask(request)

    async def close(self) -> None:
        """Close all connections."""
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        for connection in tuple(self._open):
            connection.abort()
        # The event loop has each of them say so itself.
        await asyncio.sleep(0)

    def _origin(self, url: str) -> Origin:
        origin = self._origins.get(url)
        if origin is None:
            origin = origin_of(url)
            self._origins.put(url, origin)
        return origin

    def _take(self, origin: Origin) -> UpstreamConnection | None:
        """Return the connection that was free last; if that one is too old, so are all others."""
        idle = self._idle.get(origin)
        while idle:
            connection, since = idle.popitem()
            age = asyncio.get_running_loop().time() - since
            if connection.is_open and age < self._timeouts.pool_keepalive_seconds:
                return connection
            connection.abort()
        return None

    async def _connect(self, origin: Origin) -> UpstreamConnection:
        transport, connection = await self._dialer.connect(
            origin, lambda: UpstreamConnection(origin.authority, self._keeping)
        )
        # An engine whose machine is gone says nothing: the kernel finds out.
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._open[connection] = origin
        return connection

    def _free(self, connection: UpstreamConnection) -> None:
        loop = asyncio.get_running_loop()
        self._idle.setdefault(self._open[connection], {})[connection] = loop.time()
        if self._sweep_timer is None:
            self._sweep_timer = loop.call_later(self._timeouts.pool_keepalive_seconds, self._sweep)

    def _lost(self, connection: UpstreamConnection) -> None:
        origin = self._open.pop(connection, None)
        if origin is None:
            return
        idle = self._idle.get(origin)
        if idle is not None:
            idle.pop(connection, None)
            if not idle:
                del self._idle[origin]

    def _sweep(self) -> None:
        """Close what nobody has asked for in time, and look again while there is something left."""
        loop = asyncio.get_running_loop()
        before = loop.time() - self._timeouts.pool_keepalive_seconds
        waiting = [(one, since) for idle in self._idle.values() for one, since in idle.items()]
        for connection, since in waiting:
            if since <= before:
                connection.abort()
        left = [since for _, since in waiting if since > before]
        delay = min(left) - before if left else 0.0
        self._sweep_timer = loop.call_later(delay, self._sweep) if left else None
