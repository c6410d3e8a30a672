"""
The relay stage: an engine's answer goes to the client as it comes.

Bytes are never decoded, re-framed or held back, but for the usage chunk of a stream that the gateway itself
asked for. An answer that is cut is never made to look complete.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from sternpost_gateway.client import Client
from sternpost_gateway.compose import Composed, Metering
from sternpost_gateway.errors import UpstreamCut, error_object
from sternpost_gateway.headers import downstream_headers, value_of
from sternpost_gateway.meter import BodyMeter, Meter, StreamFilter, StreamMeter, Unmetered, Usage
from sternpost_gateway.settings import Limits
from sternpost_gateway.sse import error_event
from sternpost_gateway.upstream import UpstreamResponse

EVENT_STREAM: Final = b"text/event-stream"
OK: Final = 200
CLIENT_ERRORS: Final = 400
SERVER_ERRORS: Final = 500
"""Where the statuses of requests that an engine refuses begin, and those of its own failures."""

BODILESS: Final = frozenset({204, 304})
"""Statuses without a body, whatever length is said: that of another answer."""

REFUSAL_BYTES_MAX: Final = 65536
"""Of an engine's refusal that is told within a stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relayed:
    """How an answer went; `cut`: the engine ended it early; `first_byte`, `last_byte`: monotonic seconds."""

    status: int
    is_stream: bool
    first_byte: float | None = None
    last_byte: float | None = None
    usage: Usage | None = None
    cut: bool = False


class Relay:
    """Relays one answer; `monotonic` tells the time of its first byte, and `on_first_byte` is told then."""

    def __init__(
        self,
        client: Client,
        limits: Limits,
        monotonic: Callable[[], float],
        on_first_byte: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self._limits = limits
        self._monotonic = monotonic
        self._on_first_byte = on_first_byte
        self._first_byte: float | None = None

    async def run(
        self, composed: Composed, response: UpstreamResponse, extra_headers: Sequence[tuple[bytes, bytes]]
    ) -> Relayed:
        """
        Relay an answer to its end, or to where it is cut.

        Raises:
            ClientGone: the client has stopped reading.
        """
        request_id = composed.planned.identified.received.request_id
        headers = downstream_headers(response.headers, request_id, composed.engine.url)
        is_stream = value_of(headers, b"content-type").startswith(EVENT_STREAM)
        meter = self._meter(composed.metering, response.status, headers, is_stream=is_stream)
        if isinstance(meter, StreamFilter) or response.status in BODILESS:
            headers = [item for item in headers if item[0] != b"content-length"]
        if not self._client.started:
            await self._client.start(response.status, [*headers, *extra_headers])
        elif response.status != OK or not is_stream:
            # Pings have gone out with status 200: what the engine says instead can only be told within the
            # stream, which must not look as if it had ended well.
            await self._client.write(
                error_event(refusal_object(response.status, await self._whole(response)))
            )
            return Relayed(status=response.status, is_stream=False)
        self._client.only_pinged = False
        cut = False
        try:
            await self._body(response, meter, _length(headers))
        except UpstreamCut as error:
            cut = True
            if is_stream:
                await self._client.write(error_event(error_object(error)))
        return Relayed(
            status=response.status,
            is_stream=is_stream,
            first_byte=self._first_byte,
            last_byte=self._monotonic() if is_stream and self._first_byte is not None else None,
            usage=meter.usage,
            cut=cut,
        )

    async def _whole(self, response: UpstreamResponse) -> bytes:
        """Return what an engine says in the place of a stream."""
        body = b""
        while len(body) <= REFUSAL_BYTES_MAX and (chunk := await response.read()):
            body += chunk
        return body[:REFUSAL_BYTES_MAX]

    async def _body(self, response: UpstreamResponse, meter: Meter, length: int | None) -> None:
        relayed = 0
        while chunk := await response.read():
            if self._first_byte is None:
                self._first_byte = self._monotonic()
                self._on_first_byte()
            relayed += len(chunk)
            if relayed == length:
                # The last piece is known by the declared length, and goes out together with the end.
                last = meter.feed(chunk)
                await self._client.finish(last + meter.end())
                return
            if out := meter.feed(chunk):
                await self._client.write(out)
        await self._client.finish(meter.end())

    def _meter(
        self, metering: Metering, status: int, headers: Sequence[tuple[bytes, bytes]], *, is_stream: bool
    ) -> Meter:
        is_encoded = value_of(headers, b"content-encoding") not in (b"", b"identity")
        wants_stream = metering in (Metering.STREAM, Metering.FILTER)
        if metering is Metering.NONE or status != OK or is_encoded or wants_stream is not is_stream:
            return Unmetered()
        if metering is Metering.BODY:
            return BodyMeter(self._limits.metered_body_bytes_max)
        kind = StreamFilter if metering is Metering.FILTER else StreamMeter
        return kind(self._limits.event_bytes_max)


def refusal_object(status: int, said: bytes) -> bytes:
    """
    Return what an engine says in the place of a stream as OpenAI's error object, on one line.

    Its own words stay where they have that shape: clients would take any others for an event of the stream.
    """
    if _is_error(said):
        return said.replace(b"\n", b" ").replace(b"\r", b" ")
    detail = {
        "message": said.decode(errors="replace") or f"the engine answered with status {status}",
        "type": "invalid_request_error" if CLIENT_ERRORS <= status < SERVER_ERRORS else "server_error",
        "param": None,
        "code": status,
    }
    return json.dumps({"error": detail}).encode()


def _is_error(body: bytes) -> bool:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and bool(found.get("error"))


def _length(headers: Sequence[tuple[bytes, bytes]]) -> int | None:
    value = value_of(headers, b"content-length")
    return int(value) if value.isdigit() else None
