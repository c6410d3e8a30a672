"""What comes of an engine's answer, kept until it is read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from sternpost_gateway.errors import UpstreamCut, UpstreamStalled


class Source(Protocol):
    """Where an answer comes from."""

    def resume(self) -> None:
        """Go on after what was kept has been read."""

    def abort(self) -> None:
        """End the connection, so that the engine learns that nobody waits."""


class UpstreamAnswer:
    """
    The answer of one exchange, an `UpstreamResponse`; its connection feeds it.

    `idle_seconds` is how long a reader waits for a piece. One timer serves all waits, because most are short.
    """

    __slots__ = (
        "_error", "_idle_seconds", "_is_complete", "_pieces", "_since", "_source", "_timer", "_waiter",
        "headers", "kept_bytes", "status",
    )  # fmt: skip

    def __init__(
        self, status: int, headers: Sequence[tuple[bytes, bytes]], source: Source, idle_seconds: float
    ) -> None:
        self.status = status
        self.headers = headers
        self.kept_bytes = 0
        self._source: Source | None = source
        self._idle_seconds = idle_seconds
        self._pieces: list[bytes] = []
        self._error: UpstreamCut | None = None
        self._is_complete = False
        self._waiter: asyncio.Future[None] | None = None
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def read(self) -> bytes:
        """Return what has come meanwhile, empty at the end; raises as `UpstreamResponse.read` says."""
        if not self._pieces and not self._is_complete and self._error is None:
            await self._wait()
        if self._pieces:
            return self._take()
        if self._error is not None:
            # Not the one that is kept: it would come to hold the frames that it goes through, and they this.
            raise type(self._error)(*self._error.args)
        return b""

    def close(self) -> None:
        """End the exchange; an answer that has not come to its end takes its connection with it."""
        self._stop_timer()
        if self._source is not None:
            self._source.abort()
            self._source = None

    def feed(self, piece: bytes) -> None:
        """Take a piece of the body."""
        self._pieces.append(piece)
        self.kept_bytes += len(piece)
        self._wake()

    def complete(self) -> None:
        """Note that the answer has come to its end; the connection is not this answer's any more."""
        self._is_complete = True
        self._source = None
        self._wake()

    def fail(self, error: UpstreamCut) -> None:
        """Note what ended the answer early; what has come before is still read."""
        self._error = error
        self._source = None
        self._wake()

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        self._since = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self._idle_seconds, self._look)
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _take(self) -> bytes:
        taken = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self.kept_bytes = 0
        if self._source is not None:
            self._source.resume()
        return taken

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _look(self) -> None:
        """Give the answer up if nothing has come for too long; else look again when that may be so."""
        self._timer = None
        if self._waiter is None or self._waiter.done():
            # The next wait will arm it again.
            return
        loop = asyncio.get_running_loop()
        left = self._since + self._idle_seconds - loop.time()
        if left > 0.0:
            self._timer = loop.call_later(left, self._look)
            return
        source = self._source
        self.fail(UpstreamStalled("the engine's answer stalled before it was complete"))
        if source is not None:
            source.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
