"""
The marker: where an application says by itself that the tail begins.

The tail reaches from the marker, which belongs to it, to the end of the message's content. The marker counts
at the beginning of the content or of a line only: there its tokens do not depend on the words before it, and
a user who quotes it within a sentence marks nothing. Of several the last counts, so that nobody who can write
into the middle can make the tail begin earlier.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from sternpost_core.jsonspan import Document, Span, members

MARKER: Final = "<!-- sternpost:tail -->"

NEEDLE: Final = b"!-- sternpost:tail --"
OPENED: Final = re.compile(rb"(?:<|\\u003[cC])\Z")
CLOSED: Final = re.compile(rb"(?:>|\\u003[eE])")
"""The marker's bytes in a JSON string; common encoders escape the angle brackets."""

OPENED_BYTES_MAX: Final = len(rb"\u003c")

NEW_LINES: Final = (rb"\n", rb"\u000a", rb"\u000A")
"""How a new line is written in a JSON string."""

MARKERS_MAX: Final = 16
"""Of one message that are looked at, from the last."""

MARKED_ROLES: Final = frozenset({b'"system"', b'"developer"', b'"user"'})
"""The roles of messages that may hold the marker, as raw JSON."""


@dataclass(frozen=True, slots=True)
class MarkedTail:
    """A tail within a message: `content` is the span of the string's value, `start` where the tail begins."""

    content: Span
    start: int

    @property
    def is_whole(self) -> bool:
        """Say whether the tail is all of the message's content."""
        return self.start == self.content.start + 1


def find_marked_tail(document: Document, message: Span) -> MarkedTail | None:
    """Return the tail that a message's marker begins, None if there is none."""
    if not document.body.startswith(b"{", message.start):
        return None
    found = members(document, message)
    role, content = found.get("role"), found.get("content")
    if role is None or content is None or document.body[slice(*role.value_span)] not in MARKED_ROLES:
        return None
    return find_marked_text(document, content.value_span)


def find_marked_text(document: Document, span: Span) -> MarkedTail | None:
    """Return the tail that a marker begins in the JSON string at `span`, None if there is no such string."""
    if not document.body.startswith(b'"', span.start):
        return None
    start = marker_start(document.body, span.start + 1, span.end - 1)
    return None if start is None else MarkedTail(span, start)


def marker_start(body: bytes, start: int, end: int) -> int | None:
    """Return where the last marker begins within the raw text of a JSON string, None if there is none."""
    at = end
    for _ in range(MARKERS_MAX):
        at = body.rfind(NEEDLE, start, at)
        if at < 0:
            return None
        opened = OPENED.search(body[max(start, at - OPENED_BYTES_MAX) : at])
        if opened and CLOSED.match(body, at + len(NEEDLE), end):
            begin = at - len(opened.group())
            if begin == start or ends_with_new_line(body, start, begin):
                return begin
    return None


def ends_with_new_line(body: bytes, start: int, end: int) -> bool:
    """Say whether the raw text from `start` to `end` ends with an escape that is not itself escaped."""
    escape = next((escape for escape in NEW_LINES if body.endswith(escape, start, end)), None)
    if escape is None:
        return False
    before = body[start : end - len(escape) + 1]
    backslashes = len(before) - len(before.rstrip(b"\\"))
    return backslashes % 2 == 1
