"""
The HTTP/1.1 side of a client's connection: uvicorn's, with a limit on how long headers may take.

A client that sends its headers a byte at a time would hold a connection for as long as it likes. And what is
no HTTP at all is answered in OpenAI's shape, like every other error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sternpost_gateway.client import SURPLUS
from sternpost_gateway.errors import Answer, BadRequest, GatewayError, HeadersTooLarge, TooSlow, answer_of
from sternpost_gateway.tunnel import BUFFER_BYTES, TUNNEL, Stream

LINGER_SECONDS: Final = 1.0
"""For which bytes of a refused request are still taken, and dropped."""

SURPLUS_SECONDS: Final = 1.0
"""For the headers that come over a connection too many, so that it soon makes room."""


def _request_parser(protocol: HttpToolsProtocol) -> httptools.HttpRequestParser:
    """Return a parser as uvicorn sets one up: requests behind one that is to be the last are read."""
    parser = httptools.HttpRequestParser(protocol)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


def _too_large() -> HeadersTooLarge:
    return HeadersTooLarge(f"the headers are larger than the limit of {HEADER_BYTES_MAX} bytes")


async def _nothing() -> Any:
    """Stand in for the events of HTTP, which a tunnel has none of."""
    raise RuntimeError("a tunnel has no events")


async def _nowhere(message: Any) -> None:
    """Stand in for the answers of HTTP, which a tunnel has none of."""
    raise RuntimeError("a tunnel has no events")


HEADER_BYTES_MAX: Final = 65536
"""Of a request's headers together, and of what comes before they are complete."""


def protocol_with(headers_seconds: float, connections_max: int) -> Any:
    """
    Return what makes a protocol whose clients have so many seconds for the headers of each request.

    A connection beyond `connections_max` says so with each of its requests, and ends with the first answer.
    """
    return partial(GatewayProtocol, headers_seconds=headers_seconds, connections_max=connections_max)


def subject_of(certificate: Mapping[str, Any] | None) -> str | None:
    """Return the subject of a certificate that has been checked, None if the client has shown none."""
    if not certificate:
        return None
    names = (pair for part in certificate.get("subject", ()) for pair in part)
    return ", ".join(f"{name}={text}" for name, text in names)


