"""Faults seen in the field that are about framing, codings and connections, sent through a whole gateway."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.errors import BodyError
from sternpost_core.jsonspan import scan
from sternpost_fakes.cases import CHAT, MOVE_CLOCK, case, case_policy, raw_request, run
from sternpost_fakes.engine import EVENT_STREAM, FakeEngine, running_engine
from sternpost_fakes.fake_http import Reply
from sternpost_fakes.gateway import running_gateway
from sternpost_fakes.gateway_scene import Scene, policy
from sternpost_gateway.canonicalize import RESERVED_FIELDS
from sternpost_gateway.settings import Settings

PINNED = yaml.safe_dump(case_policy(MOVE_CLOCK, canonicalize="Pin"))

HOP_HEADERS = {"connection", "keep-alive", "te", "trailer", "upgrade", "transfer-encoding", "x-drop"}

ANSWER = b'{"choices":[],"usage":{"prompt_tokens":1}}'
STREAM = b'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\ndata: [DONE]\n\n'


async def exchange(url: str, request: bytes) -> bytes:
    """Send bytes, and return the answer up to where the connection ends or falls silent."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    answer = b""
    try:
        while piece := await asyncio.wait_for(reader.read(65536), timeout=0.5):
            answer += piece
    except TimeoutError:
        answer += b"<open>"
    writer.close()
    return answer


async def test_026_length_is_that_of_the_rewritten_body(tmp_path: Path) -> None:
    """The engine gets the bytes that the length announces, and no header of the client's connection."""
    first = raw_request("026", 0)
    other_order = first.replace(b'"messages"', b'"metadata":{},"messages"', 1)
    assert b"Content-Length: 770" in first
    grown = other_order.replace(b"Content-Length: 770", b"Content-Length: 784")
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url], policy=PINNED) as gateway:
        for request in (first, grown):
            assert (await exchange(gateway.url, request)).startswith(b"HTTP/1.1 200")
        clock = first.partition(b"\r\n\r\n")[2].replace(b"You are", b"Now: 2026-11-29 09:00:01\\nYou are", 1)
        assert 200 == (await gateway.client.post(CHAT, content=clock)).status_code

        for seen in engine.chats:
            names = [name.lower() for name, _ in seen.headers]
            assert str(len(seen.body)) == seen.header("content-length")
            assert 1 == names.count("content-length")
            assert set() == HOP_HEADERS & set(names)
        assert b"<system-context>" in engine.chats[-1].body


async def test_026_refusal_of_a_stream_is_no_stream(tmp_path: Path) -> None:
    """The engine's own refusal arrives as it is: its status, its JSON, a true length, and no event."""
    refusal = b'{"error":{"message":"bad reasoning_effort","type":"BadRequestError","code":400}}'
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url], policy=PINNED) as gateway:
        engine.faults.reply = Reply(status=400, pieces=(refusal,))
        response = await gateway.client.post(CHAT, content=case("026")[1].body)

        assert (400, refusal, "application/json", str(len(refusal))) == (
            response.status_code,
            response.content,
            response.headers["content-type"],
            response.headers["content-length"],
        )


FRAMINGS = [
    pytest.param(raw_request("026", 2), id="length-and-chunks"),
    pytest.param(raw_request("026", 2).replace(b"chunked", b"chunked, identity"), id="two-codings"),
    pytest.param(
        raw_request("026", 2).replace(b"Transfer-Encoding: chunked", b"Content-Length: 6"), id="lengths"
    ),
    pytest.param(raw_request("026", 2).replace(b"Content-Length: 5", b"Content-Length: +5"), id="signed"),
]


@pytest.mark.parametrize("request_bytes", FRAMINGS)
async def test_026_body_with_two_ends_is_refused(tmp_path: Path, request_bytes: bytes) -> None:
    """What two readers would end at two places ends the connection, and no engine sees it."""
    smuggled = request_bytes + b"GET /v1/smuggled HTTP/1.1\r\nhost: gw\r\n\r\n"
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        answer = await exchange(gateway.url, smuggled)

        assert answer.startswith(b"HTTP/1.1 400") and not answer.endswith(b"<open>")
        assert [] == engine.chats + engine.posts("/v1/smuggled")


