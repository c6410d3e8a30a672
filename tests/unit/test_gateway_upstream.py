"""Exchanges with engines over real connections, down to the bytes of an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_fakes.garbage import left_to_the_collector
from sternpost_gateway.dialer import origin_of
from sternpost_gateway.errors import ConnectFailed, Disconnected, UpstreamCut, UpstreamError, UpstreamStalled
from sternpost_gateway.pooled_upstream import PooledUpstream
from sternpost_gateway.settings import Limits, Timeouts
from sternpost_gateway.upstream import UpstreamRequest, UpstreamResponse
from sternpost_gateway.upstream_connection import BARREN_BYTES_MAX, Keeping, UpstreamConnection

OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
UNENDED = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n1234"
FLOOD = b"x" * (2 * BARREN_BYTES_MAX)
WAIT_SECONDS = 5.0


@dataclass(slots=True)
class RawEngine:
    """Writes the next of its answers to each request as it stands, and may then end the connection."""

    answers: list[bytes]
    closes: bool = False
    waits_for_body: bool = True
    heads: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    connections: int = 0
    lost: int = 0
    sent_bytes: int = 0
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    url: str = ""

    def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self.connections += 1
        self.tasks.add(asyncio.ensure_future(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while self.answers:
                self.heads.append(await reader.readuntil(b"\r\n\r\n"))
                if self.waits_for_body:
                    self.bodies.append(await self._body(reader))
                await self._write(writer, self.answers.pop(0))
                if self.closes:
                    break
            if not self.closes:
                await reader.read()
        self.lost += 1
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def _body(self, reader: asyncio.StreamReader) -> bytes:
        head = self.heads[-1].lower()
        if b"transfer-encoding: chunked" in head:
            return await reader.readuntil(b"0\r\n\r\n")
        length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
        return await reader.readexactly(int(length or b"0"))

    async def _write(self, writer: asyncio.StreamWriter, answer: bytes) -> None:
        for start in range(0, len(answer), 65536):
            writer.write(answer[start : start + 65536])
            await writer.drain()
            self.sent_bytes += len(answer[start : start + 65536])


@asynccontextmanager
async def reached(
    engine: RawEngine, timeouts: Timeouts | None = None
) -> AsyncIterator[Callable[..., asyncio.Future[UpstreamResponse]]]:
    """Run an engine, and give a function that sends it a request."""
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0, limit=4 * 1024 * 1024)
    engine.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    upstream = PooledUpstream(Limits(), timeouts or Timeouts())

    def send(
        method: str = "POST",
        body: bytes | AsyncIterator[bytes] | None = b"{}",
        headers: tuple[tuple[bytes, bytes], ...] = (),
        *,
        fresh: bool = False,
    ) -> asyncio.Future[UpstreamResponse]:
        request = UpstreamRequest(method, engine.url, "/v1/x?a=1", headers, body, fresh)
        return asyncio.ensure_future(upstream.send(request))

    try:
        yield send
    finally:
        await upstream.close()
        server.close()
        await server.wait_closed()
        await asyncio.gather(*engine.tasks)


async def whole(response: UpstreamResponse) -> bytes:
    """Read an answer to its end."""
    body = b""
    with closing(response):
        async with asyncio.timeout(WAIT_SECONDS):
            while piece := await response.read():
                body += piece
    return body


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("answer", "body", "connections"),
    [
        pytest.param(OK, b"{}", 1, id="with-a-length"),
        pytest.param(CHUNKED + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", b"abcde", 1, id="in-chunks"),
        pytest.param(CHUNKED + b"1\r\na\r\n0\r\nx-end: 1\r\n\r\n", b"a", 1, id="with-trailers"),
        pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n", b"", 1, id="without-a-body"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n" + OK, b"{}", 1, id="continue-first"),
        pytest.param(b"HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n" * 3 + OK, b"{}", 1, id="hints-first"),
        pytest.param(OK + OK, b"{}", 2, id="an-answer-that-nobody-asked-for"),
        pytest.param(OK.replace(b"1.1", b"1.0", 1), b"{}", 2, id="of-an-older-server"),
        pytest.param(
            OK.replace(b"content-t", b"connection: close\r\ncontent-t"), b"{}", 2, id="the-last-one"
        ),
    ],
)
async def test_answer_is_read_to_its_end(answer: bytes, body: bytes, connections: int) -> None:
    """However it is framed; the connection is used again where the engine allows it."""
    engine = RawEngine([answer, OK])
    async with reached(engine) as send:
        response = await send()
        assert body == await whole(response)
        assert b"{}" == await whole(await send())

    assert not any(name in (b"x-end", b"link") for name, _ in response.headers)
    assert connections == engine.connections


async def test_answer_may_end_with_its_connection() -> None:
    """One that says nothing of its length is complete then."""
    engine = RawEngine([b"HTTP/1.1 200 OK\r\n\r\nabc"], closes=True)
    async with reached(engine) as send:
        assert b"abc" == await whole(await send())


@pytest.mark.parametrize(
    ("answer", "closes", "error"),
    [
        pytest.param(b"", True, Disconnected, id="nothing"),
        pytest.param(b"HTTP/1.1 200 OK\r\ncontent-", True, UpstreamCut, id="half-a-head"),
        pytest.param(b"\x16\x03\x01garbage\r\n\r\n", False, UpstreamCut, id="no-http"),
        pytest.param(b"HTTP/1.1 101 Switching Protocols\r\n\r\n", False, UpstreamCut, id="another-protocol"),
        pytest.param(b"HTTP/1.1 600 Odd\r\ncontent-length: 0\r\n\r\n", False, UpstreamCut, id="no-status"),
        pytest.param(b"HTTP/1.1 200 OK\r\nx: " + FLOOD, False, UpstreamCut, id="an-endless-header"),
        pytest.param(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 50_000, False, UpstreamCut, id="endless-headers"),
        pytest.param(b"HTTP/1.1 103 Early\r\n\r\n" * 50_000, False, UpstreamCut, id="endless-hints"),
        pytest.param(CHUNKED[:-2] + b"content-length: 1\r\n\r\n", False, UpstreamCut, id="two-framings"),
    ],
)  # fmt: skip
async def test_answer_that_does_not_begin_is_told(
    answer: bytes, closes: bool, error: type[UpstreamError]
) -> None:
    """What has sent nothing may be asked elsewhere; everything else is an answer that failed."""
    engine = RawEngine([answer], closes=closes)
    async with reached(engine) as send:
        with pytest.raises(error) as raised:
            await whole(await send())
        await until(lambda: engine.lost == 1)

    assert error is type(raised.value)


@pytest.mark.parametrize(
    ("answer", "closes", "before"),
    [
        pytest.param(UNENDED, True, b"1234", id="fewer-bytes-than-said"),
        pytest.param(CHUNKED + b"3\r\nabc\r\n", True, b"abc", id="no-last-chunk"),
        pytest.param(CHUNKED + b"3\r\nabc\r\nzz\r\n", False, b"abc", id="no-chunk"),
        pytest.param(CHUNKED + b"3\r\nabc\r\n1;" + FLOOD, False, b"abc", id="an-endless-extension"),
        pytest.param(CHUNKED + b"3\r\nabc\r\n0\r\nx: " + FLOOD, False, b"abc", id="an-endless-trailer"),
    ],
)
async def test_answer_that_is_cut_is_read_up_to_there(answer: bytes, closes: bool, before: bytes) -> None:
    """Nothing that came is lost, and the end is an error each time it is asked for."""
    engine = RawEngine([answer], closes=closes)
    async with reached(engine) as send:
        response = await send()
        await until(lambda: engine.lost == 1)

        assert before == await response.read()
        for _ in range(2):
            with pytest.raises(UpstreamCut):
                await response.read()


async def test_head_has_no_body_whatever_its_length() -> None:
    """Nobody waits for bytes that do not come."""
    engine = RawEngine([OK.removesuffix(b"{}"), OK])
    async with reached(engine) as send:
        response = await send("HEAD", None)
        assert b"" == await whole(response)
        assert b"{}" == await whole(await send())

    assert (b"content-length", b"2") in response.headers


def test_bytes_that_nobody_asked_for_end_the_connection() -> None:
    """They would be taken for the next answer."""
    transport = FakeTransport()
    receive(connection_on(transport), b"HTTP/1.1 200 OK\r\n")

    assert transport.aborted


async def pieces(*given: bytes | Exception, forever: bool = False) -> AsyncIterator[bytes]:
    """Yield a body's pieces, or fail."""
    for piece in given:
        if isinstance(piece, Exception):
            raise piece
        yield piece
        await asyncio.sleep(0)
    while forever:
        await asyncio.sleep(0.01)
        yield b"x" * 1024


