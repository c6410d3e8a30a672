"""Streams that an engine has accepted, and computes nothing of yet."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from sternpost_fakes.virtual_time import run_virtual
from sternpost_gateway.begun import begun, is_stream
from sternpost_gateway.errors import Disconnected, FirstByteTimeout, UpstreamCut, UpstreamStalled

STREAM = ((b"Content-Type", b"text/event-stream; charset=utf-8"),)
JSON = ((b"content-type", b"application/json"),)


@dataclass(slots=True)
class Scripted:
    """An answer whose pieces come, or fail, as a test says; an empty script never answers."""

    script: list[bytes | Exception]
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = STREAM
    closed: int = field(default=0)

    async def read(self) -> bytes:
        """Do what comes next in the script."""
        if not self.script:
            await asyncio.get_running_loop().create_future()
        found = self.script.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def close(self) -> None:
        """Count."""
        self.closed += 1


@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [
        pytest.param(200, STREAM, True, id="stream"),
        pytest.param(200, JSON, False, id="whole-answer"),
        pytest.param(400, STREAM, False, id="refusal"),
        pytest.param(200, (), False, id="of-no-kind"),
    ],
)
def test_only_an_accepted_stream_is_waited_for(
    status: int, headers: tuple[tuple[bytes, bytes], ...], expected: bool
) -> None:
    """Every other answer is there when its headers are."""
    assert expected is is_stream(Scripted([], status, headers))


async def test_pieces_come_in_their_order() -> None:
    """The piece that was waited for first, and the end as an end."""
    answer = await begun(Scripted([b"a", b"b", b""]))

    assert [b"a", b"b", b""] == [await answer.read() for _ in range(3)]
    assert (200, STREAM) == (answer.status, answer.headers)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(UpstreamCut("cut"), Disconnected, id="engine-died"),
        pytest.param(UpstreamStalled("stalled"), FirstByteTimeout, id="engine-hangs"),
    ],
)
async def test_stream_that_ends_before_its_first_piece_has_not_begun(
    found: Exception, expected: type[Exception]
) -> None:
    """The first may be asked of another engine; the second may still be at work."""
    response = Scripted([found])
    with pytest.raises(expected):
        await begun(response)

    assert 1 == response.closed


async def test_what_ends_a_stream_that_has_begun_is_a_cut() -> None:
    """Nobody may be asked again."""
    answer = await begun(Scripted([b"a", UpstreamCut("cut")]))
    await answer.read()

    with pytest.raises(UpstreamCut):
        await answer.read()


def test_client_that_leaves_meanwhile_ends_the_exchange() -> None:
    """The engine is told that nobody waits."""
    response = Scripted([])

    async def main() -> None:
        waiting = asyncio.ensure_future(begun(response))
        await asyncio.sleep(1.0)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting

    run_virtual(lambda clock: main())

    assert 1 == response.closed
