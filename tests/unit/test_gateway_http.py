"""HTTP/1.1 as clients use it: pipelining, bodies that wait for leave or are compressed, endless heads."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sternpost_fakes.engine import FakeEngine, running_engine
from sternpost_fakes.fake_http import Reply
from sternpost_fakes.gateway import QUICK, SUPPORT_POLICY, RunningGateway, running_gateway, with_timeouts
from sternpost_gateway.settings import Settings

CHAT = "/v1/chat/completions"
BODY = json.dumps(
    {"model": "m", "messages": [{"role": "user", "content": "ahoy"}], "cache_salt": "x"}
).encode()


PLAIN = BODY.replace(b', "cache_salt": "x"', b"")
"""A body that goes on as it is."""


class Connection:
    """A client's connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def answer(self) -> tuple[int, bytes]:
        """Return the status and body of the next answer."""
        async with asyncio.timeout(5):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            body = await self.reader.readexactly(int(length or 0))
        return int(head.split(b" ")[1]), body


async def connected(gateway: RunningGateway) -> Connection:
    """Open a connection."""
    host, port = gateway.url.removeprefix("http://").split(":")
    return Connection(*await asyncio.open_connection(host, int(port)))


def request(target: str, body: bytes = b"", *headers: str) -> bytes:
    """Return a request."""
    method = "POST" if body else "GET"
    lines = [f"{method} {target} HTTP/1.1", "host: h", *headers]
    lines += [f"content-length: {len(body)}"] if body else []
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def test_pipelined_requests_are_answered_in_their_order(tmp_path: Path) -> None:
    """Sent at once, with bodies and without, the first being the slowest; the connection stays."""
    engine = FakeEngine(first_delay_seconds=0.2)
    async with running_engine(engine), running_gateway(tmp_path, [engine.url]) as gateway:
        client = await connected(gateway)
        client.writer.write(
            request(CHAT, BODY) + request("/v1/files?1") + request(CHAT, BODY) + request("/healthz")
        )
        answers = [await client.answer() for _ in range(4)]
        client.writer.write(request("/healthz"))
        later = await client.answer()
        client.writer.close()

    assert [200] * 4 == [status for status, _ in answers] and (200, b"ok") == later == answers[3]
    assert [b"chat.completion" in body for _, body in answers] == [True, False, True, False]


OFFER = ("connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAMAAABkAAQAoAAAAAIAAAAA")
"""What Java's client sends with each request over a connection without TLS."""


def in_chunks(target: str, body: bytes, *headers: str) -> bytes:
    """Return a request whose body comes in one chunk."""
    head = request(target, b"", *headers, "transfer-encoding: chunked").replace(b"GET", b"POST", 1)
    return head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


@pytest.mark.parametrize("target", [CHAT, "/v1/embeddings"])
@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(lambda target: [request(target, PLAIN, *OFFER)], id="whole"),
        pytest.param(lambda target: [in_chunks(target, PLAIN, *OFFER)], id="chunked"),
        pytest.param(lambda target: [request(target, PLAIN, *OFFER)[: -len(PLAIN)], PLAIN], id="head-first"),
        pytest.param(
            lambda target: [bytes([one]) for one in request(target, PLAIN, *OFFER)], id="byte-by-byte"
        ),
        pytest.param(
            lambda target: [request("/healthz", b"", *OFFER) * 1000 + request(target, PLAIN, *OFFER)],
            id="behind-many",
        ),
    ],
)
async def test_offer_of_another_protocol_is_declined(
    tmp_path: Path, target: str, sent: Callable[[str], list[bytes]]
) -> None:
    """A client that would rather speak HTTP/2 is served by HTTP/1.1, its body included, and again."""
    pieces = sent(target)
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        client = await connected(gateway)
        for piece in pieces:
            client.writer.write(piece)
            await asyncio.sleep(0)
        for _ in range(pieces[0].count(b"/healthz")):
            await client.answer()
        first = await client.answer()
        client.writer.write(request(target, PLAIN, *OFFER))
        second = await client.answer()
        client.writer.close()
        seen = engine.posts(target)

    assert [200, 200] == [first[0], second[0]]
    assert [PLAIN, PLAIN] == [one.body for one in seen]
    assert {None} == {
        one.header(name) for one in seen for name in ("connection", "upgrade", "http2-settings")
    }


