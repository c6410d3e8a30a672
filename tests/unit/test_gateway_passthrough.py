"""Bytes that nobody asked to change arrive as they were sent, in both directions."""

from __future__ import annotations

import asyncio
import gzip
import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sternpost_fakes.engine import EVENT_STREAM, FakeEngine, running_engine
from sternpost_fakes.fake_http import Reply
from sternpost_fakes.gateway import RunningGateway, eventually, running_gateway
from sternpost_gateway.http_protocol import HEADER_BYTES_MAX
from sternpost_gateway.settings import Credentials, Settings

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "x-request-id"}

ODD_BODIES = [
    pytest.param(b'{ "model" : "other",\n "messages":[] }', id="white-space"),
    pytest.param(b'{"temperature":1.0,"seed":2512292042121000001,"x":1E400,"model":"other"}', id="numbers"),
    pytest.param('{"model":"other","user":"é😀"}'.encode(), id="utf-8"),
    pytest.param(b'{"model":"other","user":"\\u00e9\\ud83d\\ude00\\/"}', id="escapes"),
    pytest.param(b'{"model":"other","unknown_vendor_field":{"z":1,"a":[{}]}}', id="unknown-fields"),
    pytest.param(b'{"model":"other","response_format":{"schema":{"zebra":1,"apple":2}}}', id="schema-order"),
    pytest.param(b'{"model":"other","messages":[{"role":"tool","content":" a  b\\n"}]}', id="history"),
]


async def raw(url: str, request: bytes) -> bytes:
    """Send bytes and return all bytes of the answer; the request must ask for the connection's end."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), timeout=5)
    writer.close()
    await writer.wait_closed()
    return answer


def post(body: bytes, path: str = "/v1/chat/completions", *headers: str) -> bytes:
    """Return a raw request that ends its connection."""
    lines = [
        f"POST {path} HTTP/1.1",
        "host: here",
        f"content-length: {len(body)}",
        "connection: close",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def parts(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers (names in lower case, without those of the hop) and body, chunks joined."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        body = unchunked(body)
    kept = {name: value for name, value in headers.items() if name not in HOP_BY_HOP}
    return int(first.split(" ")[1]), kept, body


def unchunked(body: bytes) -> bytes:
    """Join the chunks of a complete chunked body."""
    joined = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size, 16)
        joined += rest[:length]
        body = rest[length + 2 :]
        if length == 0:
            return joined
    raise AssertionError("the body has no end")


async def both(gateway: RunningGateway, engine: FakeEngine, request: bytes) -> tuple[Any, Any]:
    """Return the answer through the gateway and the engine's own."""
    through, direct = await raw(gateway.url, request), await raw(engine.url, request)
    return parts(through), parts(direct)


