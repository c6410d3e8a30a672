"""A body after its edits, without checking it again: what was found in it moves along."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

from sternpost_core.jsonspan import Document, Edit, Member, Outline, Span, apply


def spliced(document: Document, edits: Sequence[Edit]) -> Document:
    """
    Return what `scan` would return of the edited body.

    Each edit puts a checked value in the place of a whole value, or changes characters within one string; the
    edits are in order and do not overlap. What the outline held within a replaced value is forgotten.
    """
    body = apply(document.body, edits)
    moves = _Moves(edits)
    outline = Outline(
        {
            moves.at(start): tuple(map(moves.span, spans))
            for start, spans in document.outline.elements.items()
            if moves.keeps(start)
        },
        {
            moves.at(start): moves.members(start, found)
            for start, found in document.outline.members.items()
            if moves.keeps(start)
        },
    )
    span = moves.span(document.span)
    return Document(body, body.decode("latin-1"), span, outline.members[span.start], outline)


class _Moves:
    """Where positions of a body are after its edits."""

    def __init__(self, edits: Sequence[Edit]) -> None:
        self._starts = [edit.start for edit in edits]
        self._ends = [edit.end for edit in edits]
        deltas = (len(edit.replacement) - (edit.end - edit.start) for edit in edits)
        self._shifts = list(accumulate(deltas, initial=0))

    def at(self, position: int) -> int:
        return position + self._shifts[bisect_right(self._ends, position)]

    def span(self, span: Span) -> Span:
        return Span(self.at(span.start), self.at(span.end))

    def members(self, start: int, found: Mapping[str, Member]) -> Mapping[str, Member]:
        end = max((member.value_span.end for member in found.values()), default=start)
        index = bisect_right(self._ends, start)
        if index != bisect_right(self._ends, end):
            return {
                key: Member(self.span(member.key_span), self.span(member.value_span))
                for key, member in found.items()
            }
        # Nothing is edited within most objects: all of such a one moves by as much.
        shift = self._shifts[index]
        return _shifted(found, shift) if shift else found

    def keeps(self, position: int) -> bool:
        """Say whether a value that begins here is not within what an edit replaces."""
        behind = bisect_right(self._starts, position)
        return behind == 0 or position >= self._ends[behind - 1]


def _shifted(found: Mapping[str, Member], shift: int) -> dict[str, Member]:
    return {
        key: Member(Span(key_start + shift, key_end + shift), Span(value_start + shift, value_end + shift))
        for key, ((key_start, key_end), (value_start, value_end)) in found.items()
    }
