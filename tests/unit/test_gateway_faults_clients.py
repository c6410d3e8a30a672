"""Clients that stall, dribble or send too much, many at once: slots come back, and others are served."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from sternpost_fakes.engine import EVENT_STREAM, FakeEngine, running_engine
from sternpost_fakes.fake_http import Reply
from sternpost_fakes.gateway import QUICK, RunningGateway, eventually, running_gateway
from sternpost_fakes.gateway_process import gateway_process
from sternpost_gateway.settings import Settings
from sternpost_running.process_facts import MIB, rss_bytes

CLIENTS: Final = int(os.environ.get("STERNPOST_FAULT_CLIENTS", "40"))
"""Of each kind at once; the full size is 500."""

HELD_BYTES_MAX: Final = 16 * MIB + 2 * CLIENTS * 256 * 1024
"""What so many clients of each kind may add to the memory of a gateway, 256 KiB each."""

STALL_SECONDS: Final = 0.5
GIVEN_UP_SECONDS_MAX: Final = 20.0
"""Within which a client of the tests is given up, however busy the machine is."""

RECEIVE_BYTES: Final = 4096
"""Of a client's own buffer in the kernel, so that it is soon full when nothing is read."""

LARGE_BYTES: Final = 8 * MIB
BODIES_BYTES_MAX: Final = 32 * MIB
LARGE_REQUESTS: Final = 24
GROWTH_FACTOR_MAX: Final = 8
"""Of the memory that large bodies take to what they may have together: a body is read, edited and sent."""

Connection = tuple[asyncio.StreamReader, Any]

STREAM_PIECE: Final = b"data: " + b"x" * 65536 + b"\n\n"


def impatient_reader(given: Settings) -> Settings:
    """Return settings in which a client that sends slowly is given up soon."""
    timeouts = replace(QUICK, headers_seconds=STALL_SECONDS, body_grace_seconds=STALL_SECONDS)
    return replace(given, timeouts=timeouts)


def impatient_writer(given: Settings) -> Settings:
    """Return settings in which a client that does not read is given up soon, and a busy engine is not."""
    patience = GIVEN_UP_SECONDS_MAX
    timeouts = replace(
        QUICK,
        write_stall_seconds=STALL_SECONDS,
        connect_seconds=patience,
        first_byte_seconds=patience,
        idle_seconds=patience,
    )
    return replace(given, timeouts=timeouts)


def head_of(length: int, path: str = "/v1/chat/completions") -> bytes:
    """Return the head of a request."""
    return f"POST {path} HTTP/1.1\r\nhost: h\r\ncontent-length: {length}\r\n\r\n".encode()


def chat(*, stream: bool = False, text: str = "hi") -> bytes:
    """Return a body."""
    messages = [{"role": "user", "content": text}]
    return json.dumps({"model": "demo", "stream": stream, "messages": messages}).encode()


@asynccontextmanager
async def connections(url: str, count: int) -> AsyncIterator[list[Connection]]:
    """Open connections with a small buffer, and break them off at the end."""
    host, port = url.removeprefix("http://").split(":")
    opened = [await asyncio.open_connection(host, int(port), limit=RECEIVE_BYTES) for _ in range(count)]
    try:
        yield opened
    finally:
        for _, writer in opened:
            writer.transport.abort()


async def healthy(gateway: RunningGateway, count: int = 5) -> list[int]:
    """Return the statuses of requests of well-behaved clients."""
    answers = [await gateway.client.post("/v1/chat/completions", content=chat()) for _ in range(count)]
    return [answer.status_code for answer in answers]


async def in_flight(gateway: RunningGateway, count: int) -> None:
    """Wait until so many requests are in flight."""
    await eventually(lambda: gateway.metric("sternpost_gateway_in_flight") == count, GIVEN_UP_SECONDS_MAX)


async def stop_reading(clients: Sequence[Connection], late: Sequence[Connection]) -> None:
    """Ask for a stream over each connection and read nothing; those that are late have read its beginning."""
    for _, writer in clients:
        writer.write(head_of(len(chat(stream=True))) + chat(stream=True))
    for reader, _ in late:
        await reader.readexactly(len(b"HTTP/1.1 200 OK"))
    for _, writer in clients:
        writer.transport.pause_reading()


