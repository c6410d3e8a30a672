"""Bodies that stream through: sent once more while they are there, at their own pace, and not too slowly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from sternpost_fakes.engine import running_engine
from sternpost_fakes.gateway import QUICK, RunningGateway, running_gateway, with_timeouts

SHORT: Final = b'{"model":"other","input":"%s"}' % (b"a" * 60_000)
LONG: Final = SHORT * 10


def in_pieces(body: bytes) -> AsyncIterator[bytes]:
    """Return a body of which nobody has said how long it is."""

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 20_000):
            yield body[start : start + 20_000]

    return pieces()


@pytest.mark.parametrize("make", [bytes, in_pieces], ids=["length", "chunks"])
@pytest.mark.parametrize(
    ("body", "down", "expected"),
    [
        pytest.param(SHORT, "refuses", 200, id="short-refused"),
        pytest.param(LONG, "refuses", 200, id="long-refused"),
        pytest.param(SHORT, "drops", 200, id="short-dropped"),
        pytest.param(LONG, "drops", 502, id="long-dropped"),
    ],
)
async def test_body_that_is_not_read_is_sent_once_more_while_it_is_there(
    tmp_path: Path, make: Callable[[bytes], Any], body: bytes, down: str, expected: int
) -> None:
    """Requests that stream through are tried again, too: before their body has gone on, or if it is short."""
    async with (
        running_engine() as one,
        running_engine() as two,
        running_gateway(
            tmp_path, [one.url, two.url], settings=with_timeouts(replace(QUICK, probe_period_seconds=60.0))
        ) as gateway,
    ):
        one.faults.drop = True
        if down == "refuses":
            await one.server.stop()
        statuses = [
            (await gateway.client.post("/v1/embeddings", content=make(body))).status_code for _ in range(10)
        ]
        retries = gateway.metric("sternpost_gateway_retries_total")
        if down == "refuses":
            await one.server.start()
        bodies = {seen.body for seen in two.posts("/v1/embeddings")}

    assert {200, expected} == set(statuses)
    assert (expected == 200) == (retries > 0)
    assert {body} == bodies


SLOW_UPLOADS: Final = replace(
    QUICK, first_byte_seconds=0.3, body_grace_seconds=0.6, probe_period_seconds=60.0, info_period_seconds=60.0
)
"""An answer is due in less time than a slow upload takes."""


async def dribbled(gateway: RunningGateway, piece: bytes, count: int) -> bytes:
    """Send a body in pieces, one every tenth of a second, and return the answer."""
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    length = b"content-length: %d\r\n\r\n" % (len(piece) * count)
    writer.write(b"POST /v1/files HTTP/1.1\r\nhost: h\r\nconnection: close\r\n" + length)
    answering = asyncio.ensure_future(reader.read())
    for _ in range(count):
        writer.write(piece)
        await asyncio.wait({answering}, timeout=0.1)
    answer = await asyncio.wait_for(answering, timeout=3)
    writer.close()
    return answer


async def test_time_of_an_upload_is_not_the_engines(tmp_path: Path) -> None:
    """However long a client sends, its engine has its own time to answer, and is not blamed."""
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], settings=with_timeouts(SLOW_UPLOADS)) as gateway,
    ):
        answers = await asyncio.gather(*(dribbled(gateway, b"x" * 2000, 10) for _ in range(6)))
        uploads = [len(seen.body) for seen in engine.posts("/v1/files")]
        engine.faults.hang = True
        late = await dribbled(gateway, b"x" * 2000, 10)

    assert [b"HTTP/1.1 200"] * 6 == [answer[:12] for answer in answers]
    assert [20_000] * 6 == uploads
    assert late.startswith(b"HTTP/1.1 504")


async def test_upload_that_dribbles_is_refused(tmp_path: Path) -> None:
    """The rate that holds for bodies that are read holds for those that stream through."""
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], settings=with_timeouts(SLOW_UPLOADS)) as gateway,
    ):
        answer = await dribbled(gateway, b"x", 40)
        ready = gateway.metric("sternpost_gateway_engines_ready")

    assert (b"HTTP/1.1 408", 1) == (answer[:12], ready)
    assert b"request_too_slow" in answer
