"""
Reading an answer's usage while it is relayed, on a copy.

A meter takes each piece of an answer and returns what the client gets of it. The only bytes that any meter
withholds are those of a usage chunk that the gateway itself asked for.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

from sternpost_gateway.sse import LF, EventSplitter, usage_of

Usage = dict[str, Any]


class Meter(Protocol):
    """What the relay needs of a meter."""

    usage: Usage | None

    def feed(self, chunk: bytes) -> bytes:
        """Take a piece of the answer and return the bytes to relay now."""

    def end(self) -> bytes:
        """Return the bytes still to relay at the end of the answer."""


class Unmetered:
    """Relays everything and reads nothing."""

    usage: Usage | None = None

    def feed(self, chunk: bytes) -> bytes:
        """Return the piece."""
        return chunk

    def end(self) -> bytes:
        """Return nothing: everything is relayed already."""
        return b""


class StreamMeter:
    """Relays a stream as it comes and reads the usage chunk that the client asked for."""

    def __init__(self, event_bytes_max: int) -> None:
        self.usage: Usage | None = None
        self._splitter = EventSplitter(event_bytes_max)

    def feed(self, chunk: bytes) -> bytes:
        """Return the piece, unchanged and at once."""
        for event in self._splitter.feed(chunk):
            self.usage = usage_of(event) or self.usage
        return chunk

    def end(self) -> bytes:
        """Return nothing; look at a last event without an empty line."""
        self.usage = usage_of(self._splitter.rest) or self.usage
        return b""


class StreamFilter:
    """
    Relays a stream event by event and drops the usage chunk, which the client did not ask for.

    An event waits for its own end and for nothing else.
    """

    def __init__(self, event_bytes_max: int) -> None:
        self.usage: Usage | None = None
        self._splitter = EventSplitter(event_bytes_max)
        self._is_dropping = False

    def feed(self, chunk: bytes) -> bytes:
        """Return the events that the piece completes, but for a usage chunk."""
        return b"".join(event for event in self._splitter.feed(chunk) if not self._is_dropped(event))

    def end(self) -> bytes:
        """Return what is left: a last event without an empty line, or the beginning of one that was cut."""
        rest = self._splitter.rest
        return b"" if self._is_usage(rest) else rest

    def _is_dropped(self, event: bytes) -> bool:
        if event != LF:
            self._is_dropping = self._is_usage(event)
        return self._is_dropping

    def _is_usage(self, event: bytes) -> bool:
        usage = usage_of(event)
        self.usage = usage or self.usage
        return usage is not None


class BodyMeter:
    """Relays a complete answer and reads its usage from a copy, up to a limit."""

    def __init__(self, bytes_max: int) -> None:
        self.usage: Usage | None = None
        self._bytes_max = bytes_max
        self._size = 0
        self._pieces: list[bytes] = []

    def feed(self, chunk: bytes) -> bytes:
        """Return the piece; keep it while the answer is within the limit."""
        self._size += len(chunk)
        if self._size > self._bytes_max:
            self._pieces.clear()
        else:
            self._pieces.append(chunk)
        return chunk

    def end(self) -> bytes:
        """Return nothing; parse the copy."""
        self.usage = _usage_of_body(b"".join(self._pieces))
        self._pieces.clear()
        return b""


def _usage_of_body(body: bytes) -> Usage | None:
    try:
        answer = json.loads(body) if body else None
    except ValueError:
        return None
    usage = answer.get("usage") if isinstance(answer, dict) else None
    return usage if isinstance(usage, dict) else None
