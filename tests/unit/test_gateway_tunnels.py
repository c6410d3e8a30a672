"""Websockets go through the gateway: bytes as they are, and the end of one side is the end of both."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.http11 import Request, Response

from sternpost_fakes.gateway import QUICK, RunningGateway, eventually, running_gateway, with_timeouts
from sternpost_gateway.client_keys import digest_of
from sternpost_gateway.settings import Credentials, Settings

GONE_SECONDS_MAX = 1.0
"""Within which one side must learn that the other has gone."""

TARGET = "/v1/realtime?model=voice&x=%20y"


@dataclass(slots=True)
class SocketEngine:
    """An engine that speaks websocket: it sends back what it gets; `flood` makes it talk without an end."""

    refuse: bool = False
    hang: bool = False
    flood: bool = False
    seen: list[Request] = field(default_factory=list)
    open: set[ServerConnection] = field(default_factory=set)
    server: Server | None = None

    @property
    def url(self) -> str:
        """Return the base URL."""
        assert self.server is not None, "the engine runs"
        return f"http://127.0.0.1:{next(iter(self.server.sockets)).getsockname()[1]}"

    async def handle(self, connection: ServerConnection) -> None:
        """Serve one websocket."""
        self.open.add(connection)
        try:
            while self.flood:
                await connection.send(b"x" * 65536)
                await asyncio.sleep(0)
            async for message in connection:
                await connection.send(message)
        except ConnectionClosed:
            pass
        finally:
            self.open.discard(connection)

    async def process(self, connection: ServerConnection, request: Request) -> Response | None:
        """Answer probes; note and perhaps refuse what asks for a websocket."""
        if "upgrade" not in {name.lower() for name, _ in request.headers.raw_items()}:
            return connection.respond(
                HTTPStatus.OK if request.path == "/health" else HTTPStatus.NOT_FOUND, ""
            )
        self.seen.append(request)
        if self.hang:
            await asyncio.Event().wait()
        return connection.respond(HTTPStatus.FORBIDDEN, "no audio here") if self.refuse else None


@asynccontextmanager
async def running_socket_engine(engine: SocketEngine) -> AsyncIterator[SocketEngine]:
    """Run an engine for the length of a block."""
    async with serve(
        engine.handle, "127.0.0.1", 0, process_request=engine.process, max_size=None, compression=None
    ) as server:
        engine.server = server
        yield engine


@asynccontextmanager
async def between(
    tmp_path: Path, engine: SocketEngine, settings: Callable[[Settings], Settings] = lambda given: given
) -> AsyncIterator[RunningGateway]:
    """Run a gateway in front of the engine."""
    async with (
        running_socket_engine(engine),
        running_gateway(tmp_path, [engine.url], settings=settings, policy="") as gateway,
    ):
        yield gateway


def socket_url(gateway: RunningGateway, target: str = TARGET) -> str:
    """Return the URL of a websocket."""
    return gateway.url.replace("http", "ws") + target


async def test_messages_go_both_ways_as_they_are(tmp_path: Path) -> None:
    """Text, bytes and what is large; the engine sees the path, and no secret but by the pool's mode."""
    engine = SocketEngine()
    messages: list[str | bytes] = ["ahoy", b"\x00\xff", "é😀", b"x" * 3_000_000]
    headers = {"authorization": "Bearer k", "cookie": "c=1", "x-sternpost-cache": "off", "x-app": "a"}
    async with between(tmp_path, engine) as gateway:
        host = engine.url.removeprefix("http://")
        async with connect(socket_url(gateway), additional_headers=headers, max_size=None) as client:
            assert 1 == gateway.metric("sternpost_gateway_in_flight")
            for message in messages:
                await client.send(message)
            received = [await client.recv() for _ in messages]
        await eventually(lambda: gateway.metric("sternpost_gateway_in_flight") == 0)
        counted = gateway.metric("sternpost_gateway_requests_total", outcome="1xx")
    seen = engine.seen[0]

    assert messages == received
    assert (TARGET, host) == (seen.path, seen.headers["host"])
    assert ("Bearer k", "a") == (seen.headers["authorization"], seen.headers["x-app"])
    assert {"cookie", "x-sternpost-cache"}.isdisjoint({name.lower() for name in seen.headers})
    assert 1 == counted


async def test_client_that_vanishes_ends_the_engines_side(tmp_path: Path) -> None:
    """Without a good-bye, too; the engine learns of it within a second."""
    engine = SocketEngine()
    async with between(tmp_path, engine) as gateway:
        client = await connect(socket_url(gateway))
        await eventually(lambda: len(engine.open) == 1)
        client.transport.abort()

        await eventually(lambda: not engine.open, GONE_SECONDS_MAX)
        await eventually(lambda: gateway.metric("sternpost_gateway_in_flight") == 0)