@pytest.mark.parametrize("body", ODD_BODIES)
async def test_unmatched_request_is_byte_identical(tmp_path: Path, body: bytes) -> None:
    """Without a policy the engine gets the client's body and the client the engine's answer."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        through, direct = await both(gateway, engine, post(body))

        assert direct == through
        assert [body, body] == [seen.body for seen in engine.chats]


async def test_unmatched_stream_is_byte_identical(tmp_path: Path) -> None:
    """A stream without a policy comes through byte for byte, with its own headers only."""
    body = b'{"model":"other","messages":[{"role":"user","content":"hi"}],"stream":true}'
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        through, direct = await both(gateway, engine, post(body))

        assert direct == through
        assert b"[DONE]" in through[2]


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(b'data: {"a":1}\r\n\r\ndata: [DONE]\r\n\r\n', id="crlf"),
        pytest.param(b': comment\n\ndata: {"a":1}\n\ndata: [DONE]\n\n', id="comment"),
        pytest.param(b'data: {"a":\ndata: 1}\n\ndata: [DONE]\n\n', id="two-data-lines"),
        pytest.param(b'data: {"a":1}\n\ndata: [DONE]', id="no-last-empty-line"),
        pytest.param(b'event: x\nid: 1\nretry: 5\ndata: {"choices":[],"usage":{"a":1}}\n\n', id="all-fields"),
    ],
)
@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_event_framing_is_kept(tmp_path: Path, stream: bytes, size: int) -> None:
    """However an engine frames and cuts its events, the client gets the same bytes."""
    pieces = tuple(stream[index : index + size] for index in range(0, len(stream), size))
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        engine.faults.reply = Reply(headers=EVENT_STREAM, pieces=pieces, framing="chunked")
        through = parts(await raw(gateway.url, post(b'{"model":"other","stream":true}')))

        assert stream == through[2]


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
async def test_every_method_and_path_passes(tmp_path: Path, method: str) -> None:
    """Below `/v1` the path, the query and the body reach the engine as they were sent."""
    target = "/v1/files/a%2Fb/content?x=1&y=%20z&y"
    content = b"\x00binary\xff" if method in ("POST", "PUT", "PATCH") else b""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        response = await gateway.client.request(method, gateway.url + target, content=content)
        seen = engine.posts(target)[-1]

        assert (200, "yes") == (response.status_code, response.headers["x-upstream"])
        assert (method, target, content) == (seen.method, seen.target, seen.body)


@pytest.mark.parametrize("method", ["GET", "DELETE", "OPTIONS", "QUERY"])
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunks"])
async def test_body_arrives_whatever_the_method(tmp_path: Path, method: str, chunked: bool) -> None:
    """What a body means to a method is the engine's to say."""
    framing = b"transfer-encoding: chunked" if chunked else b"content-length: 3"
    sent = b"3\r\nabc\r\n0\r\n\r\n" if chunked else b"abc"
    head = f"{method} /v1/files HTTP/1.1\r\nhost: h\r\nconnection: close\r\n".encode()
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        answer = await raw(gateway.url, head + framing + b"\r\n\r\n" + sent)
        seen = engine.posts("/v1/files")

    assert 200 == parts(answer)[0]
    assert [(method, b"abc")] == [(one.method, one.body) for one in seen]


FORM = (
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n\x00\xffRIFF\r\n'
    b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nother\r\n--b--\r\n'
)
JSON = "application/json"


