"""
Comments in a stream that has not begun, for whoever stands in between and cuts connections that say nothing.

They are off unless asked for: with the first of them the status is out, so that an engine's refusal can only
be told within the stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from sternpost_gateway.client import Client
from sternpost_gateway.errors import ClientGone

OK: Final = 200

PING: Final = b": ping\n\n"
"""A comment of server-sent events, which every client passes over."""


@asynccontextmanager
async def pinging(client: Client, request_id: str, seconds: float) -> AsyncIterator[None]:
    """Send a comment whenever `seconds` have passed within the block; none if that is 0."""
    if not seconds:
        yield
        return
    task = asyncio.create_task(_ping(client, request_id, seconds))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, ClientGone):
            await task


async def _ping(client: Client, request_id: str, seconds: float) -> None:
    await asyncio.sleep(seconds)
    headers = [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-cache"),
        (b"x-request-id", request_id.encode("latin-1")),
    ]
    await client.start(OK, headers)
    client.only_pinged = True
    while True:
        await client.write(PING)
        await asyncio.sleep(seconds)