@pytest.mark.parametrize(
    ("body", "headers", "framing", "arrived"),
    [
        pytest.param(b"ab", (), b"content-length: 2", b"ab", id="whole"),
        pytest.param(b"a" * 3_000_000, (), b"content-length: 3000000", b"a" * 3_000_000, id="large"),
        pytest.param(pieces(b"a", b"bc"), (), b"transfer-encoding: chunked",
                     b"1\r\na\r\n2\r\nbc\r\n0\r\n\r\n", id="in-pieces"),
        pytest.param(pieces(b"a", b"bc"), ((b"content-length", b"3"),), b"content-length: 3", b"abc",
                     id="in-pieces-with-a-length"),
        pytest.param(None, (), b"content-length: 0", b"", id="none"),
    ],
)  # fmt: skip
async def test_body_arrives_in_its_framing(
    body: bytes | AsyncIterator[bytes] | None,
    headers: tuple[tuple[bytes, bytes], ...],
    framing: bytes,
    arrived: bytes,
) -> None:
    """An engine reads the client's framing, or one that fits."""
    engine = RawEngine([OK, OK])
    async with reached(engine) as send:
        await whole(await send("POST", body, headers))
        await whole(await send())

    assert framing in engine.heads[0]
    assert 1 == engine.heads[0].count(b"content-length") + engine.heads[0].count(b"transfer-encoding")
    assert (arrived, 1) == (engine.bodies[0], engine.connections)


