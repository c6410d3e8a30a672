"""
Taking volatile lines out of the prefix: to the head of the first user message, or away.

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
from sternpost_gateway.volatile import LineName, Text, VolatileLine, line_starts

OPENING_MARK: Final = b"<system-context>\\n"
CLOSING_MARK: Final = b"</system-context>\\n\\n"
"""What moved lines stand between, as JSON writes it inside a string."""

LINE_BREAK: Final = b"\\n"

FIRST_TEXT_PATHS: Final = frozenset({"messages[0]", "messages[0].content[0]"})
"""Where the first text of a prompt is; a text elsewhere has something in front of it."""


@dataclass(frozen=True, slots=True)
class Removals:
    """The lines that move and the lines that are taken away; a line is named by its text and number."""

    moved: frozenset[LineName]
    stripped: frozenset[LineName]


def choose(texts: Sequence[Text], lines: Sequence[VolatileLine], *, may_move: bool) -> Removals:
    """Say which lines leave the prefix."""
    moved = frozenset(line.name for line in lines if may_move and line.asks_for(VolatileAction.RELOCATE))
    is_first = bool(texts) and texts[0].path in FIRST_TEXT_PATHS
    return Removals(moved, frozenset(_stripped(lines, moved)) if is_first else frozenset())


def remove(document: Document, texts: Sequence[Text], chosen: Removals, head: Span | None) -> list[Edit]:
    """Cut the chosen lines, and put those that move at the start of the string `head`."""
    edits: list[Edit] = []
    block: list[bytes] = []
    for index, names in groupby(sorted(chosen.moved | chosen.stripped), key=lambda name: name.text):
        numbers = [name.number for name in names]
        moved = [number for number in numbers if LineName(index, number) in chosen.moved]
        cuts, lines = _spans(document, texts[index], numbers, moved)
        edits += (Edit(cut.start, cut.end, b"") for cut in cuts)
        block += (document.body[line.start : line.end] + LINE_BREAK for line in lines)
    if block:
        assert head is not None, "lines move only where there is a place for them"
        edits.append(Edit(head.start + 1, head.start + 1, b"".join((OPENING_MARK, *block, CLOSING_MARK))))
    return edits


def _stripped(lines: Sequence[VolatileLine], moved: frozenset[LineName]) -> Iterator[LineName]:
    """Yield the headers that the first text begins with, past lines that go anyhow."""
    for expected, line in enumerate(lines):
        if line.name != LineName(0, expected):
            return
        if line.name in moved:
            continue
        if not line.asks_for(VolatileAction.STRIP):
            return
        yield line.name


def _spans(
    document: Document, text: Text, numbers: Sequence[int], moved: Sequence[int]
) -> tuple[list[Span], list[Span]]:
    """Return what is cut with the lines of these numbers, which rise, and where those that move stand."""
    starts = line_starts(text.text)
    cuts = [_cut(starts, first, final) for first, final in _runs(numbers)]
    lines = [(starts[number], starts[number + 1] - 1) for number in moved]
    characters = sorted({offset for span in (*cuts, *lines) for offset in span})
    raw = document.body[text.span.start : text.span.end]
    at = dict(zip(characters, byte_offsets(raw, characters), strict=True))
    placed = [
        [Span(text.span.start + at[one], text.span.start + at[two]) for one, two in part]
        for part in (cuts, lines)
    ]
    return placed[0], placed[1]


def _cut(starts: Sequence[int], first: int, final: int) -> tuple[int, int]:
    """Return the characters of lines with the line break behind them; at the text's end, in front."""
    if final < len(starts) - 2:
        return starts[first], starts[final + 1]
    return max(0, starts[first] - 1), starts[-1] - 1


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and last of each run of numbers that follow one another."""
    for _, grouped in groupby(enumerate(numbers), key=lambda item: item[1] - item[0]):
        run = [number for _, number in grouped]
        yield run[0], run[-1]
