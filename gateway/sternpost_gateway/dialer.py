"""Opening connections to engines that are not shared: those that a websocket keeps for itself."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from urllib.parse import urlsplit

from sternpost_gateway.errors import ConnectFailed
from sternpost_gateway.settings import Timeouts
from sternpost_gateway.tls import Tls
from sternpost_gateway.tunnel import BUFFER_BYTES, Stream


@dataclass(frozen=True, slots=True)
class Dialer:
    """Opens connections, by TLS where an engine's URL says so."""

    timeouts: Timeouts
    tls: Tls | None = None

    async def dial(self, url: str) -> Stream:
        """
        Open a connection to an engine by its base URL.

        Raises:
            ConnectFailed: none could be opened in time.
        """
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        name = self.tls.server_name if self.tls is not None else None
        try:
            async with asyncio.timeout(self.timeouts.connect_seconds):
                reader, writer = await asyncio.open_connection(
                    parts.hostname,
                    parts.port or (443 if secure else 80),
                    limit=BUFFER_BYTES,
                    ssl=(self.tls.context if self.tls is not None else True) if secure else None,
                    server_hostname=(name or parts.hostname) if secure else None,
                )
        except (OSError, TimeoutError) as error:
            raise ConnectFailed("the engine cannot be reached") from error
        return Stream(reader, writer)
