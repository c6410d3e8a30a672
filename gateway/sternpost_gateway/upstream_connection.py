"""One connection to an engine: one exchange at a time, and idle between two of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

import httptools

from sternpost_gateway.errors import Disconnected, UpstreamCut, UpstreamError
from sternpost_gateway.request_head import is_chunked, request_head
from sternpost_gateway.upstream import UpstreamRequest
from sternpost_gateway.upstream_answer import UpstreamAnswer

WHOLE_BYTES_MAX: Final = 512 * 1024
"""The largest body that is handed to the transport at once; a larger one would hold up all other streams."""

PIECE_BYTES: Final = 64 * 1024
"""What a larger body is handed over in."""

READ_BYTES: Final = 32 * 1024
"""What is read at once: a client that stops reading makes the gateway keep some times as much."""

BARREN_BYTES_MAX: Final = 128 * 1024
"""Of an answer's head, or of anything else that an engine sends without a byte of the body between."""

FINAL_STATUS: Final = 200
"""What is below this precedes the answer: it is hop-by-hop, and stays here."""

STATUS_MAX: Final = 599
"""A number above it is the status of nothing, and cannot be passed on."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """How a connection treats its exchanges; `on_free` and `on_lost` tell its pool what became of it."""

    kept_bytes_max: int
    """Of an answer, before its engine has to wait."""

    idle_seconds: float
    buffer: memoryview
    """What all connections read into: it is parsed before anything else happens."""

    on_free: Callable[[UpstreamConnection], None]
    on_lost: Callable[[UpstreamConnection], None]


@dataclass(slots=True)
class Exchange:
    """One request, and what has come of its answer."""

    head: asyncio.Future[UpstreamAnswer]
    is_head_only: bool
    """No body follows, whatever its length is said to be."""

    answer: UpstreamAnswer | None = None
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    barren_bytes: int = 0
    """Since the last byte of a body."""

    has_heard: bool = False
    has_surplus: bool = False
    is_complete: bool = False
    may_stay: bool = False
    ends_by_closing: bool = False

    def fail(self, error: UpstreamError) -> None:
        """Tell whoever waits what ended the exchange early."""
        if self.answer is not None:
            self.answer.fail(error if isinstance(error, UpstreamCut) else _cut())
        elif not self.head.done():
            self.head.set_exception(error)


class UpstreamConnection(asyncio.BufferedProtocol):
    """
    Speaks HTTP/1.1 with an engine, parsed by llhttp.

    An exchange begins with `ask`, and ends when the answer is complete: then the connection is free again
    if both sides allow it, and closed else.
    """

    def __init__(self, host: str, keeping: Keeping) -> None:
        self._host = host
        self._keeping = keeping
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._upload: asyncio.Task[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._is_paused = False

    @property
    def is_open(self) -> bool:
        """Say whether a request can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    async def ask(self, request: UpstreamRequest) -> UpstreamAnswer:
        """
        Send a request and return its answer when its head has come; whatever ends the waiting ends this.

        Raises:
            Disconnected, UpstreamCut: as `Upstream.send` says.
        """
        head: asyncio.Future[UpstreamAnswer] = asyncio.get_running_loop().create_future()
        self._exchange = Exchange(head, request.method == "HEAD")
        try:
            self._send(request)
            return await head
        except BaseException:
            if head.done() and not head.cancelled() and head.exception() is None:
                # It came together with what ended the waiting.
                head.result().close()
            else:
                self.abort()
            raise
        finally:
            # It holds what it raised, which holds this frame.
            del head

    def resume(self) -> None:
        """Go on reading after what was kept has been read."""
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()

    def abort(self) -> None:
        """Close the connection at once, whatever is under way."""
        self._exchange = None
        if self._upload is not None:
            self._upload.cancel()
        if self._transport is not None:
            self._transport.abort()

    def _send(self, request: UpstreamRequest) -> None:
        head, body = request_head(request, self._host), request.body
        if isinstance(body, bytes) and len(body) > WHOLE_BYTES_MAX:
            body = _in_pieces(body)
        if body is None or isinstance(body, bytes):
            self._write(head + body if body else head)
            return
        self._write(head)
        self._upload = asyncio.ensure_future(self._write_body(body, in_chunks=is_chunked(request)))
        self._upload.add_done_callback(self._end_upload)

    async def _write_body(self, pieces: AsyncIterator[bytes], *, in_chunks: bool) -> None:
        async for piece in pieces:
            self._write(b"%x\r\n%b\r\n" % (len(piece), piece) if in_chunks else piece)
            if self._writable is not None:
                await self._writable
        if in_chunks:
            self._write(b"0\r\n\r\n")

    def _write(self, data: bytes) -> None:
        # `connection_lost` tells what is lost meanwhile.
        if self._transport is not None:
            self._transport.write(data)

    def _end_upload(self, task: asyncio.Task[None]) -> None:
        self._upload = None
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            cut = Disconnected("the request's body ended before it was complete")
            cut.__cause__ = error
            self._give_up(cut)

    def _give_up(self, error: UpstreamError) -> None:
        """End an exchange that cannot go on."""
        if self._exchange is not None:
            self._exchange.fail(error)
        self.abort()

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return what to read into."""
        return self._keeping.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Parse what has come."""
        exchange = self._exchange
        if exchange is None:
            # Nobody has asked for anything.
            self.abort()
            return
        exchange.has_heard = True
        exchange.barren_bytes += nbytes
        try:
            self._parser.feed_data(self._keeping.buffer[:nbytes])
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._give_up(UpstreamCut("the engine's answer is not HTTP"))
            return
        if exchange.is_complete:
            self._end(exchange)
        elif exchange.barren_bytes > BARREN_BYTES_MAX:
            self._give_up(UpstreamCut(f"the engine sends more than {BARREN_BYTES_MAX} bytes of headers"))
        elif exchange.answer is not None and exchange.answer.kept_bytes >= self._keeping.kept_bytes_max:
            self._pause()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever waits that the connection is gone."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            _tell_lost(exchange, in_order=exc is None)
        if self._upload is not None:
            self._upload.cancel()
        self.resume_writing()
        self._transport = None
        # The parser holds this object, and nothing else would end the cycle.
        del self._parser
        self._keeping.on_lost(self)

    def pause_writing(self) -> None:
        """Have the upload wait."""
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """Have the upload go on."""
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    def _pause(self) -> None:
        if self._transport is not None and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def _end(self, exchange: Exchange) -> None:
        """End an exchange whose answer is complete."""
        self._exchange = None
        if exchange.answer is not None:
            exchange.answer.complete()
        if exchange.may_stay and not exchange.has_surplus and self._upload is None and self.is_open:
            self.resume()
            self._keeping.on_free(self)
        else:
            self.abort()

    # What the parser calls, from within `buffer_updated`.

    def on_message_begin(self) -> None:
        """Begin an answer; one behind the answer was not asked for."""
        exchange = self._under_way()
        exchange.has_surplus = exchange.is_complete
        exchange.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; what follows a body is not passed on."""
        exchange = self._under_way()
        if exchange.answer is None:
            exchange.headers.append((name, value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        """Hand the answer over, unless it is only a word on the way."""
        exchange, status = self._under_way(), self._parser.get_status_code()
        if status < FINAL_STATUS or exchange.answer is not None:
            return
        if status > STATUS_MAX:
            # The parser turns this into an error of its own.
            raise UpstreamCut("the engine's answer is not HTTP")
        exchange.barren_bytes = 0
        exchange.may_stay = self._parser.should_keep_alive()
        exchange.ends_by_closing = not _has_end(exchange.headers)
        exchange.answer = UpstreamAnswer(status, exchange.headers, self, self._keeping.idle_seconds)
        if not exchange.head.done():
            exchange.head.set_result(exchange.answer)
        if exchange.is_head_only:
            # The parser waits for as many bytes as the headers say.
            exchange.is_complete, exchange.may_stay = True, False

    def on_body(self, body: bytes) -> None:
        """Hand a piece over."""
        exchange = self._under_way()
        exchange.barren_bytes = 0
        if exchange.answer is not None and not exchange.is_complete:
            exchange.answer.feed(body)

    def on_message_complete(self) -> None:
        """Note the end, unless it is that of a word on the way."""
        exchange = self._under_way()
        exchange.is_complete = exchange.answer is not None

    def _under_way(self) -> Exchange:
        assert self._exchange is not None, "the parser is fed within an exchange"
        return self._exchange


def _tell_lost(exchange: Exchange, *, in_order: bool) -> None:
    """Tell an exchange that its connection is gone, which may be the end of its answer."""
    if in_order and exchange.ends_by_closing and exchange.answer is not None:
        exchange.answer.complete()
    elif exchange.has_heard:
        exchange.fail(_cut())
    else:
        exchange.fail(Disconnected("the engine ended the connection before it answered"))


def _cut() -> UpstreamCut:
    return UpstreamCut("the engine's answer ended before it was complete")


def _has_end(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Say whether a body's end is marked within the connection; else it is the connection's end."""
    codings = [value for name, value in headers if name.lower() == b"transfer-encoding"]
    if codings:
        return codings[-1].lower().endswith(b"chunked")
    return any(name.lower() == b"content-length" for name, _ in headers)


async def _in_pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), PIECE_BYTES):
        yield body[start : start + PIECE_BYTES]
        # The kernel may take it all at once, and everybody else has waited for a piece.
        await asyncio.sleep(0)
