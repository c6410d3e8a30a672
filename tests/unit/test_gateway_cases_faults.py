"""Faults of engines and clients seen in the field, sent through a whole gateway, byte by byte."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from sternpost_fakes.cases import CASES, CHAT
from sternpost_fakes.engine import EVENT_STREAM, FakeEngine, running_engine
from sternpost_fakes.fake_http import Reply
from sternpost_fakes.gateway import ADMIN_TOKEN, RunningGateway, eventually, running_gateway
from sternpost_fakes.traces import RecordedTracing
from sternpost_gateway.settings import Credentials, Settings

GONE_SECONDS_MAX = 1.0
"""Within which an engine must learn that nobody waits any more."""

ROUTES = [CHAT, "/v1/completions", "/v1/responses"]


def fault_case(number: str) -> dict[str, Any]:
    """Return a case."""
    loaded: dict[str, Any] = json.loads((CASES / "faults" / f"{number}.json").read_text())
    return loaded


def body_of(case: dict[str, Any], request: str) -> bytes:
    """Return the body of a case's request, as it is to be sent."""
    found = next(item for item in case["requests"] if item["id"] == request)
    return json.dumps(found["body"], separators=(",", ":")).encode()


def stream_of(pieces: Sequence[str | bytes]) -> Reply:
    """Return a stream of these pieces."""
    raw = tuple(piece.encode() if isinstance(piece, str) else piece for piece in pieces)
    return Reply(headers=EVENT_STREAM, pieces=raw, framing="chunked")


async def answer(gateway: RunningGateway, body: bytes, **headers: str) -> httpx.Response:
    """Send a chat and return its whole answer."""
    return await gateway.client.post(
        CHAT, content=body, headers={"content-type": "application/json", **headers}
    )


@pytest.mark.parametrize("request_id", ["r1", "r2", "r3"])
async def test_021_usage_chunk_is_for_who_asked(tmp_path: Path, request_id: str) -> None:
    """Who asked for usage gets the stream as it is; who did not sees all of it but that chunk."""
    case = fault_case("021")
    body = body_of(case, request_id)
    upstream = case["upstream"]

    class Asked(FakeEngine):
        async def _complete(self, path: str, body: Any) -> Reply:
            asked = (body.get("stream_options") or {}).get("include_usage")
            return stream_of(upstream["when_include_usage" if asked else "otherwise"])

    async with running_engine(Asked()) as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        got = await answer(gateway, body)

    expected = upstream["when_include_usage" if request_id == "r1" else "otherwise"]
    assert "".join(expected).encode() == got.content


@pytest.mark.parametrize("variant", list(fault_case("023")["upstream"]["variants"]))
async def test_023_events_keep_their_framing(tmp_path: Path, variant: str) -> None:
    """However an engine writes its events, the client gets the same bytes."""
    case = fault_case("023")
    stream = case["upstream"]["variants"][variant].encode()
    pieces = [stream[i : i + 1] for i in range(len(stream))] if variant == "one_byte_per_write" else [stream]
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        engine.faults.reply = stream_of(pieces)
        got = await answer(gateway, body_of(case, "r1"))

    assert stream == got.content


@pytest.mark.parametrize("path", ROUTES)
async def test_024_reset_within_a_stream_reaches_the_engine(tmp_path: Path, path: str) -> None:
    """The connection to the engine is closed within a second, and used for nothing else."""
    engine = FakeEngine()
    events = [b'data: {"choices":[]}\n\n'] * 500
    async with running_engine(engine), running_gateway(tmp_path, [engine.url]) as gateway:
        engine.faults.reply = replace(stream_of(events), delay_seconds=0.02)
        async with gateway.client.stream(
            "POST", path, json={"model": "demo-model", "stream": True}
        ) as stream:
            reading = stream.aiter_raw()
            for _ in range(3):
                await anext(reading)
        await eventually(lambda: engine.server.aborts == 1, GONE_SECONDS_MAX)
        await eventually(lambda: gateway.metric("sternpost_gateway_in_flight") == 0)
        connections = engine.server.connections
        engine.faults.reply = None
        await gateway.client.get("/v1/files")

    assert connections < engine.server.connections