def encoded(coding: str, *, stream: bool) -> Reply:
    """Return an answer with a coding that nobody asked for."""
    body = gzip.compress(STREAM if stream else ANSWER)
    kind = EVENT_STREAM if stream else (("content-type", "application/json"),)
    middle = len(body) // 2
    return Reply(headers=(*kind, ("content-encoding", coding)), pieces=(body[:middle], body[middle:]))


@pytest.mark.parametrize("index", [0, 1, 2], ids=["gzip", "identity", "gzip-stream"])
async def test_027_coding_of_the_answer_is_told_truly(tmp_path: Path, index: int) -> None:
    """An engine that compresses unasked is decoded for whoever has ruled that out, not for others."""
    request = case("027")[index]
    is_stream = request.decoded.get("stream", False)
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        engine.faults.reply = encoded("gzip", stream=is_stream)
        response = await gateway.client.post(CHAT, content=request.body, headers=dict(request.headers))

        expected = None if request.headers["accept-encoding"] == "identity" else "gzip"
        assert (expected, STREAM if is_stream else ANSWER) == (
            response.headers.get("content-encoding"),
            response.content,
        )
        length = response.headers.get("content-length")
        assert expected is not None or length in (None, str(len(ANSWER)))


@pytest.mark.parametrize(
    ("accepted", "coding", "expected"),
    [
        pytest.param("identity;q=1, *;q=0", "gzip", None, id="all-others-ruled-out"),
        pytest.param("gzip;q=0", "x-gzip", None, id="ruled-out-by-weight"),
        pytest.param("br", "gzip", None, id="another"),
        pytest.param("*", "gzip", "gzip", id="any"),
        pytest.param("gzip;q=0.5, identity", "x-gzip", "x-gzip", id="alias"),
        pytest.param("identity", "br", "br", id="cannot-be-undone"),
    ],
)
async def test_codings_are_undone_where_ruled_out(
    tmp_path: Path, accepted: str, coding: str, expected: str | None
) -> None:
    """The client's weights decide; what cannot be undone passes under its own name."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        engine.faults.reply = encoded(coding, stream=False)
        headers = {"accept-encoding": accepted}
        async with gateway.client.stream("POST", CHAT, content=case("027")[0].body, headers=headers) as got:
            body = b"".join([piece async for piece in got.aiter_raw()])

        assert expected == got.headers.get("content-encoding")
        assert ANSWER == (body if expected is None else gzip.decompress(body))


async def test_027_compressed_answer_that_is_cut_is_cut(tmp_path: Path) -> None:
    """What ends before the compressed data do is never made to look complete."""
    request = case("027")[1]
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        whole = encoded("gzip", stream=False)
        engine.faults.reply = replace(whole, pieces=whole.pieces[:1], framing="chunked")

        with pytest.raises(httpx.RemoteProtocolError):
            await gateway.client.post(CHAT, content=request.body, headers=dict(request.headers))


PAIRS = 24
LANES = 4
IDLE_SECONDS = 0.1


def keep_idle_for(seconds: float) -> Any:
    """Return a change of the settings: how long a connection to an engine is kept without a request."""

    def change(settings: Settings) -> Settings:
        return replace(settings, timeouts=replace(settings.timeouts, pool_keepalive_seconds=seconds))

    return change


@pytest.mark.parametrize(
    ("kept", "lanes", "pairs"),
    [
        pytest.param(0.08, LANES, PAIRS, id="shorter-than-the-engine"),
        # One after the other: a second attempt that meets a second old connection fails, as it must.
        pytest.param(4.0, 1, PAIRS // LANES, id="longer-than-the-engine"),
    ],
)
async def test_028_pairs_around_the_idle_timeout_all_succeed(
    tmp_path: Path, kept: float, lanes: int, pairs: int
) -> None:
    """Requests that meet an engine that is just closing the connection are sent once more, unseen."""
    first, second = case("028")
    engine = FakeEngine()
    engine.server.idle_seconds = IDLE_SECONDS
    async with (
        running_engine(engine),
        running_gateway(tmp_path, [engine.url], settings=keep_idle_for(kept)) as gateway,
    ):

        async def lane(lane_number: int) -> list[int]:
            statuses: list[int] = []
            for number in range(pairs // lanes):
                statuses.append((await gateway.client.post(CHAT, content=first.body)).status_code)
                offset = (lane_number + number * lanes) / pairs * 0.004 - 0.002
                await asyncio.sleep(IDLE_SECONDS + offset)
                statuses.append((await gateway.client.post(CHAT, content=second.body)).status_code)
            return statuses

        statuses = await asyncio.gather(*map(lane, range(lanes)))

        assert [[200] * (2 * pairs // lanes)] * lanes == statuses
        assert 2 * pairs == len({id(seen) for seen in engine.chats})


@pytest.mark.parametrize("begun", [b"H", b"HTTP/1.1 200 OK\r\ncontent-le", b"not HTTP at all\r\n\r\n"])
async def test_028_answer_that_has_begun_is_not_asked_for_again(tmp_path: Path, begun: bytes) -> None:
    """After one byte of an answer the request may have been carried out: it fails, and is sent once only."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        engine.faults.reply = Reply(begun=begun)
        response = await gateway.client.post(CHAT, content=case("028")[0].body)

        assert (502, "upstream_cut") == (response.status_code, response.json()["error"]["code"])
        assert 1 == len(engine.chats)
        assert 0 == gateway.metric("sternpost_gateway_retries_total")