@pytest.mark.parametrize(
    ("path", "kind", "body"),
    [
        pytest.param("/v1/embeddings", JSON, b'{ "model":"other","input":"a" }', id="embeddings"),
        pytest.param("/v1/rerank", JSON, b'{"query":"a","documents":["b"]}', id="rerank"),
        pytest.param("/v1/score", JSON, b'{"text_1":"a","text_2":"b"}', id="score"),
        pytest.param("/v1/audio/transcriptions", "multipart/form-data; boundary=b", FORM, id="audio"),
        pytest.param("/v1/files", "multipart/form-data; boundary=b", FORM, id="upload"),
        pytest.param("/v1/nobody/knows?this=1", "text/plain", b"\xff", id="unknown"),
        pytest.param("/v2/rerank", JSON, b'{"query":"a","documents":["b"]}', id="rerank-v2"),
        pytest.param("/rerank", JSON, b'{"query":"a","documents":["b"]}', id="rerank-beside"),
        pytest.param("/score", JSON, b'{"text_1":"a","text_2":"b"}', id="score-beside"),
        pytest.param("/pooling", JSON, b'{"input":"a"}', id="pooling"),
        pytest.param("/classify", JSON, b'{"input":"a"}', id="classify"),
        pytest.param("/tokenize", JSON, b'{"model":"other", "prompt":"a b"}', id="tokenize"),
        pytest.param("/detokenize", JSON, b'{"model":"other", "tokens":[1]}', id="detokenize"),
    ],
)
async def test_every_endpoint_is_the_engines(tmp_path: Path, path: str, kind: str, body: bytes) -> None:
    """What is not rewritten goes to the engine byte for byte, and its answer to the client."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url], policy="") as gateway:
        through, direct = await both(gateway, engine, post(body, path, f"content-type: {kind}"))
        seen = [(one.method, one.target, one.header("content-type"), one.body) for one in engine.posts(path)]

        assert direct == through and 200 == through[0]
        assert [("POST", path, kind, body)] * 2 == seen[-2:]


@pytest.mark.parametrize("path", ["/reset_prefix_cache", "/sleep", "/update_weights", "/shutdown", "/load"])
async def test_what_steers_an_engine_is_no_clients(tmp_path: Path, path: str) -> None:
    """An engine's own administration is not passed through."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url], policy="") as gateway:
        answer = await gateway.client.post(path)

        assert (404, "not_found") == (answer.status_code, answer.json()["error"]["code"])
        assert [] == engine.posts(path)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/v1/../metrics", id="in-plain"),
        pytest.param("/v1/%2e%2e/metrics", id="escaped"),
        pytest.param("/v1/files/a/..", id="at-the-end"),
        pytest.param("/v1/files/..%2Fmetrics", id="with-an-escaped-slash"),
    ],
)
async def test_path_that_steps_out_is_nobodys(tmp_path: Path, path: str) -> None:
    """A server in front of an engine might follow it to what steers the engine."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        answer = await raw(gateway.url, post(b"{}", path))

        assert (404, "not_found") == (parts(answer)[0], json.loads(parts(answer)[2])["error"]["code"])
        assert [] == [seen for seen in engine.server.seen if seen.method == "POST"]


CHUNKED = (
    b"POST %s HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\n"
    b"x-tenant-id: acme\r\ntransfer-encoding: chunked\r\n\r\n"
)


@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/other"], ids=["read", "streamed"])
async def test_trailers_are_no_headers(tmp_path: Path, path: bytes) -> None:
    """Who has checked the headers in front of the gateway has not seen them."""
    trailers = b"x-tenant-id: globex\r\nx-role: admin\r\nauthorization: Bearer other\r\n"
    request = CHUNKED % path + b"2\r\n{}\r\n0\r\n" + trailers + b"\r\n"
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        await raw(gateway.url, request.replace(b"host: here", b"host: here\r\nconnection: close"))
        (seen,) = engine.posts(path.decode())

        assert b"{}" == seen.body
        assert ["acme"] == [value for name, value in seen.headers if name.lower() == "x-tenant-id"]
        assert not {"x-role", "authorization"} & {name.lower() for name, _ in seen.headers}


@pytest.mark.parametrize(
    "begin",
    [
        pytest.param(b"2\r\n{}\r\n0\r\nx-trailer: ", id="trailer"),
        pytest.param(b"2;extension=", id="extension-of-a-chunk"),
    ],
)
async def test_what_is_between_the_chunks_has_an_end(tmp_path: Path, begin: bytes) -> None:
    """Nobody reads it, and its parser would keep all of it for as long as it comes."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        host, port = gateway.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(CHUNKED % b"/v1/chat/completions" + begin)
        with suppress(ConnectionError):
            for _ in range(64):
                writer.write(b"x" * HEADER_BYTES_MAX)
                await writer.drain()
                await asyncio.sleep(0.0)
            assert b"" == await asyncio.wait_for(reader.read(), timeout=5)
        writer.close()
        await eventually(lambda: gateway.metric("sternpost_gateway_in_flight") == 0)

        assert [] == engine.chats


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        pytest.param(b"\x16\x03" * HEADER_BYTES_MAX, 400, id="no-http"),
        pytest.param(b"GET /v1/models HTTP/1.1\r\nx-a: " + b"b" * 2 * HEADER_BYTES_MAX, 431, id="no-end"),
    ],
)
async def test_what_is_no_request_is_answered_once(tmp_path: Path, sent: bytes, status: int) -> None:
    """However much of it comes at once."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        answer = await raw(gateway.url, sent)

        assert (status, 1) == (parts(answer)[0], answer.count(b"HTTP/1.1 "))


async def test_body_that_stops_being_one_is_refused_and_its_request_ends(tmp_path: Path) -> None:
    """The client reads why, and the engine is told that nobody waits."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        answer = await raw(gateway.url, CHUNKED % b"/v1/other" + b"2\r\n{}\r\nno chunk\r\n")
        await eventually(lambda: gateway.metric("sternpost_gateway_in_flight") == 0)

        assert (400, 1) == (parts(answer)[0], answer.count(b"HTTP/1.1 "))
        assert [] == engine.posts("/v1/other")


