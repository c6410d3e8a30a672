"""
Taking volatile lines out of the prefix: to the head of the middle, or away.

A line is moved as its bytes are, escapes included, with the line break that belongs to it. Only a billing
header at the very start of the first text is ever taken away: no user can need it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from sternpost_core.jsonspan import Document, Edit, Span
from sternpost_core.jsonstring import byte_offsets
from sternpost_core.policy import VolatileAction
from sternpost_gateway.dialogue import MOVED_MARK, Dialogue
from sternpost_gateway.roles import USER_ROLE, role_of
from sternpost_gateway.volatile import Text, VolatileLine, user_text

CLOSING_MARK: Final = b"</system-context>"
"""What stands behind moved lines, as JSON writes it inside a string."""

PARAGRAPH: Final = b"\\n\\n"
"""What parts them from the words of a user."""

LINE_BREAK: Final = b"\\n"

FIRST_TEXT_PATHS: Final = frozenset(
    {"messages[0]", "messages[0].content[0]", "instructions", "input[0]", "input[0].content[0]"}
)
"""Where the first text of a prompt is; a text elsewhere has something in front of it."""


@dataclass(frozen=True, slots=True)
class Removals:
    """The lines that move and the lines that are taken away."""

    moved: frozenset[VolatileLine]
    stripped: frozenset[VolatileLine]


def choose(texts: Sequence[Text], lines: Sequence[VolatileLine], *, may_move: bool) -> Removals:
    """Say which lines leave the prefix."""
    moved = frozenset(line for line in lines if may_move and line.asks_for(VolatileAction.RELOCATE))
    is_first = bool(texts) and texts[0].path in FIRST_TEXT_PATHS
    return Removals(moved, frozenset(_stripped(lines, moved)) if is_first else frozenset())


@dataclass(frozen=True, slots=True)
class Head:
    """
    Where the middle begins: `at` is the byte at which moved lines are put.

    That is within the user's first words, or, as a message of their own in `array`, in front of the user's.
    """

    at: int
    array: Span | None = None

    def block(self, lines: Sequence[bytes]) -> bytes:
        """Return the lines as they stand there."""
        block = b"".join((MOVED_MARK, *lines, CLOSING_MARK))
        if self.array is not None:
            return b'{"role":"system","content":"' + block + b'"},'
        return block + PARAGRAPH


def head_of(document: Document, dialogue: Dialogue, *, takes_later_system: bool) -> Head | None:
    """
    Return where lines move to, None if there is no place for them.

    A system message of its own keeps their authority; where the engine's template does not take one, they go
    into the user's first message. With lines moved there already, nothing else can be put in front.
    """
    middle = dialogue.middle
    is_free = takes_later_system and not dialogue.has_moved
    if is_free and middle and role_of(document, middle[0]) == USER_ROLE:
        return Head(middle[0].start, dialogue.array)
    text = user_text(document, dialogue)
    return None if text is None else Head(text.start + 1)


def remove(document: Document, texts: Sequence[Text], chosen: Removals, head: Head | None) -> list[Edit]:
    """Cut the chosen lines, and put those that move at the head of the middle."""
    edits: list[Edit] = []
    block: list[bytes] = []
    gone = sorted(chosen.moved | chosen.stripped, key=lambda line: (line.text, line.number))
    for index, grouped in groupby(gone, key=lambda line: line.text):
        lines = list(grouped)
        cuts, moved = _spans(document, texts[index], lines, [line for line in lines if line in chosen.moved])
        edits += (Edit(cut.start, cut.end, b"") for cut in cuts)
        block += (document.body[line.start : line.end] + LINE_BREAK for line in moved)
    if block:
        assert head is not None, "lines move only where there is a place for them"
        edits.append(Edit(head.at, head.at, head.block(block)))
    return edits


def _stripped(lines: Sequence[VolatileLine], moved: frozenset[VolatileLine]) -> Iterator[VolatileLine]:
    """Yield the headers that the first text begins with, past lines that go anyhow."""
    for expected, line in enumerate(lines):
        if (line.text, line.number) != (0, expected):
            return
        if line in moved:
            continue
        if not line.asks_for(VolatileAction.STRIP):
            return
        yield line


def _spans(
    document: Document, text: Text, lines: Sequence[VolatileLine], moved: Sequence[VolatileLine]
) -> tuple[list[Span], list[Span]]:
    """Return where in the body a text's lines are cut, and where those that move stand."""
    cuts = [_cut(text.text, first, final) for first, final in _runs(lines)]
    kept = [(line.start, line.end) for line in moved]
    characters = sorted({offset for span in (*cuts, *kept) for offset in span})
    raw = document.body[text.span.start : text.span.end]
    at = dict(zip(characters, byte_offsets(raw, characters), strict=True))
    in_body = [Span(text.span.start + at[start], text.span.start + at[end]) for start, end in (*cuts, *kept)]
    return in_body[: len(cuts)], in_body[len(cuts) :]


def _cut(text: str, first: VolatileLine, final: VolatileLine) -> tuple[int, int]:
    """Return the characters of lines with the line break behind them; at the text's end, in front."""
    if final.end < len(text):
        return first.start, final.end + 1
    line_break = "\r\n" if text.endswith("\r\n", 0, first.start) else "\n"
    return max(0, first.start - len(line_break)), len(text)


def _runs(lines: Sequence[VolatileLine]) -> Iterator[tuple[VolatileLine, VolatileLine]]:
    """Yield the first and last of each run of lines that follow one another."""
    for _, grouped in groupby(enumerate(lines), key=lambda item: item[1].number - item[0]):
        run = [line for _, line in grouped]
        yield run[0], run[-1]
