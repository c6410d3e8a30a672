"""The engine's side of one exchange, as the stages see it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class UpstreamRequest:
    """
    What goes to an engine, by its base URL; `target` and `headers` are sent as they stand.

    A body of which a length is among the headers is sent with it, one that comes in pieces else in chunks.
    `fresh` asks for a new connection: one that was kept may have been closed by the engine meanwhile.
    """

    method: str
    engine: str
    target: str
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes | AsyncIterator[bytes] | None
    fresh: bool = False

    @property
    def url(self) -> str:
        """Return the whole URL."""
        return self.engine + self.target


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
        Return what has come meanwhile, empty at the end.

        Raises:
            UpstreamCut: the answer ended before it was complete.
            UpstreamStalled: nothing has come of it for too long.
        """

    def close(self) -> None:
        """End the exchange: the connection is kept only if the answer has come to its end."""


class Upstream(Protocol):
    """A way to reach engines."""

    async def send(self, request: UpstreamRequest) -> UpstreamResponse:
        """
        Send a request and wait until the answer begins, for as long as the caller likes.

        Raises:
            ConnectFailed: no connection could be opened.
            Disconnected: the connection ended before the first byte of an answer.
            UpstreamCut: the answer ended within its headers, or is not HTTP.
        """

    async def close(self) -> None:
        """Close all connections."""