class GatewayProtocol(HttpToolsProtocol):
    """One connection of a client."""

    def __init__(self, *args: Any, headers_seconds: float, connections_max: int, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._headers_seconds = headers_seconds
        self._connections_max = connections_max
        self._is_surplus = False
        self._headers_timer: asyncio.TimerHandle | None = None
        self._has_begun = False
        self._certificate: str | None = None
        self._in_headers = True
        self._unread_bytes = 0
        self._refusal: GatewayError | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to count: a connection without a request is not kept, either."""
        super().connection_made(transport)
        self._is_surplus = len(self.connections) > self._connections_max
        if self._is_surplus:
            self._headers_seconds = min(self._headers_seconds, SURPLUS_SECONDS)
        self._certificate = subject_of(transport.get_extra_info("peercert"))
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; headers and trailers that have no end are not kept for as long as they come."""
        if self._refusal is not None:
            return
        self._unread_bytes += len(data)
        self._unset_keepalive_if_required()
        self._feed(data)
        if self._unread_bytes > HEADER_BYTES_MAX and self._refusal is None:
            self._refuse_flood()

    def _feed(self, data: bytes) -> None:
        while data:
            data = self._left_of(data)

    def _left_of(self, data: bytes) -> bytes:
        """Parse bytes, and return those that are still to be parsed."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.send_400_response("")
        except httptools.HttpParserUpgrade as found:
            if not self._should_upgrade():
                return self._without_offer() + data[found.args[0] :]
            self.handle_websocket_upgrade()
        return b""

    def _without_offer(self) -> bytes:
        """
        Return a head again without the other protocol that it offers, for a parser that has not seen it.

        To the one that has, all behind such a head is of the other protocol. It is a body all the same:
        Java's client offers HTTP/2 with each.
        """
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        self.parser = _request_parser(self)
        return b"\r\n".join(lines) + b"\r\n\r\n"

    @property
    def _declines(self) -> bool:
        return self.parser.should_upgrade() and not self._should_upgrade()

    def on_message_begin(self) -> None:
        """Begin to count for this request, unless the connection itself is new."""
        super().on_message_begin()
        self._in_headers = True
        if self._certificate is not None:
            self.scope["extensions"] = {"tls": {"client_cert_name": self._certificate}}
        if self._is_surplus:
            self.scope["extensions"] = {**self.scope.get("extensions", {}), SURPLUS: {}}
        self._has_begun = True
        self._start_timer()

    def on_headers_complete(self) -> None:
        """Stop counting: from here on the body's own limits hold."""
        self._stop_timer()
        self._in_headers, self._unread_bytes = False, 0
        if sum(len(name) + len(value) for name, value in self.headers) > HEADER_BYTES_MAX:
            self._refusal = _too_large()
            # The parser turns this into `send_400_response`.
            raise self._refusal
        if self.parser.get_method() == b"CONNECT":
            self._refusal = BadRequest("CONNECT is not taken here")
            raise self._refusal
        if self._declines:
            return
        super().on_headers_complete()
        if self._is_surplus and self.cycle is not None:
            self.cycle.keep_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; a trailer is none: who has checked the headers has not seen it."""
        if self._in_headers:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._unread_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note the end of the request."""
        self._unread_bytes = 0
        if self._declines:
            return
        super().on_message_complete()

    def _should_upgrade(self) -> bool:
        """Say whether a request asks for a websocket; no other protocol is spoken here."""
        return self._get_upgrade() == b"websocket"

    def handle_websocket_upgrade(self) -> None:
        """Take the connection over from HTTP, and hand it to the application as a stream of bytes."""
        if self._is_serving:
            # Its answer would come after that of the request in front of it, which has not ended.
            self.send_400_response("")
            return
        self.connections.discard(self)
        self.flow.resume_reading()
        reader = asyncio.StreamReader(limit=BUFFER_BYTES, loop=self.loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=self.loop)
        protocol.connection_made(self.transport)
        self.transport.set_protocol(protocol)
        writer = asyncio.StreamWriter(self.transport, protocol, reader, self.loop)
        task = self.loop.create_task(self.app(self._tunnel_scope(Stream(reader, writer)), _nothing, _nowhere))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _tunnel_scope(self, stream: Stream) -> Any:
        url = httptools.parse_url(self.url)
        return {
            **self.scope,
            "type": TUNNEL,
            "path": unquote(url.path.decode("ascii")),
            "raw_path": url.path,
            "query_string": url.query or b"",
            "extensions": {**self.scope.get("extensions", {}), TUNNEL: stream},
        }

    def send_400_response(self, msg: str) -> None:
        """Answer what cannot be read, and close."""
        self._stop_timer()
        self._refusal = self._refusal or BadRequest("the request is not valid HTTP/1.1")
        if self._leave_cycle():
            # Another answer has begun, and would be torn apart.
            self.transport.abort()
        else:
            self._end_with(answer_of(self._refusal))

    def _refuse_flood(self) -> None:
        """End a connection over which bytes come that are of no header, and of no body either."""
        self._refusal = _too_large()
        self._stop_timer()
        if self._in_headers:
            self._end_with(answer_of(self._refusal))
        else:
            # Within the framing of a body, whose request may be answered already.
            self.transport.abort()

    @property
    def _is_serving(self) -> bool:
        # uvicorn's types leave out that there is no cycle before the first request.
        return self.cycle is not None and not self.cycle.response_complete  # type: ignore[redundant-expr]

    def _leave_cycle(self) -> bool:
        """Tell a request that is being served that its client is gone; say whether its answer had begun."""
        if not self._is_serving:
            return False
        self.cycle.disconnected = True
        self.cycle.message_event.set()
        return self.cycle.response_started

    def _start_timer(self) -> None:
        if self._headers_timer is None:
            self._headers_timer = self.loop.call_later(self._headers_seconds, self._on_slow)

    def _stop_timer(self) -> None:
        if self._headers_timer is not None:
            self._headers_timer.cancel()
            self._headers_timer = None

    def _on_slow(self) -> None:
        self._headers_timer = None
        if self._is_serving:
            # A pipelined request behind one that is still being answered: that answer comes first.
            self._start_timer()
        elif self._has_begun:
            self._end_with(answer_of(TooSlow("the headers arrive too slowly")))
        else:
            self.transport.close()

    def _end_with(self, answer: Answer) -> None:
        head = [f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}".encode()]
        head += [name + b": " + value for name, value in answer.headers]
        self.transport.write(b"\r\n".join(head) + b"\r\n\r\n" + answer.body)
        if self._refusal is None:
            self.transport.close()
            return
        # To close while the client still sends would reset the connection, and the answer would be lost.
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)
