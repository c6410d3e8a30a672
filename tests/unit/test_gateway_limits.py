"""What is over a limit is told at once and in OpenAI's shape, and silence has an end that noise has not."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from sternpost_fakes.engine import EVENT_STREAM, FakeEngine, running_engine
from sternpost_fakes.fake_http import Reply
from sternpost_fakes.gateway import QUICK, RunningGateway, eventually, running_gateway, with_timeouts
from sternpost_gateway.settings import Settings

CHAT: Final = "/v1/chat/completions"
BODY: Final = json.dumps({"model": "other", "messages": [{"role": "user", "content": "hi"}]}).encode()
STREAM: Final = {**json.loads(BODY), "stream": True}

REFUSED_SECONDS_MAX: Final = 0.05
"""Within which a refusal must be there; of several the fastest counts, as machines may be busy."""

TRIES: Final = 5
SLOW_SECONDS: Final = 0.3
"""What a client has for its headers, and for its body, in these tests."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer, and how long it took from the last byte of the request to its own."""

    status: int
    headers: dict[str, str]
    body: Any
    seconds: float


async def refusal(gateway: RunningGateway, request: bytes) -> Refusal:
    """Send bytes over a connection of their own, and return what is answered."""
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    await writer.drain()
    sent = time.monotonic()
    async with asyncio.timeout(5):
        head, _, _ = (await reader.readuntil(b"\r\n\r\n")).decode().partition("\r\n\r\n")
        first, *lines = head.split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers["content-length"]))
    seconds = time.monotonic() - sent
    writer.transport.abort()
    return Refusal(int(first.split(" ")[1]), headers, json.loads(body), seconds)


def head(*lines: str) -> bytes:
    """Return the head of a chat."""
    return "\r\n".join([f"POST {CHAT} HTTP/1.1", "host: h", *lines]).encode() + b"\r\n\r\n"


def limited(**limits: int) -> Callable[[Settings], Settings]:
    """Return settings with these limits, in which slow clients are told soon."""
    timeouts = replace(QUICK, headers_seconds=SLOW_SECONDS, body_grace_seconds=SLOW_SECONDS)
    return lambda given: replace(given, timeouts=timeouts, limits=replace(given.limits, **limits))


WHOLE: Final = head(f"content-length: {len(BODY)}") + BODY
CHUNKED: Final = head("transfer-encoding: chunked") + b"%x\r\n%s\r\n" % (len(BODY), BODY)


@asynccontextmanager
async def with_one_in_flight(gateway: RunningGateway, engine: FakeEngine) -> AsyncIterator[None]:
    """Keep a request in flight for the length of a block."""
    engine.faults.hang = True
    asking = asyncio.ensure_future(gateway.client.post(CHAT, content=BODY))
    await eventually(lambda: bool(engine.chats))
    yield
    asking.cancel()


