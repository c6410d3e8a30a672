"""Cutting a byte stream into events loses and changes nothing, however the bytes arrive."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_gateway.sse import EventSplitter, data_of, error_event, usage_of

EVENT_BYTES_MAX = 1024

USAGE_CHUNK = b'data: {"choices": [], "usage": {"prompt_tokens": 3}}\n\n'


def split(chunks: list[bytes], bytes_max: int = EVENT_BYTES_MAX) -> tuple[list[bytes], bytes]:
    """Feed chunks and return the events and what is left."""
    splitter = EventSplitter(bytes_max)
    events = [event for chunk in chunks for event in splitter.feed(chunk)]
    return events, splitter.rest


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        pytest.param([b"data: 1\n\ndata: 2\n\n"], ([b"data: 1\n\n", b"data: 2\n\n"], b""), id="two-at-once"),
        pytest.param([b"data: 1\n", b"\ndata"], ([b"data: 1\n\n"], b"data"), id="end-over-two-chunks"),
        pytest.param(
            [b"data: 1\r\n\r\ndata: 2"], ([b"data: 1\r\n\r\n"], b"data: 2"), id="carriage-returns-and-feeds"
        ),
        pytest.param([b"data: 1\r\rdata: 2"], ([b"data: 1\r\r"], b"data: 2"), id="carriage-returns-only"),
        pytest.param([b"data: 1\r\ndata: 2\r\n\r\n"], ([b"data: 1\r\ndata: 2\r\n\r\n"], b""), id="two-lines"),
        pytest.param([b": ping\n\ndata: 1\n\n"], ([b": ping\n\n", b"data: 1\n\n"], b""), id="comment"),
        pytest.param([b"data: 1"], ([], b"data: 1"), id="no-end"),
        pytest.param([], ([], b""), id="nothing"),
    ],
)
def test_events_end_with_an_empty_line(chunks: list[bytes], expected: tuple[list[bytes], bytes]) -> None:
    """Every kind of line end that the standard knows ends an event when it is doubled."""
    assert expected == split(chunks)


@given(st.lists(st.sampled_from([b"\r", b"\n", b"a", b"data: x", b"\r\n", b":"]), max_size=30))
def test_no_byte_is_lost_or_changed(chunks: list[bytes]) -> None:
    """Events and rest together are what was fed."""
    events, rest = split(chunks)

    assert b"".join(chunks) == b"".join(events) + rest


@given(st.binary(max_size=200))
def test_single_bytes_give_the_same_data_as_all_at_once(stream: bytes) -> None:
    """However a stream is cut into chunks, its data lines come out alike."""
    one_by_one, _ = split([stream[index : index + 1] for index in range(len(stream))])
    at_once, _ = split([stream])

    assert [data_of(event) for event in at_once if data_of(event)] == [
        data_of(event) for event in one_by_one if data_of(event)
    ]


def test_long_event_passes_in_pieces() -> None:
    """What is held back is bounded: beyond that an event passes as it comes."""
    events, rest = split([b"data: " + b"x" * 30, b"y" * 5], bytes_max=20)

    assert ([b"data: " + b"x" * 30], b"y" * 5) == (events, rest)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        pytest.param(b"data: 1\n\n", b"1", id="one"),
        pytest.param(b"data: 1\ndata:2\n\n", b"1\n2", id="two-lines"),
        pytest.param(b"event: x\nid: 4\n\n", b"", id="none"),
        pytest.param(b"data:  two spaces\r\n\r\n", b" two spaces", id="only-one-space-goes"),
    ],
)
def test_data_is_joined_from_lines(event: bytes, expected: bytes) -> None:
    """Data lines are joined by line feeds, each without one leading space."""
    assert expected == data_of(event)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        pytest.param(USAGE_CHUNK, {"prompt_tokens": 3}, id="usage"),
        pytest.param(USAGE_CHUNK.replace(b"[]", b"[ ]"), {"prompt_tokens": 3}, id="white-space"),
        pytest.param(b'data: {"choices": [], "prompt_filter_results": []}\n\n', None, id="no-usage"),
        pytest.param(b'data: {"choices": [], "usage": null}\n\n', None, id="null-usage"),
        pytest.param(
            b'data: {"choices": [{"x": 1}], "usage": {"a": 1}}\n\n', None, id="usage-beside-choices"
        ),
        pytest.param(b'data: {"choices": [{"choices":[]}], "usage": {"a": 1}}\n\n', None, id="inner-choices"),
        pytest.param(b'data: {"choices": [], "usage": {"a": 1}\n\n', None, id="malformed"),
        pytest.param(b'data: ["choices", {"choices": []}, "usage"]\n\n', None, id="no-object"),
        pytest.param(b"data: [DONE]\n\n", None, id="done"),
    ],
)
def test_only_the_usage_chunk_is_one(event: bytes, expected: dict[str, int] | None) -> None:
    """A usage chunk has empty choices and a usage; nothing else is taken for one."""
    assert expected == usage_of(event)


def test_error_event_stands_alone() -> None:
    """An error is its own event even behind half of another."""
    events, rest = split([b'data: {"cut', error_event(b'{"error":1}')])

    assert (b'{"error":1}', b"") == (data_of(events[-1]), rest)
