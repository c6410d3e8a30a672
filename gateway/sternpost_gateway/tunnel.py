"""A connection that has been taken over from HTTP, and what goes both ways on it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from sternpost_gateway.errors import Answer
from sternpost_gateway.request_head import head_bytes

BUFFER_BYTES: Final = 64 * 1024
"""Held of each direction while the other side is slower; beyond it the sender is not read from."""

READ_BYTES: Final = 64 * 1024
CLOSE_SECONDS: Final = 1.0
"""For the last bytes to a side that is still there."""

TUNNEL: Final = "sternpost.tunnel"
"""The ASGI scope's type and extension for a request that asks for a websocket."""


@dataclass(frozen=True, slots=True)
class Stream:
    """One side of a tunnel."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes, seconds_max: float) -> None:
        """
        Send bytes, and wait while the other side is slower.

        Raises:
            TimeoutError: it has read nothing for so long.
            OSError: it is gone.
        """
        self.writer.write(data)
        async with asyncio.timeout(seconds_max):
            await self.writer.drain()

    async def close(self) -> None:
        """Send what is left, for a moment, and close."""
        self.writer.close()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.writer.wait_closed()
        except (OSError, TimeoutError):
            self.writer.transport.abort()


def answer_bytes(answer: Answer, request_id: str) -> bytes:
    """Return an answer of our own as HTTP/1.1, which ends the connection."""
    kept = [(name, value) for name, value in answer.headers if name != b"connection"]
    headers = [*kept, (b"x-request-id", request_id.encode()), (b"connection", b"close")]
    lines = [f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}".encode()]
    lines += [name + b": " + value for name, value in headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + answer.body


def request_bytes(method: str, target: str, host: str, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return the head of a request that asks for a websocket."""
    own = (b"host", host.encode("latin-1")), (b"connection", b"Upgrade"), (b"upgrade", b"websocket")
    return head_bytes(method, target, (*own, *headers))


async def relay(client: Stream, engine: Stream, *, idle_seconds: float, stall_seconds: float) -> None:
    """
    Relay bytes both ways until either side ends, is silent together with the other, or does not read.

    The end of one side is the end of both: a websocket says good-bye within its bytes.
    """
    alive = asyncio.Event()

    async def pump(source: Stream, sink: Stream) -> None:
        with suppress(OSError, TimeoutError):
            while data := await source.reader.read(READ_BYTES):
                alive.set()
                await sink.send(data, stall_seconds)

    async def silence() -> None:
        with suppress(TimeoutError):
            while True:
                async with asyncio.timeout(idle_seconds):
                    await alive.wait()
                alive.clear()

    tasks = [asyncio.create_task(one) for one in (pump(client, engine), pump(engine, client), silence())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