async def test_035_parallel_tool_calls_arrive_whole(tmp_path: Path) -> None:
    """Deltas of two calls, one in the other's midst: same bytes, and the official client joins them."""
    case = fault_case("035")
    writes = case["upstream"]["writes"]
    request = next(item["body"] for item in case["requests"])
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        engine.faults.reply = stream_of(writes)
        got = await answer(gateway, body_of(case, "r1"))
        async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none") as client:
            fields = {key: value for key, value in request.items() if key != "stream"}
            async with client.chat.completions.stream(**fields) as stream:
                message = (await stream.get_final_completion()).choices[0].message

    assert "".join(writes).encode() == got.content
    assert [{"q": "17"}, {"url": "u"}] == [
        json.loads(call.function.arguments) for call in message.tool_calls or ()
    ]


def pinging(given: Settings) -> Settings:
    """Return settings with a comment every tenth of a second."""
    return replace(given, timeouts=replace(given.timeouts, ping_seconds=0.1))


STREAMED = b'{"model":"demo-model","messages":[{"role":"user","content":"long prefill"}],"stream":true}'


async def test_036_silence_stays_silence_unless_pings_are_asked_for(tmp_path: Path) -> None:
    """Without pings the first byte is the engine's."""
    engine = FakeEngine(first_delay_seconds=0.45)
    async with running_engine(engine):
        async with running_gateway(tmp_path, [engine.url]) as plain:
            silent = (await answer(plain, STREAMED)).content
        async with running_gateway(tmp_path, [engine.url], settings=pinging) as gateway:
            pinged = (await answer(gateway, STREAMED)).content

    assert silent.startswith(b"data: ")
    assert 3 <= pinged.count(b": ping\n\n") <= 5
    assert silent == pinged.replace(b": ping\n\n", b"")


async def test_036_refusal_after_pings_is_told_within_the_stream(tmp_path: Path) -> None:
    """One error event, and no end; without pings it is a plain 503."""
    engine = FakeEngine()
    refusal = Reply(status=503, pieces=(b'{"error": {"message":\n "later"}}',), first_delay_seconds=0.3)
    async with running_engine(engine):
        engine.faults.reply = refusal
        async with running_gateway(tmp_path, [engine.url]) as plain:
            refused = await answer(plain, STREAMED)
        async with running_gateway(tmp_path, [engine.url], settings=pinging) as gateway:
            got = bytearray()
            with pytest.raises(httpx.RemoteProtocolError):
                await read_to_the_end(gateway, got)

    assert 503 == refused.status_code
    assert 1 == got.count(b'data: {"error": {"message":  "later"}}') and b": ping" in got
    assert b"[DONE]" not in got


@pytest.mark.parametrize(
    ("status", "said", "expected"),
    [
        pytest.param(503, b"<html>\nlater</html>", "<html>\nlater</html>", id="html"),
        pytest.param(503, b"", "the engine answered with status 503", id="nothing"),
        pytest.param(422, b'{"detail":"missing"}', '{"detail":"missing"}', id="another-object"),
        pytest.param(400, b'{"error":\n{"message":"no"}}', "no", id="an-error"),
        pytest.param(200, b'{"id":"c1","choices":[]}', '{"id":"c1","choices":[]}', id="no-stream"),
        pytest.param(500, b"[" * 60_000, "[" * 60_000, id="deep"),
    ],
)
async def test_036_refusal_after_pings_is_an_error_to_clients(
    tmp_path: Path, status: int, said: bytes, expected: str
) -> None:
    """Whatever an engine says in the place of a stream, OpenAI's client reads it as an error."""
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], settings=pinging) as gateway,
        openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client,
    ):
        engine.faults.reply = Reply(status=status, pieces=(said,), first_delay_seconds=0.3)
        with pytest.raises(openai.APIError) as raised:
            async for _ in await client.chat.completions.create(model="m", messages=[], stream=True):
                raise AssertionError("there is no event")

    assert expected == raised.value.message


