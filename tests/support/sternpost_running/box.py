"""
A box in the network between a client and a TCP server, that lets a test cut the way in three manners.

It runs in a thread of its own, with its own event loop, so that tests may wait in whatever way they like.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

PIECE_BYTES: Final = 65536
START_SECONDS_MAX: Final = 10.0


@dataclass(slots=True)
class Box:
    """
    Relays bytes to `target`.

    While `closed`, connections are refused and existing ones cut. Connections that were open when `silence`
    was called stay open, and carry nothing more to the client; new ones work.
    """

    target: tuple[str, int]
    port: int = 0
    closed: bool = False
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _ready: threading.Event = field(default_factory=threading.Event)
    _open: set[asyncio.StreamWriter] = field(default_factory=set)
    _silent: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def url(self) -> str:
        """Return the box's own address, for TLS."""
        return f"https://127.0.0.1:{self.port}"

    def close(self) -> None:
        """Refuse new connections, and cut those that are open."""
        self.closed = True
        self._call(self._cut)

    def reopen(self) -> None:
        """Let connections through again."""
        self.closed = False

    def silence(self) -> None:
        """Drop what the server sends from now on over the connections that are open now."""
        self._call(lambda: self._silent.update(self._open))

    def run(self) -> None:
        """Serve until stopped; for the thread."""
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._relay, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        self._cut()
        self._loop.run_until_complete(asyncio.sleep(0.1))
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    def wait_ready(self) -> None:
        """Wait until connections are taken."""
        assert self._ready.wait(START_SECONDS_MAX), "the box does not start"

    def stop(self) -> None:
        """End."""
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _call(self, action: object) -> None:
        done = threading.Event()

        def run() -> None:
            assert callable(action)
            action()
            done.set()

        self._loop.call_soon_threadsafe(run)
        assert done.wait(START_SECONDS_MAX), "the box does not answer"

    def _cut(self) -> None:
        for writer in tuple(self._open):
            writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.closed:
            writer.transport.abort()
            return
        self._open.add(writer)
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(*self.target)
            there = asyncio.ensure_future(self._pump(reader, upstream_writer))
            back = asyncio.ensure_future(self._pump(upstream_reader, writer))
            await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
            for task in (there, back):
                task.cancel()
            upstream_writer.transport.abort()
        except OSError:
            pass
        finally:
            self._open.discard(writer)
            self._silent.discard(writer)
            writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while piece := await reader.read(PIECE_BYTES):
                if writer not in self._silent:
                    writer.write(piece)
                    await writer.drain()


@contextmanager
def running_box(url: str) -> Iterator[Box]:
    """Run a box in front of a server for the length of a block."""
    parts = urlsplit(url)
    assert parts.hostname is not None and parts.port is not None, "the URL names host and port"
    box = Box((parts.hostname, parts.port))
    thread = threading.Thread(target=box.run, daemon=True)
    thread.start()
    box.wait_ready()
    try:
        yield box
    finally:
        box.stop()
        thread.join(START_SECONDS_MAX)
