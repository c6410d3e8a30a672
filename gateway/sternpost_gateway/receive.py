"""
The receive stage: which requests are looked into, and their bytes.

Only chat completions, responses and completions are read; everything else below `/v1` streams through.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from sternpost_core.jsonspan import Document, scan
from sternpost_core.policy_match import Caller
from sternpost_gateway.client import Client, CountBody, uncounted
from sternpost_gateway.content_coding import coding_of, decoded, without_coding
from sternpost_gateway.headers import Headers
from sternpost_gateway.model_name import HEAD_BYTES_MAX, model_in, model_of_path
from sternpost_gateway.tracing import NO_TRACE, Trace

AT_ONCE_BYTES_MAX: Final = 256 * 1024
"""Of a body that is checked on the event loop; a larger one could hold up all other streams for seconds."""

CHAT_PATH: Final = "/v1/chat/completions"
RESPONSES_PATH: Final = "/v1/responses"
COMPLETIONS_PATH: Final = "/v1/completions"
INSPECTED_PATHS: Final = frozenset({CHAT_PATH, RESPONSES_PATH, COMPLETIONS_PATH})
"""The paths whose bodies are read."""


FRAMING: Final = frozenset({b"content-length", b"transfer-encoding"})
"""Request headers that say that there is a body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """
    A request as it came; `arrived` is a monotonic time in seconds.

    `document` is None for requests that stream through unread: their body is still to be read from the
    client, if `has_body`. `trace` is told what becomes of the request.
    """

    method: str
    path: str
    target: str
    headers: Headers
    request_id: str
    arrived: float
    has_body: bool
    document: Document | None = None
    model: str | None = None
    """The model of a request whose body is not read, where engines serve different ones."""
    caller: Caller | None = None
    """Who has proved to send it; None where nobody has to."""
    trace: Trace = NO_TRACE


def is_inspected(client: Client) -> bool:
    """Say whether the request is one whose body is read."""
    return client.method == "POST" and client.path in INSPECTED_PATHS


async def receive(
    client: Client,
    request_id: str,
    arrived: float,
    caller: Caller | None = None,
    *,
    inspect: bool,
    by_model: bool = False,
    trace: Trace = NO_TRACE,
    count: CountBody = uncounted,
) -> Received:
    """
    Take a request in; with `inspect`, read and check its body; with `by_model`, find out its model without.

    `count` is told how many bytes there are of a body that is read, where its length has not been declared.

    Raises:
        Overloaded: from `count`.
        BadRequest, TooLarge, TooSlow, ClientGone: as `Client.read_body` says.
        UnknownCoding: the body is compressed in a way that is not read here.
        BodyError: the body is not a JSON object that everybody reads alike.
    """
    client.check_framing()
    headers, document = client.headers, None
    if inspect:
        body, coding = await client.read_body(count), coding_of(headers)
        if coding:
            count(client.body_bytes_max)
            body, headers = await decoded(body, coding, client.body_bytes_max), without_coding(headers)
            count(len(body))
        document = await _scanned(body)
    has_body = document is None and _has_body(client)
    if document is None and not has_body:
        client.expect_no_body()
    model = await _model(client, has_body=has_body) if by_model and document is None else None
    return Received(
        method=client.method,
        path=client.path,
        target=client.target,
        headers=headers,
        request_id=request_id,
        arrived=arrived,
        has_body=has_body,
        document=document,
        model=model,
        caller=caller,
        trace=trace,
    )


async def _scanned(body: bytes) -> Document:
    """Check a body; a large one beside the event loop, since it may consist of very many small things."""
    if len(body) <= AT_ONCE_BYTES_MAX:
        return scan(body)
    return await asyncio.to_thread(scan, body)


async def _model(client: Client, *, has_body: bool) -> str | None:
    if not has_body:
        return model_of_path(client.path)
    kinds = (value for name, value in client.headers if name == b"content-type")
    return model_in(next(kinds, b""), await client.peek(HEAD_BYTES_MAX))


def _has_body(client: Client) -> bool:
    return any(name in FRAMING and value != b"0" for name, value in client.headers)
