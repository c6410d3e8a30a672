"""When something goes wrong: engines that fail, clients that leave, requests that are refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from sternpost_fakes.engine import EVENT_STREAM, FakeEngine, running_engine
from sternpost_fakes.fake_http import Reply
from sternpost_fakes.gateway import (
    QUICK,
    WAIT_SECONDS_MAX,
    RunningGateway,
    eventually,
    running_gateway,
    with_timeouts,
)
from sternpost_gateway.settings import Settings

CHAT = {"model": "other", "messages": [{"role": "user", "content": "hi"}]}
GONE_SECONDS_MAX = 1.0
"""Within which an engine must learn that nobody waits any more."""


def code_of(response: httpx.Response) -> str:
    """Return the code of an error in OpenAI's shape, whose other members are checked."""
    error = response.json()["error"]
    assert {"message", "type", "param", "code"} == set(error)
    return str(error["code"])


def with_limits(**limits: int) -> Callable[[Settings], Settings]:
    """Return a change of settings that changes limits."""
    return lambda settings: replace(settings, limits=replace(settings.limits, **limits))


async def connect(
    gateway: RunningGateway, body: Any, path: str = "/v1/chat/completions"
) -> asyncio.StreamWriter:
    """Send a request over a connection of one's own, and leave its answer unread."""
    host, port = gateway.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    content = json.dumps(body).encode()
    writer.write(
        f"POST {path} HTTP/1.1\r\nhost: h\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content
    )
    await writer.drain()
    return writer


