"""A small HTTP/1.1 server that lets a test decide about every byte, and that keeps every byte it got."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

HEAD_BYTES_MAX = 65536

BACKLOG = 2048
"""Connections that may wait to be accepted, as many as with an engine's own server."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as it arrived; header names are as they were sent."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        """Return the first header of a name, whatever its case."""
        return next((value for found, value in self.headers if found.lower() == name), None)


@dataclass(frozen=True, slots=True)
class Reply:
    """
    An answer: the body's pieces are written one by one.

    With `framing` "chunked" or "length" the body is framed so; "close" ends it by closing. `cut` closes the
    connection before the body's proper end. `begun`, if given, is all that is written before that.
    """

    status: int = 200
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),)
    pieces: tuple[bytes, ...] = ()
    framing: str = "length"
    delay_seconds: float = 0.0
    first_delay_seconds: float = 0.0
    cut: bool = False
    begun: bytes | None = None


class Drop(Exception):
    """Raised by a handler to close the connection without an answer."""


Handler = Callable[[Seen], Awaitable[Reply]]


@dataclass(slots=True)
class FakeServer:
    """
    Serves on a loopback port; `aborts` counts clients that left before the end of their answer.

    A connection without a request for `idle_seconds` is closed, if they are given; one that has had
    `answers_max` ends at its next request, without an answer, as when a server has started anew.
    """

    handler: Handler
    port: int = 0
    host: str = "127.0.0.1"
    idle_seconds: float | None = None
    answers_max: int | None = None
    tls: ssl.SSLContext | None = None
    seen: list[Seen] = field(default_factory=list)
    aborts: int = 0
    connections: int = 0
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        """Return the base URL."""
        scheme = "http" if self.tls is None else "https"
        return f"{scheme}://{self.host}:{self.port}"

    async def start(self) -> None:
        """Listen, on the same port as before if there was one."""
        self._server = await asyncio.start_server(
            self._accept, self.host, self.port, ssl=self.tls, backlog=BACKLOG
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and cut all connections."""
        assert self._server is not None, "the server runs"
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a connection is served in a task"
        self._tasks.add(task)
        self.connections += 1
        try:
            answers = 0
            while await self._serve_one(reader, writer, answers):
                answers += 1
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _serve_one(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: int
    ) -> bool:
        """Serve one request of a connection that has had some answers; return whether it stays."""
        try:
            async with asyncio.timeout(self.idle_seconds):
                seen = await read_request(reader)
        except TimeoutError:
            return False
        if seen is None or answers == self.answers_max:
            return False
        self.seen.append(seen)
        leaving = asyncio.ensure_future(reader.read(1))
        answering = asyncio.ensure_future(self._answer(seen, writer))
        try:
            await asyncio.wait({leaving, answering}, return_when=asyncio.FIRST_COMPLETED)
            broken = answering.done() and isinstance(answering.exception(), ConnectionError)
            if broken or not answering.done():
                self.aborts += 1
                return False
            return answering.result()
        finally:
            for task in (leaving, answering):
                task.cancel()
                with suppress(asyncio.CancelledError, ConnectionError):
                    await task

    async def _answer(self, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        try:
            reply = await self.handler(seen)
        except Drop:
            return False
        await asyncio.sleep(reply.first_delay_seconds)
        writer.write(head_of(reply) if reply.begun is None else reply.begun)
        await writer.drain()
        for index, piece in enumerate(reply.pieces if seen.method != "HEAD" else ()):
            if index:
                await asyncio.sleep(reply.delay_seconds)
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece) if reply.framing == "chunked" else piece)
            await writer.drain()
        if reply.cut or reply.begun is not None:
            # Let what was written arrive before the connection goes.
            await asyncio.sleep(0.05)
            return False
        if reply.framing == "chunked":
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        return reply.framing != "close" and (seen.header("connection") or "").lower() != "close"


def head_of(reply: Reply) -> bytes:
    """Return the status line and the headers of a reply."""
    lines = [f"HTTP/1.1 {reply.status} Status", *(f"{name}: {value}" for name, value in reply.headers)]
    if reply.framing == "length":
        extra = 100 if reply.cut else 0
        lines.append(f"content-length: {sum(map(len, reply.pieces)) + extra}")
    elif reply.framing == "chunked":
        lines.append("transfer-encoding: chunked")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def read_request(reader: asyncio.StreamReader) -> Seen | None:
    """Read one request, None at the end of the connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    method, target, _ = first.split(" ")
    headers = tuple((name, value.strip()) for name, _, value in (line.partition(":") for line in lines))
    lowered = {name.lower(): value for name, value in headers}
    if lowered.get("transfer-encoding", "").lower() == "chunked":
        body = b"".join([piece async for piece in read_chunks(reader)])
    else:
        body = await reader.readexactly(int(lowered.get("content-length", "0")))
    return Seen(method, target, headers, body)


async def read_chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the chunks of a chunked body."""
    while True:
        size = int((await reader.readline()).strip(), 16)
        piece = await reader.readexactly(size)
        await reader.readline()
        if size == 0:
            return
        yield piece
