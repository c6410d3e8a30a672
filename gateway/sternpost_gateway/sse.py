"""
Server-sent events: find where one ends, and what it says, without changing a byte of it.

An event ends with an empty line; a line ends with CRLF, LF or CR.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

EVENT_END: Final = re.compile(rb"(?>\r\n|\n|\r)(?:\r\n|\n|\r)")
"""The end of an event's last line and the empty line. A CRLF is never taken for two line ends."""

EMPTY_CHOICES: Final = re.compile(rb'"choices"\s*:\s*\[\s*\]')
"""What the chunk that carries a stream's usage has, and hardly any other."""

LINE_END: Final = re.compile(rb"\r\n|\n|\r")

LF: Final = b"\n"
DONE: Final = b"[DONE]"


class EventSplitter:
    """
    Cuts a byte stream into events, each with its terminator, as soon as they are complete.

    What has been fed comes out again, in order, byte for byte: `feed` yields the complete events, `rest` is
    what is left. An event longer than `bytes_max` is given out in pieces, and so is a last CRLF that comes in
    two: nobody can tell from a CR that an LF follows.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._ends_with_cr = False
        self.rest = b""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the events that `chunk` completes, and in front of them the `LF` that the last one lacked."""
        if self._ends_with_cr and chunk.startswith(LF):
            yield LF
            chunk = chunk[1:]
        buffered = self.rest + chunk
        start = 0
        for match in EVENT_END.finditer(buffered, max(0, len(self.rest) - 3)):
            yield buffered[start : match.end()]
            start = match.end()
        self.rest = buffered[start:]
        self._ends_with_cr = not self.rest and buffered.endswith(b"\r")
        if len(self.rest) > self._bytes_max:
            yield self.rest
            self.rest = b""


def data_of(event: bytes) -> bytes:
    """Return an event's data lines, joined as the standard says."""
    lines = (line for line in LINE_END.split(event) if line.startswith(b"data:"))
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)


def usage_of(event: bytes) -> dict[str, Any] | None:
    """Return the usage if this is the chunk that carries only it (`choices` is empty), else None."""
    if b'"usage"' not in event or not EMPTY_CHOICES.search(event):
        return None
    try:
        chunk = json.loads(data_of(event))
    except ValueError:
        return None
    if not isinstance(chunk, dict) or chunk.get("choices") != []:
        return None
    usage = chunk.get("usage")
    return usage if isinstance(usage, dict) else None


def error_event(error: bytes) -> bytes:
    """Return an in-band error; the empty line in front ends whatever event was cut."""
    return b"\n\ndata: " + error + b"\n\n"