async def leave(writer: asyncio.StreamWriter) -> None:
    """Close a connection at once."""
    writer.transport.abort()
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        pytest.param(b"", "body", id="empty"),
        pytest.param(b"[1]", "body", id="no-object"),
        pytest.param(b'{"model":"x"', "model", id="cut"),
        pytest.param(b'{"model":"x","model":"y"}', "model", id="duplicate-key"),
        pytest.param(b'{"messages":[{"content":"\\ud800"}]}', "messages[0].content", id="lone-surrogate"),
        pytest.param(b'{"messages":[{"content":"\xed\xa0\x80"}]}', "messages[0].content", id="raw-surrogate"),
        pytest.param(b'{"temperature":NaN}', None, id="nan"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_malformed_body_is_refused_with_its_path(
    tmp_path: Path, body: bytes, param: str | None, path: str
) -> None:
    """A body that two readers could read as two things reaches no engine."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        response = await gateway.client.post(path, content=body)

        assert (400, "invalid_json") == (response.status_code, code_of(response))
        assert param is None or response.json()["error"]["param"].startswith(param)
        assert [] == engine.posts(path)


async def test_paired_surrogates_pass(tmp_path: Path) -> None:
    """A pair of escapes is one character and stays a pair of escapes."""
    body = b'{"model":"other","messages":[{"role":"user","content":"\\ud83d\\ude00"}]}'
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        await gateway.client.post("/v1/chat/completions", content=body)

        assert body == engine.chats[-1].body


@pytest.mark.parametrize("declared", [True, False])
async def test_body_over_the_limit_is_refused_while_reading(tmp_path: Path, declared: bool) -> None:
    """Nothing beyond the limit is kept, whether the length was declared or not."""

    async def pieces() -> Any:
        for _ in range(20):
            yield b"x" * 100

    content = b"x" * 2000 if declared else pieces()
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], settings=with_limits(body_bytes_max=1000)) as gateway,
    ):
        response = await gateway.client.post("/v1/chat/completions", content=content)

        assert (413, "request_too_large", "close") == (
            response.status_code,
            code_of(response),
            response.headers["connection"],
        )
        assert "1000 bytes" in response.json()["error"]["message"]


async def test_two_framings_are_refused(tmp_path: Path) -> None:
    """A request whose end two readers would see at two places ends its connection."""
    request = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\ncontent-length: 5\r\n"
        b"transfer-encoding: chunked\r\n\r\n"
        b"0\r\n\r\nGET /v1/smuggled HTTP/1.1\r\nhost: h\r\n\r\n"
    )
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        host, port = gateway.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request)
        answer = await asyncio.wait_for(reader.read(), timeout=2)
        writer.close()

        assert answer.startswith(b"HTTP/1.1 400")
        assert [] == engine.chats + engine.posts("/v1/smuggled")


async def test_slow_body_is_refused(tmp_path: Path) -> None:
    """A sender that stops is cut off after the grace."""
    async with (
        running_engine() as engine,
        running_gateway(
            tmp_path, [engine.url], settings=with_timeouts(replace(QUICK, body_grace_seconds=0.1))
        ) as gateway,
    ):
        host, port = gateway.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\ncontent-length: 50\r\n\r\n{")
        answer = await asyncio.wait_for(reader.read(), timeout=2)
        writer.close()

        assert answer.startswith(b"HTTP/1.1 408")


async def test_overload_is_refused_at_once(tmp_path: Path) -> None:
    """Beyond the limit a request is told when to come back, and the next one after an end is served."""
    engine = FakeEngine(first_delay_seconds=0.3)
    async with (
        running_engine(engine),
        running_gateway(tmp_path, [engine.url], settings=with_limits(in_flight_max=1)) as gateway,
    ):
        slow = asyncio.ensure_future(gateway.client.post("/v1/chat/completions", json=CHAT))
        await eventually(lambda: bool(engine.chats))
        refused = await gateway.client.post("/v1/chat/completions", json=CHAT)
        await slow
        served = await gateway.client.post("/v1/chat/completions", json=CHAT)

        assert (429, "gateway_overloaded", "1") == (
            refused.status_code,
            code_of(refused),
            refused.headers["x-gateway-shed"],
        )
        assert int(refused.headers["retry-after"]) in range(1, 6)
        assert (200, 1) == (served.status_code, gateway.metric("sternpost_gateway_sheds_total"))


async def test_no_engine_is_said(tmp_path: Path) -> None:
    """Without a ready engine the answer is a 503 of our own, and the gateway is not ready."""
    async with running_gateway(tmp_path, ["http://127.0.0.1:9"], wait_ready=False) as gateway:
        response = await gateway.client.post("/v1/chat/completions", json=CHAT)
        ready = await gateway.client.get("/readyz")
        alive = await gateway.client.get("/healthz")

        assert (503, "no_engine") == (response.status_code, code_of(response))
        assert (503, 200) == (ready.status_code, alive.status_code)


async def test_request_is_sent_once_more_to_another_engine(tmp_path: Path) -> None:
    """An engine that has just gone costs no request as long as there is another."""
    async with (
        running_engine() as one,
        running_engine() as two,
        running_gateway(
            tmp_path, [one.url, two.url], settings=with_timeouts(replace(QUICK, probe_period_seconds=60.0))
        ) as gateway,
    ):
        await one.server.stop()
        responses = [
            await gateway.client.post(
                "/v1/chat/completions", json=CHAT, headers={"x-session-id": str(number)}
            )
            for number in range(20)
        ]
        await one.server.start()

        assert {200} == {response.status_code for response in responses}
        assert 20 == len(two.chats)
        assert gateway.metric("sternpost_gateway_retries_total") >= 1


async def test_second_attempt_meets_no_old_connection(tmp_path: Path) -> None:
    """After an engine has started anew all kept connections to it are dead, and no request fails for it."""
    engine = FakeEngine(first_delay_seconds=0.2)
    async with running_engine(engine), running_gateway(tmp_path, [engine.url]) as gateway:
        engine.server.answers_max = 1
        kept = await asyncio.gather(
            *(gateway.client.post("/v1/chat/completions", json=CHAT) for _ in range(4))
        )
        late = await gateway.client.post("/v1/chat/completions", json=CHAT)

        assert [200] * 5 == [response.status_code for response in (*kept, late)]


async def test_dropped_request_is_sent_once_more(tmp_path: Path) -> None:
    """A connection that ends without a byte of an answer is tried again once, and only once."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        engine.faults.drop_times = 1
        served = await gateway.client.post("/v1/chat/completions", json=CHAT)
        engine.faults.drop = True
        before = len(engine.chats)
        failed = await gateway.client.post("/v1/chat/completions", json=CHAT)

        assert (200, 502) == (served.status_code, failed.status_code)
        assert ("upstream_disconnected", 2) == (code_of(failed), len(engine.chats) - before)


async def test_retries_stay_within_their_budget(tmp_path: Path) -> None:
    """With the budget at nothing a failure is final."""
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], settings=with_limits(retry_min=0)) as gateway,
    ):
        engine.faults.drop_times = 1
        response = await gateway.client.post("/v1/chat/completions", json=CHAT)

        assert (502, 1) == (response.status_code, len(engine.chats))


