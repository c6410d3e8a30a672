"""Meters read usage on a copy and withhold nothing but the usage chunk that the gateway asked for."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_gateway.meter import BodyMeter, Meter, StreamFilter, StreamMeter, Unmetered

BYTES_MAX = 4096

WORDS = [b'data: {"choices": [{"delta": {"content": "' + word + b'"}}]}\n\n' for word in (b"a", b"b")]
USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 3}}\n\n'
DONE = b"data: [DONE]\n\n"
STREAM = b"".join([*WORDS, USAGE, DONE])


def run(meter: Meter, chunks: list[bytes]) -> bytes:
    """Return what a client gets of the chunks."""
    return b"".join(meter.feed(chunk) for chunk in chunks) + meter.end()


@st.composite
def cuts(draw: st.DrawFn, stream: bytes = STREAM) -> list[bytes]:
    """Return the stream cut into chunks anywhere."""
    places = sorted(draw(st.sets(st.integers(1, len(stream) - 1), max_size=12)))
    return [stream[start:end] for start, end in zip([0, *places], [*places, len(stream)], strict=True)]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@given(st.data())
def test_filter_drops_exactly_the_usage_chunk(end: bytes, data: st.DataObject) -> None:
    """Wherever the stream is cut, all bytes but the usage chunk's come through, in order."""
    meter, stream, usage = StreamFilter(BYTES_MAX), STREAM.replace(b"\n", end), USAGE.replace(b"\n", end)

    assert stream.replace(usage, b"") == run(meter, data.draw(cuts(stream)))
    assert {"prompt_tokens": 3} == meter.usage


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_filter_drops_exactly_the_usage_chunk_of_a_stream_in_two_pieces(end: bytes) -> None:
    """The LF of a CRLF belongs to the event that its CR has ended."""
    stream, usage = STREAM.replace(b"\n", end), USAGE.replace(b"\n", end)
    got = {run(StreamFilter(BYTES_MAX), [stream[:cut], stream[cut:]]) for cut in range(len(stream))}

    assert {stream.replace(usage, b"")} == got


@given(cuts())
def test_stream_meter_passes_every_chunk_at_once(chunks: list[bytes]) -> None:
    """A usage chunk that the client asked for passes like everything else."""
    meter = StreamMeter(BYTES_MAX)

    assert chunks == [meter.feed(chunk) for chunk in chunks]
    assert (b"", {"prompt_tokens": 3}) == (meter.end(), meter.usage)


def test_filter_holds_no_complete_event_back() -> None:
    """An event goes out with its last byte, not with the next event."""
    meter = StreamFilter(BYTES_MAX)

    assert [WORDS[0], b"", WORDS[1]] == [
        meter.feed(WORDS[0]),
        meter.feed(WORDS[1][:5]),
        meter.feed(WORDS[1][5:]),
    ]


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        pytest.param(b"data: [DONE]", b"data: [DONE]", id="last-event-without-end"),
        pytest.param(USAGE.strip(), b"", id="usage-without-end"),
    ],
)
def test_filter_gives_out_what_is_left(rest: bytes, expected: bytes) -> None:
    """A last event without an empty line comes through, unless it is the usage chunk."""
    assert WORDS[0] + expected == run(StreamFilter(BYTES_MAX), [WORDS[0], rest])


def test_stream_meter_reads_usage_without_an_end() -> None:
    """A usage chunk at the very end of a stream counts without its empty line."""
    meter = StreamMeter(BYTES_MAX)
    run(meter, [USAGE.strip()])

    assert {"prompt_tokens": 3} == meter.usage


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(json.dumps({"usage": {"prompt_tokens": 3}}).encode(), {"prompt_tokens": 3}, id="usage"),
        pytest.param(b'{"usage": null}', None, id="null"),
        pytest.param(b'{"usage": 3}', None, id="no-object"),
        pytest.param(b"[]", None, id="array"),
        pytest.param(b"<html>", None, id="no-json"),
        pytest.param(b"", None, id="empty"),
        pytest.param(
            b'{"usage": {"prompt_tokens": 3}, "x": "' + b"y" * BYTES_MAX + b'"}', None, id="too-long"
        ),
    ],
)
def test_body_meter_relays_all_and_reads_usage(body: bytes, expected: object) -> None:
    """A complete answer passes unchanged; its usage is read while it is within the limit."""
    meter = BodyMeter(BYTES_MAX)

    assert body == run(meter, [body[:10], body[10:]])
    assert expected == meter.usage


def test_unmetered_relays_all() -> None:
    """Without metering there is nothing but the bytes."""
    meter = Unmetered()

    assert (STREAM, None) == (run(meter, [STREAM]), meter.usage)