async def test_engine_that_vanishes_ends_the_clients_side(tmp_path: Path) -> None:
    """The client sees the end, and no good-bye that the engine has not said."""
    engine = SocketEngine()
    async with between(tmp_path, engine) as gateway, connect(socket_url(gateway)) as client:
        await eventually(lambda: len(engine.open) == 1)
        next(iter(engine.open)).transport.abort()
        with pytest.raises(ConnectionClosed) as closed:
            async with asyncio.timeout(GONE_SECONDS_MAX):
                await client.recv()

    assert None is closed.value.rcvd


async def test_refusal_of_the_engine_passes_as_it_is(tmp_path: Path) -> None:
    """Its status and its words."""
    engine = SocketEngine(refuse=True)
    async with between(tmp_path, engine) as gateway:
        with pytest.raises(InvalidStatus) as refused:
            await connect(socket_url(gateway))

    assert (403, b"no audio here") == (refused.value.response.status_code, refused.value.response.body)


@pytest.mark.parametrize(
    ("target", "key", "expected"),
    [
        pytest.param("/v1/realtime", "wrong", (401, "invalid_api_key"), id="unknown-key"),
        pytest.param("/elsewhere", "good", (404, "not_found"), id="no-such-path"),
    ],
)
async def test_refusals_of_the_gateway_have_openais_shape(
    tmp_path: Path, target: str, key: str, expected: tuple[int, str]
) -> None:
    """A key counts for websockets as for everything else, and no engine is asked."""
    keys = tmp_path / "keys"
    keys.write_text(f"acme {digest_of('good')}\n")

    def settings(given: Settings) -> Settings:
        return replace(given, client_keys=keys, credentials=Credentials.NONE)

    engine = SocketEngine()
    async with between(tmp_path, engine, settings) as gateway:
        with pytest.raises(InvalidStatus) as refused:
            headers = {"authorization": f"Bearer {key}"}
            await connect(socket_url(gateway, target), additional_headers=headers)
        async with connect(socket_url(gateway), additional_headers={"authorization": "Bearer good"}):
            pass
    response = refused.value.response

    assert expected == (response.status_code, json.loads(response.body)["error"]["code"])
    assert 1 == len(engine.seen) and "authorization" not in engine.seen[0].headers


async def test_too_many_are_refused(tmp_path: Path) -> None:
    """A websocket counts as a request in flight for as long as it lives."""

    def settings(given: Settings) -> Settings:
        return replace(given, limits=replace(given.limits, in_flight_max=1))

    async with between(tmp_path, SocketEngine(), settings) as gateway, connect(socket_url(gateway)):
        with pytest.raises(InvalidStatus) as refused:
            await connect(socket_url(gateway))

    assert (429, "1") == (
        refused.value.response.status_code,
        refused.value.response.headers["x-gateway-shed"],
    )


async def test_engine_that_does_not_answer_is_given_up(tmp_path: Path) -> None:
    """As for every request, after the time for the first byte."""
    async with between(tmp_path, SocketEngine(hang=True)) as gateway:
        with pytest.raises(InvalidStatus) as refused:
            await connect(socket_url(gateway))

    assert 504 == refused.value.response.status_code


async def test_next_engine_is_tried_where_one_is_gone(tmp_path: Path) -> None:
    """Once, and only while no connection could be opened; nobody else has noticed that it is gone."""
    unasked = with_timeouts(replace(QUICK, probe_period_seconds=60.0, info_period_seconds=60.0))
    async with (
        running_socket_engine(SocketEngine()) as one,
        running_socket_engine(SocketEngine()) as two,
        running_gateway(tmp_path, [one.url, two.url], policy="", settings=unasked) as gateway,
    ):
        assert one.server is not None
        one.server.close()
        await one.server.wait_closed()
        for _ in range(3):
            async with connect(socket_url(gateway)) as client:
                await client.send("ahoy")
                assert "ahoy" == await client.recv()

    assert 3 == len(two.seen)


async def test_client_that_does_not_read_is_given_up(tmp_path: Path) -> None:
    """The engine is paused meanwhile, and the connection ends after the time for a stalled reader."""
    engine = SocketEngine(flood=True)
    async with between(tmp_path, engine) as gateway:
        client = await connect(socket_url(gateway), max_size=None, max_queue=1)
        await eventually(lambda: len(engine.open) == 1)
        await eventually(lambda: not engine.open, 15.0)
        client.transport.abort()
        await eventually(lambda: gateway.metric("sternpost_gateway_in_flight") == 0)


async def test_silence_of_both_sides_ends_after_a_while(tmp_path: Path) -> None:
    """A connection that nobody uses is not kept for ever."""
    engine = SocketEngine()
    async with (
        between(tmp_path, engine) as gateway,
        connect(socket_url(gateway), ping_interval=None) as client,
    ):
        with pytest.raises(ConnectionClosed):
            async with asyncio.timeout(10):
                await client.recv()