async def test_030_vendor_parameters_arrive(tmp_path: Path) -> None:
    """Every field arrives with its own bytes, but for the salt, which is never the client's."""
    outcome = await run(tmp_path, case("030"), case_policy(canonicalize="Pin"))
    (sent,), (seen,) = outcome.sent, outcome.seen

    assert sent.body.replace(b',"cache_salt":"mine"', b"") == seen


FIELDS = st.dictionaries(
    st.text(max_size=12).filter(lambda name: name not in {"model", "messages", "tools", "stream"}),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=6,
    ),
    max_size=6,
)


@given(fields=FIELDS)
def test_unknown_fields_survive_in_place(fields: Mapping[str, Any]) -> None:
    """Whatever else a body holds keeps its order and its bytes when reserved fields go."""
    body = {"model": "m", **fields, "cache_salt": "mine", "messages": []}
    expected = {key: value for key, value in body.items() if key not in RESERVED_FIELDS}
    composed = Scene(body=body, policy=policy(match={"models": ["m"]}, suffixCache=None)).compose()

    assert json.dumps(expected) == (composed.body or b"").decode()


@pytest.mark.parametrize("index", [0, 1, 3], ids=["lone-high", "lone-low", "raw-bytes"])
async def test_034_lone_surrogates_are_refused(tmp_path: Path, index: int) -> None:
    """The client is told where, once and for all; no engine sees it."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url], policy=PINNED) as gateway:
        response = await gateway.client.post(CHAT, content=case("034")[index].body)

        assert (400, "messages[0].content", "invalid_json") == (
            response.status_code,
            response.json()["error"]["param"],
            response.json()["error"]["code"],
        )
        assert "retry-after" not in response.headers and [] == engine.chats


async def test_034_paired_surrogates_pass_as_they_are(tmp_path: Path) -> None:
    """An escape that means a character stays an escape."""
    request = case("034")[2]
    outcome = await run(tmp_path, [request], case_policy(MOVE_CLOCK, canonicalize="Pin"))

    assert [request.body] == outcome.seen


@given(before=st.text(max_size=8), low=st.integers(0xDC00, 0xDFFF), high=st.integers(0xD800, 0xDBFF))
def test_surrogates_are_refused_wherever_they_stand_alone(before: str, low: int, high: int) -> None:
    """A half of a pair is refused by its path in whatever text it stands; a whole pair is not."""
    text = json.dumps(before)[1:-1]
    for written, is_whole in (
        (rf"\u{high:04x}\u{low:04x}", True),
        (rf"\u{low:04x}", False),
        (rf"\u{high:04X}", False),
    ):
        body = f'{{"messages":[{{"content":"{text}{written}"}}]}}'.encode()
        if is_whole:
            assert body == scan(body).body
            continue
        with pytest.raises(BodyError) as caught:
            scan(body)
        assert ["messages[0].content"] == [fault.path for fault in caught.value.faults]