@pytest.mark.parametrize("reads_first", [False, True], ids=["half-open", "stalled"])
async def test_f12_clients_that_stop_reading_are_given_up(tmp_path: Path, reads_first: bool) -> None:
    """Whether they have vanished or stall within the stream: the engine is let go, and slots are free."""
    engine = FakeEngine(models=("demo",))
    async with (
        running_engine(engine),
        running_gateway(tmp_path, [engine.url], settings=impatient_writer) as gateway,
        connections(gateway.url, CLIENTS) as clients,
    ):
        endless = Reply(headers=EVENT_STREAM, pieces=(STREAM_PIECE,) * 500, framing="chunked")
        engine.faults.reply = endless
        await stop_reading(clients, clients if reads_first else [])
        await eventually(lambda: CLIENTS == engine.server.aborts, GIVEN_UP_SECONDS_MAX)
        await in_flight(gateway, 0)
        engine.faults.reply = None

        assert [200] * 5 == await healthy(gateway)


@pytest.mark.parametrize(
    ("begun", "expected"),
    [
        pytest.param(b"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\n", b"HTTP/1.1 408 ", id="headers"),
        pytest.param(head_of(1000) + b"{", b"HTTP/1.1 408 ", id="body"),
        pytest.param(b"", b"", id="nothing"),
    ],
)
async def test_f13_clients_that_dribble_are_refused_and_harm_nobody(
    tmp_path: Path, begun: bytes, expected: bytes
) -> None:
    """Each loses its connection in time, and whoever asks meanwhile is answered."""
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], settings=impatient_reader) as gateway,
        connections(gateway.url, CLIENTS) as clients,
    ):
        for _, writer in clients:
            writer.write(begun)
        statuses = await healthy(gateway)
        async with asyncio.timeout(GIVEN_UP_SECONDS_MAX):
            answers = await asyncio.gather(*(reader.read() for reader, _ in clients))
        await in_flight(gateway, 0)

        assert [200] * 5 == statuses
        assert all(answer.startswith(expected) for answer in answers)
        assert [b""] * CLIENTS == answers or expected


async def test_f14_large_bodies_at_once_are_bounded(tmp_path: Path) -> None:
    """What is over the budget is refused with 429, one over the limit with 413, and memory stays bounded."""
    flags = ("--max-bodies-bytes", str(BODIES_BYTES_MAX), "--max-body-bytes", str(LARGE_BYTES + MIB))
    async with (
        running_engine() as engine,
        gateway_process(tmp_path, engine.url, *flags) as (process, url),
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client,
    ):
        await until_answered(client)
        before = rss_bytes(process.pid)
        body = chat(text="A" * LARGE_BYTES)
        asking = [client.post("/v1/chat/completions", content=body) for _ in range(LARGE_REQUESTS)]
        statuses = [answer.status_code for answer in await asyncio.gather(*asking)]
        grown = rss_bytes(process.pid) - before
        over = await client.post("/v1/chat/completions", content=chat(text="A" * (LARGE_BYTES + 2 * MIB)))
        after = await client.post("/v1/chat/completions", content=chat())

    assert {200, 429} >= set(statuses) and 200 in statuses
    assert (413, 200) == (over.status_code, after.status_code)
    assert grown < GROWTH_FACTOR_MAX * BODIES_BYTES_MAX


async def until_answered(client: httpx.AsyncClient) -> None:
    """Ask until the gateway has found its engine."""
    async with asyncio.timeout(GIVEN_UP_SECONDS_MAX):
        while (await client.post("/v1/chat/completions", content=chat())).status_code != 200:
            await asyncio.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_f12_memory_of_clients_that_stop_reading_is_bounded(tmp_path: Path) -> None:
    """Half-open and stalled ones, with the timeouts that users have: given up after 30 s."""
    engine = FakeEngine(models=("demo",))
    async with (
        running_engine(engine),
        gateway_process(tmp_path, engine.url) as (process, url),
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client,
    ):
        await until_answered(client)
        engine.faults.reply = Reply(headers=EVENT_STREAM, pieces=(STREAM_PIECE,) * 500, framing="chunked")
        before, most = rss_bytes(process.pid), 0
        async with connections(url, 2 * CLIENTS) as clients:
            await stop_reading(clients, clients[::2])
            while engine.server.aborts < 2 * CLIENTS:
                most = max(most, rss_bytes(process.pid))
                await asyncio.sleep(0.2)
        engine.faults.reply = None
        after = await client.post("/v1/chat/completions", content=chat())

    assert 200 == after.status_code
    assert most - before < HELD_BYTES_MAX