async def test_036_engine_that_never_answers_is_told_within_the_stream(tmp_path: Path) -> None:
    """The gateway's own error comes as an event, too."""
    engine = FakeEngine()
    async with running_engine(engine), running_gateway(tmp_path, [engine.url], settings=pinging) as gateway:
        engine.faults.hang = True
        got = bytearray()
        with pytest.raises(httpx.RemoteProtocolError):
            await read_to_the_end(gateway, got)

    assert b'"code": "upstream_timeout"' in got and b"[DONE]" not in got


@pytest.mark.parametrize("request_id", ["r1", "r2"])
async def test_038_refusal_before_the_first_event_is_no_stream(tmp_path: Path, request_id: str) -> None:
    """Status, headers and body of the engine, never a 200 with nothing in it."""
    case = fault_case("038")
    said = case["upstream"][request_id]
    body = json.dumps(said["body"]).encode()
    headers = (("content-type", "application/json"), ("x-engine", "one"), ("connection", "close"))
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        engine.faults.reply = Reply(status=said["status"], headers=headers, pieces=(body,))
        got = await answer(gateway, body_of(case, request_id))

    assert (said["status"], body) == (got.status_code, got.content)
    assert ("application/json", "one") == (got.headers["content-type"], got.headers["x-engine"])
    assert 1 == len(engine.chats)


async def test_039_nothing_is_sent_again_after_output(tmp_path: Path) -> None:
    """One attempt, five events, an error, and no end."""
    events = [f'data: {{"choices":[{{"delta":{{"content":"{n}"}}}}]}}\n\n' for n in range(5)]
    async with (
        running_engine() as one,
        running_engine() as two,
        running_gateway(tmp_path, [one.url, two.url]) as gateway,
    ):
        for engine in (one, two):
            engine.faults.reply = replace(stream_of(events), cut=True)
        with pytest.raises(httpx.RemoteProtocolError):
            await read_to_the_end(gateway, got := bytearray())

    assert 1 == len(one.chats) + len(two.chats)
    assert 5 == bytes(got).count(b'"delta"') and b'"code": "upstream_cut"' in got
    assert b"[DONE]" not in got


async def read_to_the_end(gateway: RunningGateway, got: bytearray) -> None:
    """Read a stream into `got`, to its end or to where it breaks off."""
    body = {"model": "demo-model", "messages": [{"role": "user", "content": "a"}], "stream": True}
    async with gateway.client.stream("POST", CHAT, json=body) as stream:
        async for piece in stream.aiter_raw():
            got += piece


@pytest.mark.parametrize("request_id", ["r1", "r2"])
async def test_040_overload_of_an_engine_is_told_as_it_is(tmp_path: Path, request_id: str) -> None:
    """A `Retry-After` of the engine stays, none is invented, and the next request is served as ever."""
    case = fault_case("040")
    said = case["upstream"][request_id]
    body = json.dumps(said.get("body", {})).encode()
    headers = (("content-type", "application/json"), *said.get("headers", {}).items())
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        engine.faults.reply = Reply(status=said["status"], headers=headers, pieces=(body,))
        got = await answer(gateway, body_of(case, request_id))
        engine.faults.reply = None
        again = await answer(gateway, body_of(case, request_id))

    assert (said["status"], body) == (got.status_code, got.content)
    assert said.get("headers", {}).get("retry-after") == got.headers.get("retry-after")
    assert "x-gateway-shed" not in got.headers
    assert 200 == again.status_code


async def test_041_large_image_arrives_whole_and_cheap(tmp_path: Path) -> None:
    """12 MiB of base64 reach the engine as they are, and cost less than three times their size."""
    text = "A" * (12 * 1024 * 1024)
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{text}"}}
    content = [image, {"type": "text", "text": "what is it"}]
    body = json.dumps({"model": "demo-model", "messages": [{"role": "user", "content": content}]}).encode()
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        engine.faults.reply = Reply(pieces=(b"{}",))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        got = await answer(gateway, body)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024

    assert 200 == got.status_code
    assert body == engine.chats[0].body
    # Client, gateway and engine of this test are one process: each holds the body at least once.
    assert grown < 6 * len(body)