async def test_tunnel_to_elsewhere_is_refused(tmp_path: Path) -> None:
    """CONNECT names no path of an engine, whatever it looks like."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        client = await connected(gateway)
        client.writer.write(request("/v1/files").replace(b"GET", b"CONNECT", 1))
        status, _ = await client.answer()
        client.writer.close()

    assert (400, []) == (status, engine.posts("/v1/files"))


@pytest.mark.parametrize("status", [204, 304])
async def test_answer_without_a_body_ends_with_its_head(tmp_path: Path, status: int) -> None:
    """Whatever length an engine says: it is that of another answer, and nobody waits for it."""
    reply = Reply(status=status, headers=(("content-length", "7"),), framing="none")
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        engine.faults.reply = reply
        client = await connected(gateway)
        client.writer.write(request("/v1/files/1") * 2)
        answers = [await client.answer() for _ in range(2)]
        client.writer.close()
        failed = gateway.metric("sternpost_gateway_requests_total", outcome="internal_error")

    assert [(status, b"")] * 2 == answers
    assert 0 == failed


async def test_body_that_waits_for_leave_gets_it(tmp_path: Path) -> None:
    """With Expect: 100-continue a body is sent when the gateway takes it; the engine sees no such header."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        for target in (CHAT, "/v1/embeddings"):
            client = await connected(gateway)
            head, _, body = request(target, BODY, "expect: 100-continue").partition(b"\r\n\r\n")
            client.writer.write(head + b"\r\n\r\n")
            leave = await client.answer()
            client.writer.write(body)
            served = await client.answer()
            client.writer.close()

            assert (100, 200) == (leave[0], served[0])
            assert None is engine.posts(target)[-1].header("expect")


def full(given: Settings) -> Settings:
    """Return settings under which every request is one too many."""
    return replace(given, limits=replace(given.limits, in_flight_max=0))


async def test_body_without_leave_ends_the_connection(tmp_path: Path) -> None:
    """What a client sends after its refusal may be the body or the next request: nobody guesses."""
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], settings=full) as gateway,
    ):
        client = await connected(gateway)
        head = request(CHAT, BODY, "expect: 100-continue").partition(b"\r\n\r\n")[0]
        client.writer.write(head + b"\r\n\r\n")
        status, _ = await client.answer()
        rest = await asyncio.wait_for(client.reader.read(), 5)
        client.writer.close()

    assert (429, b"") == (status, rest)


async def test_refused_body_is_no_request(tmp_path: Path) -> None:
    """However a body looks that nobody reads, the request behind it is the next one."""
    smuggled = request("/v1/smuggled")
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], settings=full) as gateway,
    ):
        client = await connected(gateway)
        client.writer.write(request(CHAT, smuggled * 5000) + request("/healthz"))
        answers = [await client.answer() for _ in range(2)]
        client.writer.close()

    assert [(429, True), (200, False)] == [(status, b"error" in body) for status, body in answers]
    assert [] == engine.posts("/v1/smuggled")


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize(
    ("target", "expected"),
    [
        pytest.param(CHAT, (429, b"gateway_overloaded"), id="read"),
        pytest.param("/v1/files", (429, b"gateway_overloaded"), id="streamed"),
        pytest.param("/chat/completions", (404, b"not_found"), id="nowhere"),
    ],
)
async def test_refusal_arrives_at_a_client_that_ends_its_connection(
    tmp_path: Path, version: bytes, target: str, expected: tuple[int, bytes]
) -> None:
    """To close while the body still comes would reset the connection, and take the answer back."""
    sent = request(target, b"x" * 20_000_000, "connection: close").replace(b"HTTP/1.1", b"HTTP/" + version, 1)
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], settings=full) as gateway,
    ):
        client = await connected(gateway)
        client.writer.write(sent)
        await client.writer.drain()
        status, body = await client.answer()
        rest = await asyncio.wait_for(client.reader.read(), 5)
        client.writer.close()

    assert (expected[0], True, b"") == (status, expected[1] in body, rest)


async def test_connections_are_kept_on_both_sides(tmp_path: Path) -> None:
    """Request after request goes over one connection of the client and one to the engine."""
    quiet = with_timeouts(replace(QUICK, probe_period_seconds=60.0, info_period_seconds=60.0))
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], settings=quiet) as gateway,
    ):
        client = await connected(gateway)
        statuses, connections = [], []
        for _ in range(5):
            client.writer.write(request(CHAT, BODY))
            statuses.append((await client.answer())[0])
            connections.append(engine.server.connections)
        client.writer.close()

    assert ([200] * 5, {connections[0]}) == (statuses, set(connections))


async def test_body_that_would_be_too_large_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    """The client learns it from the answer alone."""

    def settings(given: Settings) -> Settings:
        return replace(given, limits=replace(given.limits, body_bytes_max=10))

    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], settings=settings) as gateway,
    ):
        client = await connected(gateway)
        head = request(CHAT, BODY, "expect: 100-continue").partition(b"\r\n\r\n")[0]
        client.writer.write(head + b"\r\n\r\n")
        status, body = await client.answer()
        client.writer.close()

    assert (413, "request_too_large") == (status, json.loads(body)["error"]["code"])


