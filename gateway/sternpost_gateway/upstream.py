"""
The engine's side of one exchange.

This is the only module of the hot path that knows the HTTP client; its exceptions are mapped here, once.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import aiohttp
from yarl import URL

from sternpost_gateway.errors import (
    ConnectFailed,
    Disconnected,
    FirstByteTimeout,
    UpstreamCut,
    UpstreamStalled,
)
from sternpost_gateway.settings import Limits, Timeouts
from sternpost_gateway.tls import Tls

AUTO_HEADERS: Final = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")
"""Headers that the HTTP client would add by itself: an engine receives the client's, or none."""

WHOLE_BYTES_MAX: Final = 512 * 1024
"""The largest body that is handed to the transport at once; a larger one would hold up all other streams."""

HEADER_BYTES_MAX: Final = 65536
"""Of an engine's status line and of each of its headers."""


@dataclass(frozen=True, slots=True)
class UpstreamRequest:
    """
    What goes to an engine; `url` and `headers` are sent as they stand.

    `fresh` asks for a connection of its own: one that was kept may have been closed by the engine meanwhile.
    """

    method: str
    url: str
    headers: Sequence[tuple[str, str]]
    body: bytes | AsyncIterator[bytes] | None
    fresh: bool = False


class UpstreamResponse(Protocol):
    """An answer that has begun."""

    @property
    def status(self) -> int:
        """Return the HTTP status."""

    @property
    def headers(self) -> Sequence[tuple[bytes, bytes]]:
        """Return the headers as they came."""

    async def read(self) -> bytes:
        """
        Return the next piece as it came, empty at the end.

        Raises:
            UpstreamCut: the answer ended before it was complete.
            UpstreamStalled: nothing has come of it for too long.
        """

    def close(self) -> None:
        """End the exchange: the connection is kept only if the answer was read to its end."""


class Upstream(Protocol):
    """A way to reach engines."""

    async def open(self) -> None:
        """Get ready, inside the running event loop."""

    async def send(self, request: UpstreamRequest) -> UpstreamResponse:
        """
        Send a request and wait until the answer begins.

        Raises:
            ConnectFailed: no connection could be opened.
            Disconnected: the connection ended before the first byte of an answer.
            FirstByteTimeout: no answer began in time.
            UpstreamCut: the answer ended within its headers, or is not HTTP.
        """

    async def close(self) -> None:
        """Close all connections."""


class PooledUpstream:
    """Reaches engines over pooled, kept-alive connections, between `open` and `close`."""

    def __init__(self, limits: Limits, timeouts: Timeouts, tls: Tls | None = None) -> None:
        self._limits = limits
        self._timeouts = timeouts
        self._tls = tls
        self._kept: aiohttp.ClientSession | None = None
        self._fresh: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Make the pool, which belongs to the running event loop."""
        self._kept = self._session(keepalive_timeout=self._timeouts.pool_keepalive_seconds)
        self._fresh = self._session(force_close=True)

    def _session(self, **keeping: Any) -> aiohttp.ClientSession:
        """Return a client of engines; `keeping` says what becomes of its connections after an exchange."""
        timeouts = self._timeouts
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                # The gateway's own admission bounds the connections; a second bound would queue unseen.
                limit=0,
                ssl=True if self._tls is None else self._tls.context,
                **keeping,
            ),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=timeouts.connect_seconds, sock_read=timeouts.idle_seconds
            ),
            auto_decompress=False,
            skip_auto_headers=AUTO_HEADERS,
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=self._limits.read_buffer_bytes,
            max_line_size=HEADER_BYTES_MAX,
            max_field_size=HEADER_BYTES_MAX,
        )

    async def send(self, request: UpstreamRequest) -> UpstreamResponse:
        """Send a request and wait until the answer begins; raises as `Upstream.send` says."""
        session = self._fresh if request.fresh else self._kept
        assert session is not None, "the pool is open"
        with _mapped():
            try:
                async with asyncio.timeout(self._timeouts.first_byte_seconds):
                    response = await session.request(
                        request.method,
                        URL(request.url, encoded=True),
                        headers=request.headers,
                        data=_payload(request.body),
                        allow_redirects=False,
                        server_hostname=None if self._tls is None else self._tls.server_name,
                    )
            except TimeoutError as error:
                if isinstance(error, aiohttp.ClientError):
                    raise
                raise FirstByteTimeout("the engine did not answer in time") from None
        return PooledResponse(response)

    async def close(self) -> None:
        """Close all connections."""
        for session in (self._kept, self._fresh):
            if session is not None:
                await session.close()


class PooledResponse:
    """An answer from `PooledUpstream`."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.status = response.status
        self.headers = response.raw_headers
        self._response = response

    async def read(self) -> bytes:
        """Return the next piece as it came, empty at the end; raises as `UpstreamResponse.read` says."""
        try:
            return await self._response.content.readany()
        except TimeoutError as error:
            raise UpstreamStalled("the engine's answer stalled before it was complete") from error
        except (aiohttp.ClientError, OSError) as error:
            raise UpstreamCut("the engine's answer ended before it was complete") from error

    def close(self) -> None:
        """End the exchange; an answer that was not read to its end takes its connection with it."""
        self._response.close()


def _payload(body: bytes | AsyncIterator[bytes] | None) -> object:
    """Return a body in the form that the client writes piece by piece when it is large."""
    if isinstance(body, bytes) and len(body) > WHOLE_BYTES_MAX:
        return io.BytesIO(body)
    return body


@contextmanager
def _mapped() -> Iterator[None]:
    """Map the HTTP client's exceptions to ours; none of ours repeats what an engine or a client said."""
    try:
        yield
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise ConnectFailed("the engine cannot be reached") from error
    except aiohttp.ClientResponseError as error:
        raise UpstreamCut("the engine's answer is not HTTP") from error
    except aiohttp.ServerDisconnectedError as error:
        if not isinstance(error.message, str):
            # The client hands over what it had read of the answer's head: it had begun.
            raise UpstreamCut("the engine's answer ended within its headers") from error
        raise Disconnected("the engine ended the connection before it answered") from error
    except (aiohttp.ClientError, ConnectionError) as error:
        raise Disconnected("the engine ended the connection before it answered") from error