@pytest.mark.parametrize(
    ("limits", "request_", "expected", "waits"),
    [
        pytest.param({"body_bytes_max": 60}, WHOLE, (413, "request_too_large"), 0, id="declared"),
        pytest.param({"body_bytes_max": 60}, CHUNKED, (413, "request_too_large"), 0, id="not-declared"),
        pytest.param({"in_flight_max": 1}, WHOLE, (429, "gateway_overloaded"), 0, id="in-flight"),
        pytest.param({"bodies_bytes_max": 99}, WHOLE, (429, "gateway_overloaded"), 0, id="bodies"),
        pytest.param(
            {"bodies_bytes_max": 99}, CHUNKED, (429, "gateway_overloaded"), 0, id="bodies-in-chunks"
        ),
        pytest.param({"connections_max": 1}, WHOLE, (429, "gateway_overloaded"), 0, id="connections"),
        pytest.param(
            {}, head(f"x-a: {'a' * 70_000}", "content-length: 0"), (431, "headers_too_large"), 0, id="headers"
        ),
        pytest.param(
            {}, head("content-length: 9") + b"{", (408, "request_too_slow"), SLOW_SECONDS, id="slow-body"
        ),
        pytest.param({}, head()[:-2], (408, "request_too_slow"), SLOW_SECONDS, id="slow-headers"),
    ],
)
async def test_what_is_over_a_limit_is_told_at_once(
    tmp_path: Path, limits: dict[str, int], request_: bytes, expected: tuple[int, str], waits: float
) -> None:
    """JSON within 50 ms, and when to come back where that would help; what is in flight is not disturbed."""
    held = limits.keys() & {"in_flight_max", "bodies_bytes_max", "connections_max"}
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(running_engine())
        gateway = await stack.enter_async_context(
            running_gateway(tmp_path, [engine.url], settings=limited(**limits))
        )
        if held:
            await stack.enter_async_context(with_one_in_flight(gateway, engine))
        refusals = [await refusal(gateway, request_) for _ in range(TRIES)]
        reached = len(engine.chats)

    assert {expected} == {(one.status, one.body["error"]["code"]) for one in refusals}
    assert {"message", "type", "param", "code"} == set(refusals[0].body["error"])
    assert {"application/json"} == {one.headers["content-type"] for one in refusals}
    retry_after = {int(one.headers.get("retry-after", 0)) for one in refusals}
    assert retry_after <= ({1, 2, 3, 4, 5} if expected[0] == 429 else {0})
    assert min(one.seconds for one in refusals) - waits < REFUSED_SECONDS_MAX
    assert (1 if held else 0) == reached


MANY: Final = b'{"model":"other","messages":[%b{}]}' % (b'{"role":"user"},' * 100_000)


async def test_body_of_many_small_things_holds_up_nobody(tmp_path: Path) -> None:
    """It is checked beside the event loop, which it would stop for seconds."""
    longest = 0.0
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        engine.faults.reply = Reply(pieces=(b"{}",))
        asking = asyncio.ensure_future(gateway.client.post(CHAT, content=MANY))
        while not asking.done():
            # What this thread computes between two turns counts, and not what it waits for on a busy machine.
            began = time.thread_time()
            await asyncio.wait({asking}, timeout=0.005)
            longest = max(longest, time.thread_time() - began)
        seen = engine.chats[-1].body

    assert (200, MANY) == (asking.result().status_code, seen)
    assert longest < 0.4


PACKED: Final = gzip.compress(BODY)


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(CHUNKED + b"0\r\n\r\n", id="chunked"),
        pytest.param(
            head("content-encoding: gzip", f"content-length: {len(PACKED)}") + PACKED, id="compressed"
        ),
    ],
)
async def test_body_of_unknown_length_counts_with_the_length_it_has(tmp_path: Path, request_: bytes) -> None:
    """Requests whose length has not been told take as much room as others, once they have been read."""
    settings = limited(body_bytes_max=10 * len(BODY), bodies_bytes_max=20 * len(BODY))
    engine = FakeEngine(first_delay_seconds=0.5)
    async with running_engine(engine), running_gateway(tmp_path, [engine.url], settings=settings) as gateway:
        answers = await asyncio.gather(*(refusal(gateway, request_) for _ in range(10)))

    assert [200] * 10 == [one.status for one in answers]


OPEN_MAX: Final = 4


@asynccontextmanager
async def with_connections(gateway: RunningGateway) -> AsyncIterator[list[asyncio.StreamReader]]:
    """Open twice as many connections as are allowed, and send nothing over them."""
    host, port = gateway.url.removeprefix("http://").split(":")
    opened = [await asyncio.open_connection(host, int(port)) for _ in range(2 * OPEN_MAX)]
    yield [reader for reader, _ in opened]
    for _, writer in opened:
        writer.transport.abort()