async def test_upload_without_length_streams_through(tmp_path: Path) -> None:
    """A body of unknown length reaches the engine in chunks, unread and unbounded."""

    async def pieces() -> Any:
        for number in range(5):
            yield b"%d" % number * 100_000

    async with (
        running_engine() as engine,
        running_gateway(
            tmp_path,
            [engine.url],
            settings=lambda given: replace(given, limits=replace(given.limits, body_bytes_max=1000)),
        ) as gateway,
    ):
        response = await gateway.client.post("/v1/audio/transcriptions", content=pieces())
        seen = engine.posts("/v1/audio/transcriptions")[-1]

        assert (200, 500_000) == (response.status_code, len(seen.body))
        assert ("chunked", None) == (seen.header("transfer-encoding"), seen.header("content-length"))


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(Reply(status=429, headers=(("retry-after", "2"),), pieces=(b'{"e":1}',)), id="429"),
        pytest.param(Reply(status=503, pieces=(b'{"e":1}',)), id="503"),
        pytest.param(Reply(status=404, pieces=(b'{"e":1}',)), id="404"),
        pytest.param(Reply(status=400, pieces=(b'{"e":1}',), framing="chunked"), id="400-chunked"),
        pytest.param(Reply(status=200, pieces=(b"until the end",), framing="close"), id="until-close"),
        pytest.param(Reply(status=204, framing="none"), id="204"),
        pytest.param(Reply(status=302, headers=(("location", "/elsewhere"),), pieces=(b"",)), id="redirect"),
    ],
)
async def test_engine_answers_pass_as_they_are(tmp_path: Path, reply: Reply) -> None:
    """An engine's refusal is the engine's: status, headers and body."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        engine.faults.reply = reply
        through, direct = await both(gateway, engine, post(b'{"model":"qwen","stream":true,"messages":[]}'))
        for name in [name for name in through[1] if name.startswith("x-sternpost-")]:
            del through[1][name]

        assert direct == through


async def test_compressed_answer_passes_compressed(tmp_path: Path) -> None:
    """What was asked for compressed comes compressed; nothing is decoded on the way."""
    packed = gzip.compress(b'{"a":1}')
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        engine.faults.reply = Reply(headers=(("content-encoding", "gzip"),), pieces=(packed,))
        through = parts(
            await raw(
                gateway.url, post(b'{"model":"other"}', "/v1/chat/completions", "accept-encoding: gzip, br")
            )
        )

        assert (packed, "gzip") == (through[2], through[1]["content-encoding"])
        assert "gzip, br" == engine.chats[-1].header("accept-encoding")


async def test_compressed_body_that_nobody_reads_passes_compressed(tmp_path: Path) -> None:
    """It is the engine's to decode, and says so."""
    packed = gzip.compress(b'{"model":"other","input":"a"}')
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        await raw(gateway.url, post(packed, "/v1/embeddings", "content-encoding: gzip"))
        seen = engine.posts("/v1/embeddings")[-1]

        assert (packed, "gzip") == (seen.body, seen.header("content-encoding"))


