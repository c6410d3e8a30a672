"""Opening connections to engines, whatever is spoken over them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

from sternpost_gateway.errors import ConnectFailed
from sternpost_gateway.settings import Timeouts
from sternpost_gateway.tls import Tls
from sternpost_gateway.tunnel import BUFFER_BYTES, Stream

Protocol = TypeVar("Protocol", bound=asyncio.BaseProtocol)


@dataclass(frozen=True, slots=True)
class Origin:
    """What connections to an engine have in common."""

    host: str
    port: int
    is_secure: bool
    authority: str
    """The host as requests name it."""


def origin_of(url: str) -> Origin:
    """Return the origin of an engine's base URL."""
    parts = urlsplit(url)
    is_secure = parts.scheme == "https"
    return Origin(parts.hostname or "", parts.port or (443 if is_secure else 80), is_secure, parts.netloc)


@dataclass(frozen=True, slots=True)
class Dialer:
    """Opens connections, by TLS where an engine's URL says so."""

    timeouts: Timeouts
    tls: Tls | None = None

    async def connect(
        self, origin: Origin, make: Callable[[], Protocol]
    ) -> tuple[asyncio.Transport, Protocol]:
        """
        Open a connection that a protocol of its own speaks over.

        Raises:
            ConnectFailed: none could be opened in time.
        """
        context = True if self.tls is None else self.tls.context
        name = None if self.tls is None else self.tls.server_name
        try:
            async with asyncio.timeout(self.timeouts.connect_seconds):
                return await asyncio.get_running_loop().create_connection(
                    make,
                    origin.host,
                    origin.port,
                    ssl=context if origin.is_secure else None,
                    server_hostname=(name or origin.host) if origin.is_secure else None,
                )
        except (OSError, UnicodeError) as error:
            raise ConnectFailed("the engine cannot be reached") from error

    async def dial(self, url: str) -> Stream:
        """
        Open a connection that is not shared, to an engine by its base URL, as a websocket keeps one.

        Raises:
            ConnectFailed: none could be opened in time.
        """
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(BUFFER_BYTES, loop)
        transport, protocol = await self.connect(
            origin_of(url), lambda: asyncio.StreamReaderProtocol(reader, loop=loop)
        )
        return Stream(reader, asyncio.StreamWriter(transport, protocol, reader, loop))