async def test_connections_are_bounded_and_orders_get_through(tmp_path: Path) -> None:
    """One too many is told so, however large its request, and ends; so do those that say nothing."""
    async with (
        running_engine() as engine,
        running_gateway(
            tmp_path,
            [engine.url],
            settings=lambda given: replace(given, limits=replace(given.limits, connections_max=OPEN_MAX)),
        ) as gateway,
        httpx.AsyncClient(base_url=gateway.url, trust_env=False) as late,
    ):
        async with with_connections(gateway) as idle:
            refused = await late.post(CHAT, content=b"x" * 2_000_000)
            probed = await late.get("/healthz")
            with pytest.raises(InvalidStatus) as tunnel:
                await connect(gateway.url.replace("http", "ws") + "/v1/realtime")
            ended = await asyncio.wait_for(idle[-1].read(), 5)
            stays = not idle[0].at_eof()
        async with asyncio.timeout(5):
            while (served := await late.post(CHAT, content=BODY)).status_code != 200:
                await asyncio.sleep(0.01)

    assert (429, "close", "1") == (
        refused.status_code,
        refused.headers["connection"],
        refused.headers["x-gateway-shed"],
    )
    assert (200, "close", 429) == (
        probed.status_code,
        probed.headers["connection"],
        tunnel.value.response.status_code,
    )
    assert (b"", True) == (ended, stays)
    assert (200, None) == (served.status_code, served.headers.get("connection"))
    assert gateway.metric("sternpost_gateway_sheds_total") >= 1


async def test_silence_within_an_answer_has_an_end(tmp_path: Path) -> None:
    """A stream that stands still for too long is cut like one that its engine cuts; its engine is let go."""
    timeouts = with_timeouts(replace(QUICK, idle_seconds=0.3))
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], settings=timeouts) as gateway,
    ):
        engine.faults.reply = Reply(
            headers=EVENT_STREAM,
            pieces=(b"data: 1\n\n", b"data: [DONE]\n\n"),
            framing="chunked",
            delay_seconds=60,
        )
        got = bytearray()
        with pytest.raises(httpx.RemoteProtocolError):
            async with gateway.client.stream("POST", CHAT, json=STREAM) as stream:
                async for piece in stream.aiter_raw():
                    got += piece
        await eventually(lambda: engine.server.aborts == 1)

    assert b'"code": "upstream_cut"' in got and b"[DONE]" not in got


async def test_stream_that_speaks_now_and_then_has_no_end(tmp_path: Path) -> None:
    """It may take many times as long as any limit, as long as each silence is shorter."""
    short = replace(QUICK, idle_seconds=1.5, first_byte_seconds=1.5, write_stall_seconds=1.5)
    engine = FakeEngine(words=tuple("x" * 24), delay_seconds=0.15)
    async with (
        running_engine(engine),
        running_gateway(tmp_path, [engine.url], settings=with_timeouts(short)) as gateway,
    ):
        begun = time.monotonic()
        answer = await gateway.client.post(CHAT, json=STREAM)
        seconds = time.monotonic() - begun

    assert answer.content.endswith(b"data: [DONE]\n\n") and 24 == answer.content.count(b'"delta"')
    assert seconds > 2 * short.idle_seconds


async def test_client_that_has_stopped_reading_is_counted(tmp_path: Path) -> None:
    """It has not left, and is told apart from those who have."""
    timeouts = with_timeouts(replace(QUICK, write_stall_seconds=0.3))
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], settings=timeouts) as gateway,
    ):
        flood = (b"data: " + b"x" * 65536 + b"\n\n",) * 500
        engine.faults.reply = Reply(headers=EVENT_STREAM, pieces=flood, framing="chunked")
        async with gateway.client.stream("POST", CHAT, json=STREAM):
            await eventually(lambda: gateway.metric("sternpost_gateway_in_flight") == 0)
        stalled = gateway.metric("sternpost_gateway_stalled_clients_total")
        engine.faults.reply = None
        engine.words, engine.delay_seconds = tuple("x" * 100), 0.05
        async with gateway.client.stream("POST", CHAT, json=STREAM) as stream:
            await anext(stream.aiter_raw())
        await eventually(lambda: gateway.metric("sternpost_gateway_in_flight") == 0)

        left = gateway.metric("sternpost_gateway_requests_total", outcome="client_gone")
        assert (1, 2) == (stalled, left)
        assert 1 == gateway.metric("sternpost_gateway_stalled_clients_total")