async def test_no_header_is_added_to_requests(tmp_path: Path) -> None:
    """An engine gets the client's headers, the request id, and its own host."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        await raw(
            gateway.url, post(b'{"model":"other"}', "/v1/chat/completions", "X-App: a", "x-request-id: r-1")
        )
        names = {name.lower(): value for name, value in engine.chats[-1].headers}

        assert {"host", "content-length", "x-app", "x-request-id"} == set(names)
        assert ("a", "r-1", engine.url.removeprefix("http://")) == (
            names["x-app"],
            names["x-request-id"],
            names["host"],
        )


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        pytest.param({}, "Bearer client", id="forward"),
        pytest.param({"credentials": Credentials.NONE}, None, id="none"),
        pytest.param(
            {"credentials": Credentials.REPLACE, "engine_key": "engine"}, "Bearer engine", id="replace"
        ),
    ],
)
async def test_credentials_reach_the_engine_by_mode(
    tmp_path: Path, settings: dict[str, Any], expected: str | None
) -> None:
    """What an engine sees of secrets is the pool's mode, and never a cookie."""

    def change(given: Settings) -> Settings:
        return replace(given, **settings)

    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], settings=change) as gateway,
    ):
        headers = {"authorization": "Bearer client", "cookie": "c=1", "x-api-key": "k"}
        await gateway.client.post("/v1/chat/completions", json={"model": "other"}, headers=headers)
        seen = engine.chats[-1]

        assert (expected, None, None) == (
            seen.header("authorization"),
            seen.header("cookie"),
            seen.header("x-api-key"),
        )


async def test_pool_without_its_key_answers_itself(tmp_path: Path) -> None:
    """Where credentials are to be replaced and there are none, nothing is sent."""
    async with (
        running_engine() as engine,
        running_gateway(
            tmp_path, [engine.url], settings=lambda given: replace(given, credentials=Credentials.REPLACE)
        ) as gateway,
    ):
        response = await gateway.client.post("/v1/chat/completions", json={"model": "other"})

        assert (503, "pool_misconfigured", []) == (
            response.status_code,
            response.json()["error"]["code"],
            engine.chats,
        )


async def test_request_ids_are_echoed(tmp_path: Path) -> None:
    """A client's id comes back once; without one it is made."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        ours = await gateway.client.get("/v1/files", headers={"x-request-id": "r-1"})
        made = await gateway.client.get("/v1/files")

        assert ["r-1"] == ours.headers.get_list("x-request-id")
        assert made.headers["x-request-id"] == engine.posts("/v1/files")[-1].header("x-request-id")


async def test_unknown_path_is_not_found(tmp_path: Path) -> None:
    """What is neither an engine's nor ours is answered in OpenAI's shape, without asking an engine."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        response = await gateway.client.get("/v2/models")

        assert (404, "not_found") == (response.status_code, response.json()["error"]["code"])
        assert [] == engine.posts("/v2/models")


async def test_large_body_is_forwarded_whole(tmp_path: Path) -> None:
    """An image of many MiB arrives as it was sent."""
    image = "A" * (12 * 1024 * 1024)
    body = json.dumps({"model": "other", "messages": [{"role": "user", "content": image}]}).encode()
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        response = await gateway.client.post("/v1/chat/completions", content=body)

        assert (200, True) == (response.status_code, body == engine.chats[-1].body)


REFUSED = b'{"error": {"message": "no such key", "code": 401}}'


async def _answer_at_the_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer a request before its body has come, and read on without an interest, as servers do."""
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        while target := (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1]:
            status, body = (b"401 No", REFUSED) if target == b"/v1/files" else (b"200 OK", b"{}")
            head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            writer.write(head % (status, len(body)) + body)
            while target == b"/v1/files" and await reader.read(65536):
                pass
    writer.transport.abort()


@pytest.mark.parametrize("connection", ["keep-alive", "close"])
async def test_refusal_of_an_upload_arrives_before_its_end(tmp_path: Path, connection: str) -> None:
    """An engine that does not want a body says so at once; the next request is served as ever."""
    async with await asyncio.start_server(_answer_at_the_head, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with running_gateway(tmp_path, [url], policy="", wait_ready=False) as gateway:
            async with asyncio.timeout(5):
                while (await gateway.client.get("/readyz")).status_code != 200:
                    await asyncio.sleep(0.01)
            refused = await gateway.client.post(
                "/v1/files", content=b"x" * 8_000_000, headers={"connection": connection}
            )
            after = await gateway.client.get("/v1/models")

    assert (401, REFUSED) == (refused.status_code, refused.content)
    assert (200, b"{}") == (after.status_code, after.content)
    assert 0 == gateway.metric("sternpost_gateway_retries_total")