async def test_head_arrives_as_it_stands() -> None:
    """Bytes of no known coding, too."""
    engine = RawEngine([OK])
    async with reached(engine) as send:
        await whole(await send("GET", None, ((b"X-Name", b"Zo\xeb \xf0"),)))

    host = engine.url.removeprefix("http://").encode()
    assert [b"GET /v1/x?a=1 HTTP/1.1\r\nhost: " + host + b"\r\nX-Name: Zo\xeb \xf0\r\n\r\n"] == engine.heads


async def test_body_that_breaks_off_ends_the_exchange() -> None:
    """The engine does not take half a body for a whole one."""
    engine = RawEngine([OK])
    async with reached(engine) as send:
        with pytest.raises(Disconnected):
            await send("POST", pieces(b"a", ValueError("gone")))
        await until(lambda: engine.lost == 1)

    assert [] == engine.bodies


async def test_answer_in_the_middle_of_a_body_is_read() -> None:
    """A refusal is worth more than the rest of what it refuses; the connection is not used again."""
    engine = RawEngine([OK, OK], waits_for_body=False)
    async with reached(engine) as send:
        assert b"{}" == await whole(await send("POST", pieces(b"a", forever=True)))
        assert b"{}" == await whole(await send())

    assert 2 == engine.connections


async def test_reader_that_waits_holds_up_its_engine() -> None:
    """What is kept of an answer is bounded, and nothing of it is lost."""
    size = 30_000_000
    engine = RawEngine([b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + b"y" * size, OK])
    async with reached(engine) as send:
        response = await send()
        await asyncio.sleep(0.5)
        held = engine.sent_bytes
        body = await whole(response)
        await whole(await send())

    assert held < size / 2
    assert (size, 1) == (len(body), engine.connections)


async def test_answer_that_falls_silent_is_given_up() -> None:
    """The engine learns of it."""
    engine = RawEngine([UNENDED])
    async with reached(engine, replace(Timeouts(), idle_seconds=0.2)) as send:
        response = await send()
        assert b"1234" == await response.read()
        with pytest.raises(UpstreamStalled):
            await response.read()
        await until(lambda: engine.lost == 1)


@pytest.mark.parametrize(
    "answer", [pytest.param(b"", id="no-answer"), pytest.param(UNENDED, id="half-of-one")]
)
async def test_engine_learns_that_nobody_waits(answer: bytes) -> None:
    """Whoever leaves ends the connection."""
    engine = RawEngine([answer])
    async with reached(engine) as send:
        asked = send()
        await until(lambda: bool(engine.bodies))
        if answer:
            (await asked).close()
        else:
            asked.cancel()
        await until(lambda: engine.lost == 1)


async def test_connection_that_nobody_needs_is_closed() -> None:
    """Before the engine does it: a request may be on its way then."""
    engine = RawEngine([OK, OK, OK])
    async with reached(engine, replace(Timeouts(), pool_keepalive_seconds=0.2)) as send:
        await whole(await send())
        await whole(await send())
        assert (1, 0) == (engine.connections, engine.lost)
        await until(lambda: engine.lost == 1)
        await whole(await send())

    assert 2 == engine.connections