async def test_041_bodies_over_the_common_budget_are_refused_and_none_is_lost(tmp_path: Path) -> None:
    """Twenty large requests at once: some are told to come again, the others are answered."""
    body = json.dumps(
        {"model": "demo-model", "messages": [{"role": "user", "content": "A" * 500_000}]}
    ).encode()

    def settings(given: Settings) -> Settings:
        return replace(given, limits=replace(given.limits, bodies_bytes_max=4 * len(body)))

    engine = FakeEngine(first_delay_seconds=0.3)
    async with running_engine(engine), running_gateway(tmp_path, [engine.url], settings=settings) as gateway:
        answers = await asyncio.gather(*(answer(gateway, body) for _ in range(20)))
        after = await answer(gateway, body)

    statuses = [got.status_code for got in answers]
    assert {200, 429} == set(statuses) and 4 <= statuses.count(200)
    assert all(1 <= int(got.headers["retry-after"]) <= 5 for got in answers if got.status_code == 429)
    assert 200 == after.status_code


SECRETS = {
    "authorization": "Bearer client-secret-1",
    "x-api-key": "client-secret-2",
    "cookie": "sid=client-secret-3",
    "proxy-authorization": "Basic client-secret-4",
}


@pytest.mark.parametrize(
    ("mode", "key", "expected"),
    [
        pytest.param(Credentials.REPLACE, "engine-key", "Bearer engine-key", id="replace"),
        pytest.param(Credentials.FORWARD, None, "Bearer client-secret-1", id="forward"),
        pytest.param(Credentials.NONE, None, None, id="none"),
    ],
)
async def test_043_credentials_reach_whom_they_are_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: Credentials, key: str | None, expected: str | None
) -> None:
    """And no log, trace, metric or report, whatever happens to the request."""
    caplog.set_level(logging.DEBUG)
    tracing = RecordedTracing()

    def settings(given: Settings) -> Settings:
        return replace(given, credentials=mode, engine_key=key, admin_token=ADMIN_TOKEN)

    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], settings=settings, tracing=tracing) as gateway,
    ):
        body = b'{"model":"demo-model","messages":[{"role":"user","content":"hi"}]}'
        await answer(gateway, body, **SECRETS)
        engine.faults.drop = True
        failed = await answer(gateway, body, **SECRETS)
        administrator = {"authorization": f"Bearer {ADMIN_TOKEN}"}
        pages = [
            (await gateway.client.get(path, headers=administrator)).text
            for path in ("/metrics", "/readyz?verbose", "/sternpost/v1/templates", "/sternpost/v1/kill")
        ]
        await eventually(lambda: 2 == len(tracing.spans))

    told = [caplog.text, failed.text, *pages, *(span.to_json() for span in tracing.spans)]
    seen = engine.chats[0]
    assert expected == seen.header("authorization")
    assert [None] * 3 == [seen.header(name) for name in ("x-api-key", "cookie", "proxy-authorization")]
    assert [] == [text for text in told if "client-secret" in text or "engine-key" in text]


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        pytest.param(b"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\n", b"HTTP/1.1 408", id="headers"),
        pytest.param(b"", b"", id="nothing"),
        pytest.param(
            b"GET /healthz HTTP/1.1\r\nhost: h\r\n\r\nGET /he", b"HTTP/1.1 200", id="second-request"
        ),
    ],
)
async def test_044_slow_headers_end_the_connection(tmp_path: Path, sent: bytes, expected: bytes) -> None:
    """A client that never finishes its headers holds a connection for ten seconds at most."""

    def settings(given: Settings) -> Settings:
        return replace(given, timeouts=replace(given.timeouts, headers_seconds=0.5))

    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], settings=settings) as gateway,
    ):
        host, port = gateway.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        got = b""
        async with asyncio.timeout(5):
            while piece := await reader.read(4096):
                got += piece
        writer.close()

        assert got.startswith(expected)
        assert 200 == (await gateway.client.get("/healthz")).status_code


async def test_what_is_no_http_is_told_in_openais_shape(tmp_path: Path) -> None:
    """An error of the parser looks like every other error."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        host, port = gateway.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"ahoy\r\n\r\n")
        head, _, body = (await asyncio.wait_for(reader.read(), 5)).partition(b"\r\n\r\n")
        writer.close()

    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n") and b"connection: close" in head
    assert "bad_request" == json.loads(body)["error"]["code"]