async def test_answer_that_does_not_begin_is_given_up(tmp_path: Path) -> None:
    """An engine that accepts and never answers costs its limit and is not tried again."""
    async with (
        running_engine() as engine,
        running_gateway(
            tmp_path, [engine.url], settings=with_timeouts(replace(QUICK, first_byte_seconds=0.2))
        ) as gateway,
    ):
        engine.faults.hang = True
        response = await gateway.client.post("/v1/chat/completions", json=CHAT)

        assert (504, "upstream_timeout", 1) == (response.status_code, code_of(response), len(engine.chats))
        await eventually(lambda: engine.server.aborts == 1, GONE_SECONDS_MAX)


async def test_stream_that_is_accepted_and_does_not_begin_is_given_up(tmp_path: Path) -> None:
    """The first piece is due when an answer is, although pieces after it may take longer."""
    timeouts = replace(QUICK, first_byte_seconds=0.2, idle_seconds=WAIT_SECONDS_MAX * 2)
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], settings=with_timeouts(timeouts)) as gateway,
    ):
        engine.faults.reply = Reply(
            headers=EVENT_STREAM,
            framing="close",
            pieces=(b"", b"data: [DONE]\n\n"),
            delay_seconds=timeouts.idle_seconds,
        )
        response = await gateway.client.post("/v1/chat/completions", json={**CHAT, "stream": True})

        assert (504, "upstream_timeout", 1) == (response.status_code, code_of(response), len(engine.chats))
        await eventually(lambda: engine.server.aborts == 1, GONE_SECONDS_MAX)


async def test_unhealthy_engine_gets_nothing_new(tmp_path: Path) -> None:
    """An engine whose health check fails is passed over, and comes back."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        engine.faults.unhealthy = True
        await eventually(lambda: gateway.metric("sternpost_gateway_engines_ready") == 0)
        refused = await gateway.client.post("/v1/chat/completions", json=CHAT)
        engine.faults.unhealthy = False
        await eventually(lambda: gateway.metric("sternpost_gateway_engines_ready") == 1)
        served = await gateway.client.post("/v1/chat/completions", json=CHAT)

        assert (503, 200) == (refused.status_code, served.status_code)


async def test_cut_stream_ends_with_an_error_and_no_end(tmp_path: Path) -> None:
    """A stream that the engine cuts says so in band and never looks complete; nothing is sent twice."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        engine.faults.cut = True
        received = b""
        with pytest.raises(httpx.RemoteProtocolError):
            async with gateway.client.stream(
                "POST", "/v1/chat/completions", json={**CHAT, "stream": True}
            ) as stream:
                async for piece in stream.aiter_raw():
                    received += piece

        events = received.strip().split(b"\n\n")
        assert "upstream_cut" == json.loads(events[-1].strip().removeprefix(b"data: "))["error"]["code"]
        assert (b"[DONE]" in received, len(engine.chats), received.count(b"ship")) == (False, 1, 1)
        assert 1 == gateway.metric("sternpost_gateway_requests_total", policy="", outcome="upstream_cut")


async def test_stream_cut_within_an_event_keeps_the_error_readable(tmp_path: Path) -> None:
    """Half an event does not swallow the error behind it."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        engine.faults.reply = Reply(
            headers=EVENT_STREAM, pieces=(b'data: {"half',), framing="chunked", cut=True
        )
        received = b""
        with pytest.raises(httpx.RemoteProtocolError):
            async with gateway.client.stream(
                "POST", "/v1/chat/completions", json={**CHAT, "stream": True}
            ) as stream:
                async for piece in stream.aiter_raw():
                    received += piece

        assert b'data: {"half\n\ndata: {"error"' in received


async def test_cut_answer_is_cut(tmp_path: Path) -> None:
    """A complete answer that the engine cuts is not made to look complete."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        engine.faults.cut = True
        with pytest.raises(httpx.RemoteProtocolError):
            await gateway.client.post("/v1/chat/completions", json=CHAT)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
