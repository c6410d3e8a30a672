"""
The client's side of one exchange: read its body, write its answer, and notice when it leaves.

Nothing here looks into bytes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from starlette.types import Message, Receive, Scope, Send

from sternpost_core.clock import Clock
from sternpost_gateway.errors import Answer, BadRequest, ClientGone, ClientStalled, TooLarge, TooSlow
from sternpost_gateway.headers import connection_names
from sternpost_gateway.settings import Limits, Timeouts
from sternpost_gateway.stall import Stall

Result = TypeVar("Result")

CountBody = Callable[[int], None]
"""Is told how many bytes a body has, as far as is known; raises `Overloaded` where there is no room."""

KEPT_BYTES_MAX: Final = 64 * 1024
"""Of a body that is streamed through, so that a short one can be sent again."""

LINGER_SECONDS: Final = 1.0
"""For which a refused body is still read before the connection closes."""

SURPLUS: Final = "sternpost.surplus"
"""The ASGI extension of what comes over a connection beyond those that are allowed."""


def uncounted(size: int) -> None:
    """Count nothing."""


class Client:
    """
    One ASGI exchange.

    `started`: the status line is out, so that no error can be answered any more. `finished`: the last piece
    is out, too. `gone`: the client has left. `upload_gone`: some of a body that is streamed through has
    gone on, and is not kept here. `upload_error`: what ended it.
    """

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, *, limits: Limits, timeouts: Timeouts, clock: Clock
    ) -> None:
        self.method: str = scope["method"]
        self.headers: tuple[tuple[bytes, bytes], ...] = tuple(scope["headers"])
        self.path: str = scope["path"]
        self.target = target_of(scope)
        self.certified = "client_cert_name" in (scope.get("extensions") or {}).get("tls", {})
        """Whether the client has shown a certificate that counts."""
        self.is_surplus = is_surplus(scope)
        """Whether it came over a connection too many, which ends with the answer."""
        self._is_last = self.is_surplus
        self._scope = scope
        self.started = False
        self.only_pinged = False
        """Whether nothing but comments has gone out so far."""
        self.finished = False
        self._receive = receive
        self._send = send
        self._limits = limits
        self._timeouts = timeouts
        self._clock = clock
        self._stall = Stall(timeouts.write_stall_seconds)
        self._body_read = asyncio.Event()
        self._kept = bytearray()
        self._is_whole = False
        self.gone = False
        self.upload_gone = False
        self.upload_error: ClientGone | TooSlow | None = None

    @property
    def body_bytes_max(self) -> int:
        """Return how large a body that is read may be."""
        return self._limits.body_bytes_max

    def check_framing(self) -> int | None:
        """
        Return the declared length of the body, None if there is none.

        Raises:
            BadRequest: a request with two framings: two readers would see two different bodies.
        """
        names = [name for name, _ in self.headers]
        lengths = {value for name, value in self.headers if name == b"content-length"}
        if len(lengths) > 1 or (lengths and b"transfer-encoding" in names):
            raise BadRequest("a request has either one Content-Length or a Transfer-Encoding")
        return int(lengths.pop()) if lengths else None

    async def read_body(self, count: CountBody = uncounted) -> bytes:
        """
        Read the whole body; `count` is told of one that comes without its length, as it comes.

        Raises:
            Overloaded: from `count`.
            TooLarge: over the limit; raised as soon as that is known, with the rest unread.
            TooSlow: slower than the agreed rate after the grace.
            ClientGone: the client left before the end.
        """
        declared, limit = self.check_framing(), self._limits.body_bytes_max
        if declared is not None:
            count = uncounted
            if declared > limit:
                raise _too_large(limit)
        message = await self._next()
        if not message.get("more_body", False):
            body: bytes = message.get("body", b"")
            if len(body) > limit:
                raise _too_large(limit)
            self._body_read.set()
            count(len(body))
            return body
        return await self._read_rest(message.get("body", b""), limit, count)

    async def _read_rest(self, first: bytes, limit: int, count: CountBody) -> bytes:
        pieces = [first]
        size = len(first)
        started = self._clock.monotonic()
        more = True
        while more and size <= limit:
            count(size)
            message = await self._next(self._deadline_seconds(started, size))
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
            more = message.get("more_body", False)
        if size > limit:
            raise _too_large(limit)
        self._body_read.set()
        count(size)
        return b"".join(pieces)

    def _deadline_seconds(self, started: float, size: int) -> float:
        """Return how long the next piece may take: a grace, plus what the bytes so far have earned."""
        earned = self._timeouts.body_grace_seconds + size / self._limits.body_rate_bytes
        return max(0.0, started + earned - self._clock.monotonic())

    async def peek(self, bytes_max: int) -> bytes:
        """
        Return the first bytes of the body, about `bytes_max` at most; they are still to be streamed.

        Raises:
            TooSlow, ClientGone: as `read_body` says.
        """
        started = self._clock.monotonic()
        while not self._is_whole and len(self._kept) < bytes_max:
            self._kept += self._piece(await self._next(self._deadline_seconds(started, len(self._kept))))
        return bytes(self._kept)

    async def stream_body(self) -> AsyncIterator[bytes]:
        """
        Yield the body as it arrives, unbounded, because no more than a beginning of it is kept.

        While that is all that has come, the body can be yielded once more, for another engine. The connection
        that reads this reports every failure as the engine's; `upload_error` tells it apart. For the rate
        counts the time in which the client is waited for: an engine may be slower.
        """
        if self._kept:
            yield bytes(self._kept)
        waited, size = 0.0, 0
        while not self._is_whole:
            asked = self._clock.monotonic()
            try:
                piece = self._piece(await self._next(self._deadline_seconds(asked - waited, size)))
            except (ClientGone, TooSlow) as error:
                self.upload_error = error
                raise
            waited, size = waited + self._clock.monotonic() - asked, size + len(piece)
            self._keep(piece)
            if piece:
                yield piece
        self._body_read.set()

    def _piece(self, message: Message) -> bytes:
        self._is_whole = not message.get("more_body", False)
        piece: bytes = message.get("body", b"")
        return piece

    def _keep(self, piece: bytes) -> None:
        self.upload_gone = self.upload_gone or len(self._kept) + len(piece) > KEPT_BYTES_MAX
        if self.upload_gone:
            self._kept.clear()
        else:
            self._kept += piece

    def expect_no_body(self) -> None:
        """Note that nobody will read a body, so that leaving can be noticed at once."""
        self._body_read.set()

    async def run_until_gone(self, work: Coroutine[Any, Any, Result]) -> Result:
        """
        Run `work`, and cancel it as soon as the client leaves.

        Raises:
            ClientGone: the client left before `work` was done.
        """
        current = asyncio.current_task()
        assert current is not None, "runs in a task"
        watcher = asyncio.ensure_future(self._wait_gone())

        def leave(_: asyncio.Future[None]) -> None:
            # The server reports the end of a complete answer as leaving, too.
            if not self.finished and not watcher.cancelled():
                self.gone = True
                current.cancel()

        watcher.add_done_callback(leave)
        try:
            return await work
        except asyncio.CancelledError:
            if self.gone and current.uncancel() == 0:
                raise ClientGone("left before the end of the answer") from None
            raise
        finally:
            watcher.remove_done_callback(leave)
            watcher.cancel()
            self._stall.close()

    async def start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Send the status line and the headers."""
        self.started = True
        await self._write({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def write(self, body: bytes) -> None:
        """
        Send a piece of the answer; waits while the client is slower than we are.

        Raises:
            ClientStalled: the client has not read for too long.
        """
        await self._write({"type": "http.response.body", "body": body, "more_body": True})

    async def finish(self, body: bytes = b"") -> None:
        """Send the last piece of the answer."""
        # Nearly every body has been read by now, and nothing else is looked up for it.
        if not self._body_read.is_set() and (self._is_last or is_last(self._scope)):
            await self.write(body)
            await drain(self._receive)
            body = b""
        self.finished = True
        await self._write({"type": "http.response.body", "body": body, "more_body": False})
        self._stall.close()

    async def answer(self, answer: Answer, request_id: str) -> None:
        """Send a whole answer of our own; where the body is not awaited, the connection ends with it."""
        headers = (*answer.headers, (b"x-request-id", request_id.encode()))
        # What comes next is the body or, as there was no leave to send it, a new request: nobody can tell.
        is_ambiguous = self._waits_for_leave and not self._body_read.is_set()
        if is_ambiguous and not answer.closes:
            headers = (*headers, (b"connection", b"close"))
        self._is_last = self._is_last or is_ambiguous or answer.closes
        await self.start(answer.status, headers)
        await self.finish(answer.body if self.method != "HEAD" else b"")

    @property
    def _waits_for_leave(self) -> bool:
        return any(name == b"expect" and value.lower() == b"100-continue" for name, value in self.headers)

    async def _write(self, message: Message) -> None:
        self._stall.begin()
        try:
            await self._send(message)
        except asyncio.CancelledError:
            if self._stall.takes_back():
                raise ClientStalled("has stopped reading") from None
            raise
        finally:
            self._stall.end()

    async def _next(self, timeout_seconds: float = math.inf) -> Message:
        try:
            async with asyncio.timeout(min(timeout_seconds, self._timeouts.idle_seconds)):
                message = await self._receive()
        except TimeoutError:
            raise TooSlow("the body arrives too slowly") from None
        if message["type"] == "http.disconnect":
            self.gone = True
            raise ClientGone("left before the end of its request")
        return message

    async def _wait_gone(self) -> None:
        await self._body_read.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body is larger than the limit of {limit} bytes")


async def drain(receive: Receive) -> None:
    """
    Read on for a moment, and keep nothing.

    To close while a client still sends would reset the connection, and it would never see the answer, whose
    declared length it has in hand by now.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_SECONDS):
            while (await receive()).get("more_body", False):
                pass


def is_surplus(scope: Scope) -> bool:
    """Say whether a request came over a connection beyond those that are allowed."""
    return SURPLUS in (scope.get("extensions") or {})


def is_last(scope: Scope) -> bool:
    """Say whether a request is the last of its connection, as its client has it."""
    tokens = connection_names(tuple(scope["headers"]))
    return scope.get("http_version") == "1.0" or b"close" in tokens


def target_of(scope: Scope) -> str:
    """Return path and query exactly as the client sent them."""
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope["query_string"]
    return (path + b"?" + query if query else path).decode("latin-1")
