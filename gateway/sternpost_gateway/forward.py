"""The forward stage: one composed request becomes one upstream request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from sternpost_gateway.begun import begun, is_stream
from sternpost_gateway.client import Client
from sternpost_gateway.compose import Composed, Metering
from sternpost_gateway.engine_keys import EngineKeys
from sternpost_gateway.errors import FirstByteTimeout, PoolMisconfigured
from sternpost_gateway.fleet import Engine
from sternpost_gateway.headers import upstream_headers
from sternpost_gateway.plan import wants_stream
from sternpost_gateway.receive import Received
from sternpost_gateway.settings import Credentials
from sternpost_gateway.upstream import Upstream, UpstreamRequest, UpstreamResponse


class Forward:
    """
    Sends composed requests with the pool's credentials.

    An answer's first byte, and a stream's first piece, are due within `first_byte_seconds`, in which a client
    that still sends its body is not waited for.
    """

    def __init__(self, upstream: Upstream, keys: EngineKeys, first_byte_seconds: float) -> None:
        self._upstream = upstream
        self._keys = keys
        self._first_byte_seconds = first_byte_seconds

    async def send(self, composed: Composed, client: Client, *, again: bool = False) -> UpstreamResponse:
        """
        Send a request and wait until its answer begins; a body that was not read streams through.

        A stream begins with its first piece, since its headers come before anything is computed.
        What is sent `again` goes over a fresh connection: an engine that started anew has closed the others.

        Raises:
            PoolMisconfigured: the pool's key is missing; nothing is sent.
            FirstByteTimeout: it did not begin within `first_byte_seconds`.
            ConnectFailed, Disconnected, UpstreamCut: as `Upstream.send` says.
        """
        is_awaited = wants_stream(composed.planned)
        try:
            async with asyncio.timeout(self._first_byte_seconds) as limit:
                response = await self._upstream.send(self._request(composed, client, limit, again))
                return await begun(response) if is_awaited and is_stream(response) else response
        except TimeoutError:
            raise FirstByteTimeout("the engine did not answer in time") from None

    def headers(
        self, received: Received, engine: Engine, *, identity: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """
        Return what an engine gets of a request's headers, and the pool's credentials.

        Raises:
            PoolMisconfigured: the pool's key is missing.
        """
        shown = self._keys.shown(engine)
        if shown.mode is Credentials.REPLACE and not shown.key:
            raise PoolMisconfigured("the pool replaces credentials, but has no key")
        headers = upstream_headers(
            received.headers, received.request_id, shown.mode, shown.key, identity=identity
        )
        return received.trace.propagated(headers)

    async def _upload(self, pieces: AsyncIterator[bytes], limit: asyncio.Timeout) -> AsyncIterator[bytes]:
        """Yield a body's pieces, and let the engine have its time anew for each, and for its answer."""
        self._set(limit, None)
        async for piece in pieces:
            self._set(limit, self._first_byte_seconds)
            yield piece
            self._set(limit, None)
        self._set(limit, self._first_byte_seconds)

    @staticmethod
    def _set(limit: asyncio.Timeout, seconds: float | None) -> None:
        # An answer that has begun ends the limit, and the body may still be on its way.
        with suppress(RuntimeError):
            limit.reschedule(None if seconds is None else asyncio.get_running_loop().time() + seconds)

    def _request(
        self, composed: Composed, client: Client, limit: asyncio.Timeout, again: bool
    ) -> UpstreamRequest:
        received = composed.planned.identified.received
        identity = composed.outlook.hint is not None and composed.metering is not Metering.NONE
        headers = self.headers(received, composed.engine, identity=identity)
        if composed.body is not None:
            return UpstreamRequest(
                received.method, composed.engine.url, received.target, headers, composed.body, again
            )
        # With the client's own framing: a declared length stays, and without one the body goes out in chunks.
        headers.extend(
            item for item in received.headers if item[0] == b"content-length" and received.has_body
        )
        body = self._upload(client.stream_body(), limit) if received.has_body else None
        return UpstreamRequest(received.method, composed.engine.url, received.target, headers, body, again)