async def test_client_that_leaves_before_the_first_byte_ends_the_request(
    tmp_path: Path, stream: bool, path: str
) -> None:
    """The engine learns at once that nobody waits, and all counts return to where they were."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        engine.faults.hang = True
        writer = await connect(gateway, {**CHAT, "stream": stream}, path)
        await eventually(lambda: bool(engine.posts(path)))
        await leave(writer)

        await eventually(lambda: engine.server.aborts == 1, GONE_SECONDS_MAX)
        await eventually(lambda: gateway.metric("sternpost_gateway_in_flight") == 0)
        assert 1 == gateway.metric("sternpost_gateway_requests_total", policy="", outcome="client_gone")
        assert 1 == gateway.metric("sternpost_gateway_engines_ready")


async def test_client_that_leaves_within_a_stream_ends_the_request(tmp_path: Path) -> None:
    """After the first token the same holds."""
    engine = FakeEngine(words=tuple("x" * 200), delay_seconds=0.05)
    async with running_engine(engine), running_gateway(tmp_path, [engine.url]) as gateway:
        async with gateway.client.stream(
            "POST", "/v1/chat/completions", json={**CHAT, "stream": True}
        ) as stream:
            async for _ in stream.aiter_raw():
                break

        await eventually(lambda: engine.server.aborts == 1, GONE_SECONDS_MAX)
        await eventually(lambda: gateway.metric("sternpost_gateway_in_flight") == 0)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        pytest.param("POST", "/v1/chat/completions", id="chat"),
        pytest.param("POST", "/v1/embeddings", id="unread-body"),
        pytest.param("GET", "/v1/files/f-1/content", id="download"),
    ],
)
async def test_client_that_leaves_within_a_whole_answer_ends_the_request(
    tmp_path: Path, method: str, path: str
) -> None:
    """An answer that is no stream of events is no different."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        engine.faults.reply = Reply(pieces=(b'{"a":', b"1}"), delay_seconds=60)
        content = json.dumps(CHAT).encode() if method == "POST" else b""
        async with gateway.client.stream(method, path, content=content) as answer:
            assert b'{"a":' == await anext(answer.aiter_raw())

        await eventually(lambda: engine.server.aborts == 1, GONE_SECONDS_MAX)
        await eventually(lambda: gateway.metric("sternpost_gateway_in_flight") == 0)
        assert 1 == gateway.metric("sternpost_gateway_requests_total", outcome="client_gone")


async def test_client_that_leaves_within_its_upload_harms_no_engine(tmp_path: Path) -> None:
    """Uploads that break off are not held against the engine."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        host, port = gateway.url.removeprefix("http://").split(":")
        for _ in range(4):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"POST /v1/files HTTP/1.1\r\nhost: h\r\ncontent-length: 5000\r\n\r\nabc")
            await writer.drain()
            await eventually(lambda: gateway.metric("sternpost_gateway_in_flight") == 1)
            await leave(writer)
            await eventually(lambda: gateway.metric("sternpost_gateway_in_flight") == 0)

        assert 200 == (await gateway.client.get("/v1/models")).status_code
        assert 4 == gateway.metric("sternpost_gateway_requests_total", policy="", outcome="client_gone")


async def test_upload_that_stalls_is_refused_and_harms_no_engine(tmp_path: Path) -> None:
    """A sender that stops is told so; the engine that waited for it stays ready."""
    async with (
        running_engine() as engine,
        running_gateway(
            tmp_path, [engine.url], settings=with_timeouts(replace(QUICK, idle_seconds=0.2))
        ) as gateway,
    ):
        host, port = gateway.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/files HTTP/1.1\r\nhost: h\r\ncontent-length: 5000\r\n\r\nabc")
        answer = await asyncio.wait_for(reader.read(), timeout=3)
        writer.close()

        assert answer.startswith(b"HTTP/1.1 408")
        assert 0 == gateway.metric("sternpost_gateway_retries_total")
        assert 1 == gateway.metric("sternpost_gateway_engines_ready")


async def test_client_that_does_not_read_pauses_the_engine_and_is_given_up(tmp_path: Path) -> None:
    """Memory for a stalled reader is bounded, and after a while its slot is free again."""
    piece = b"data: " + b"x" * 65536 + b"\n\n"
    async with (
        running_engine() as engine,
        running_gateway(
            tmp_path, [engine.url], settings=with_timeouts(replace(QUICK, write_stall_seconds=0.3))
        ) as gateway,
    ):
        engine.faults.reply = Reply(headers=EVENT_STREAM, pieces=(piece,) * 1000, framing="chunked")
        writer = await connect(gateway, {**CHAT, "stream": True})
        transport: Any = writer.transport
        transport.pause_reading()
        await eventually(lambda: bool(engine.chats))

        await eventually(lambda: engine.server.aborts == 1)
        await eventually(lambda: gateway.metric("sternpost_gateway_in_flight") == 0)
        await leave(writer)