HEADS = [
    pytest.param([b"GET /v1/files HTTP/1.1\r\nhost: h\r\nx-a: " + b"a" * 70_000 + b"\r\n\r\n"], id="whole"),
    pytest.param([b"GET /v1/files HTTP/1.1\r\nhost: h\r\nx-a: ", *([b"a" * 30_000] * 5)], id="no-end"),
    pytest.param([b"GET /v1/files HTTP/1.1\r\nhost: h\r\n", *([b"x-a: b\r\n" * 2000] * 8)], id="many"),
    pytest.param([b"GET /v1/" + b"a" * 30_000, *([b"a" * 30_000] * 4)], id="target"),
]


@pytest.mark.parametrize("pieces", HEADS)
async def test_head_that_is_too_large_ends_the_connection(tmp_path: Path, pieces: list[bytes]) -> None:
    """Told in OpenAI's shape while it still comes, and kept no further."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        client = await connected(gateway)
        for piece in pieces:
            client.writer.write(piece)
            await asyncio.sleep(0.01)
        status, body = await client.answer()
        rest = await asyncio.wait_for(client.reader.read(), 5)
        client.writer.close()

    assert (431, "headers_too_large", b"") == (status, json.loads(body)["error"]["code"], rest)
    assert {"/v1/models"} >= {seen.target for seen in engine.server.seen if seen.target.startswith("/v1/")}


CODINGS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}


@pytest.mark.parametrize("coding", list(CODINGS))
async def test_compressed_body_is_read_as_what_it_stands_for(tmp_path: Path, coding: str) -> None:
    """The policy counts, reserved fields are taken out, and the engine gets plain JSON."""
    body = BODY.replace(b'"m"', b'"qwen"')
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        answer = await gateway.client.post(
            CHAT, content=CODINGS[coding](body), headers={"content-encoding": coding}
        )
        seen = engine.chats[-1]

    assert (200, "agents/support") == (answer.status_code, answer.headers["x-sternpost-policy"])
    assert (None, str(len(seen.body))) == (seen.header("content-encoding"), seen.header("content-length"))
    assert "ahoy" == json.loads(seen.body)["messages"][0]["content"] and b'"x"' not in seen.body


@pytest.mark.parametrize(
    ("coding", "body", "expected"),
    [
        pytest.param("gzip", gzip.compress(b"x" * 100_000), (413, "request_too_large"), id="stands-for-more"),
        pytest.param("gzip", gzip.compress(BODY)[:-9], (400, "bad_request"), id="cut"),
        pytest.param("gzip", BODY, (400, "bad_request"), id="not-compressed"),
        pytest.param("br", b"x", (415, "unknown_coding"), id="brotli"),
        pytest.param("gzip, gzip", gzip.compress(gzip.compress(BODY)), (415, "unknown_coding"), id="twice"),
    ],
)
async def test_compressed_body_that_cannot_be_read_is_refused(
    tmp_path: Path, coding: str, body: bytes, expected: tuple[int, str]
) -> None:
    """A few bytes that stand for very many are decoded no further than the limit."""

    def settings(given: Settings) -> Settings:
        return replace(given, limits=replace(given.limits, body_bytes_max=50_000))

    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], settings=settings) as gateway,
    ):
        answer = await gateway.client.post(CHAT, content=body, headers={"content-encoding": coding})

    assert expected == (answer.status_code, answer.json()["error"]["code"])
    assert [] == engine.chats


async def test_policies_that_change_leave_streams_alone(tmp_path: Path) -> None:
    """A stream that began under one policy ends as it began, while the next request gets the new one."""
    engine = FakeEngine(words=tuple("x" * 30), delay_seconds=0.1)
    chat = {"model": "qwen", "messages": [{"role": "user", "content": "hi"}]}
    async with (
        running_engine(engine),
        running_gateway(tmp_path, [engine.url]) as gateway,
        gateway.client.stream("POST", CHAT, json={**chat, "stream": True}) as stream,
    ):
        reading = stream.aiter_raw()
        received = await anext(reading)
        (gateway.policies / "support.yaml").write_text(SUPPORT_POLICY.replace("name: support", "name: other"))
        policy = ""
        async with asyncio.timeout(2.5):
            while policy != "agents/other":
                policy = (await gateway.client.post(CHAT, json=chat)).headers["x-sternpost-policy"]
        async for piece in reading:
            received += piece

    assert "agents/support" == stream.headers["x-sternpost-policy"]
    assert received.endswith(b"data: [DONE]\n\n") and 30 == received.count(b'"content": "x ')