async def test_fresh_connection_serves_others_afterwards() -> None:
    """It was asked for because the one that was kept might be gone."""
    engine = RawEngine([OK, OK, OK])
    async with reached(engine) as send:
        await whole(await send())
        await whole(await send(fresh=True))
        assert 2 == engine.connections
        await whole(await send())

    assert 2 == engine.connections


@pytest.mark.parametrize(
    "url",
    [
        pytest.param("http://127.0.0.1:1", id="nobody-there"),
        pytest.param("http://" + "a" * 70 + ".invalid", id="no-name"),
    ],
)
async def test_engine_that_cannot_be_reached_is_told(url: str) -> None:
    """It has got nothing, and the request may go elsewhere."""
    upstream = PooledUpstream(Limits(), Timeouts())
    with pytest.raises(ConnectFailed):
        await upstream.send(UpstreamRequest("GET", url, "/", (), None))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        pytest.param("http://10.0.0.1:8000", ("10.0.0.1", 8000, False, "10.0.0.1:8000"), id="http"),
        pytest.param("https://engine.ns", ("engine.ns", 443, True, "engine.ns"), id="https"),
        pytest.param("http://[fd00::1]:80", ("fd00::1", 80, False, "[fd00::1]:80"), id="ipv6"),
    ],
)
def test_origin_is_read_from_a_url(url: str, expected: tuple[str, int, bool, str]) -> None:
    """Host, port, whether by TLS, and how requests name it."""
    found = origin_of(url)

    assert expected == (found.host, found.port, found.is_secure, found.authority)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(OK, id="answered"),
        pytest.param(UNENDED, id="cut"),
        pytest.param(b"", id="disconnected"),
        pytest.param(b"?\r\n\r\n", id="no-http"),
    ],
)
async def test_exchange_leaves_nothing_to_the_garbage_collector(answer: bytes) -> None:
    """It is looked for rarely: a cycle would keep a body for long after its request."""
    engine = RawEngine([OK, answer])
    async with reached(engine) as send:
        await whole(await send())
        engine.closes = True
        with left_to_the_collector("sternpost_gateway", "httptools") as left:
            with suppress(UpstreamError):
                await whole(await send())
            await until(lambda: engine.lost == 1)
            await asyncio.sleep(0.01)

    assert set() == left


class FakeTransport(asyncio.Transport):
    """Keeps what becomes of a connection."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False
        self.written = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Keep."""
        self.written += bytes(data)

    def is_closing(self) -> bool:
        """Say whether it was aborted."""
        return self.aborted

    def abort(self) -> None:
        """Note."""
        self.aborted = True

    def pause_reading(self) -> None:
        """Do nothing: everything is there."""

    def resume_reading(self) -> None:
        """Do nothing."""


def connection_on(transport: FakeTransport) -> UpstreamConnection:
    """Return a connection over a transport."""
    keeping = Keeping(
        kept_bytes_max=32768,
        idle_seconds=60.0,
        buffer=memoryview(bytearray(1024)),
        on_free=lambda connection: None,
        on_lost=lambda connection: None,
    )
    connection = UpstreamConnection("engine", keeping)
    connection.connection_made(transport)
    return connection


def receive(connection: UpstreamConnection, data: bytes) -> None:
    """Have bytes arrive as a transport does it."""
    connection.get_buffer(-1)[: len(data)] = data
    connection.buffer_updated(len(data))


ANSWERS = (OK, CHUNKED + b"3\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\nx-end: 1\r\n\r\n",
           b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")  # fmt: skip


@given(st.sampled_from(ANSWERS), st.lists(st.integers(1, 60), max_size=40))
def test_answer_is_the_same_however_it_arrives(answer: bytes, sizes: list[int]) -> None:
    """The network cuts it anywhere."""

    async def read(cuts: list[int]) -> tuple[int, bytes]:
        connection = connection_on(FakeTransport())
        asked = asyncio.ensure_future(connection.ask(UpstreamRequest("POST", "http://e", "/", (), b"{}")))
        await asyncio.sleep(0)
        rest = answer
        for size in [*cuts, len(answer)]:
            if rest[:size]:
                receive(connection, rest[:size])
            rest = rest[size:]
        response = await asked
        return response.status, await whole(response)

    assert asyncio.run(read([])) == asyncio.run(read(sizes))
