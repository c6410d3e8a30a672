"""A body after its edits, without checking it again: what was found in it moves along."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from sternpost_core.jsonspan import Document, Edit, Member, Outline, Span, apply, scan


@dataclass(frozen=True, slots=True)
class NewElement:
    """An object that `edit` puts, with a comma behind it, in front of an element of the outlined `array`."""

    array: Span
    edit: Edit


def spliced(document: Document, edits: Sequence[Edit], new: NewElement | None = None) -> Document:
    """
    Return what `scan` would return of the edited body.

    Each edit puts a checked value in the place of a whole value, or changes characters within one string, but
    for that of a `new` element, which is among them. The edits are in order and do not overlap. What the
    outline held within a replaced value is forgotten.
    """
    body = apply(document.body, edits)
    moves = _Moves(edits)
    elements = {
        moves.at(start): tuple(map(moves.span, spans))
        for start, spans in document.outline.elements.items()
        if moves.keeps(start)
    }
    added: dict[int, Mapping[str, Member]] = {}
    if new is not None:
        place = moves.at(new.edit.start) - len(new.edit.replacement)
        element = scan(new.edit.replacement.removesuffix(b","))
        array = moves.at(new.array.start)
        elements[array] = tuple(sorted((*elements[array], Span(place, place + len(element.body)))))
        added[place] = _shifted(element.members, place)
    outline = Outline(elements, _MovedMembers(document.outline.members, moves, added))
    span = moves.span(document.span)
    return Document(body, body.decode("latin-1"), span, outline.members[span.start], outline)


class _Moves:
    """Where positions of a body are after its edits."""

    def __init__(self, edits: Sequence[Edit]) -> None:
        self._starts = [edit.start for edit in edits]
        self._ends = [edit.end for edit in edits]
        deltas = (len(edit.replacement) - (edit.end - edit.start) for edit in edits)
        self._shifts = list(accumulate(deltas, initial=0))
        self._new_ends = [end + shift for end, shift in zip(self._ends, self._shifts[1:], strict=True)]

    def at(self, position: int) -> int:
        return position + self._shifts[bisect_right(self._ends, position)]

    def origin(self, position: int) -> int:
        """Return where a position was, if it was somewhere: in a replacement there was nothing."""
        return position - self._shifts[bisect_right(self._new_ends, position)]

    def span(self, span: Span) -> Span:
        index = bisect_right(self._ends, span.start)
        shift = self._shifts[index]
        if index == len(self._ends) or span.end < self._ends[index]:
            # Nothing is edited within most values.
            return Span(span.start + shift, span.end + shift)
        return Span(span.start + shift, self.at(span.end))

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


class _MovedMembers(Mapping[int, Mapping[str, Member]]):
    """
    The members of objects where they are after edits; only those that are asked for are moved.

    `added` are those of objects that were not there before.
    """

    def __init__(
        self,
        before: Mapping[int, Mapping[str, Member]],
        moves: _Moves,
        added: Mapping[int, Mapping[str, Member]],
    ) -> None:
        self._before = before
        self._moves = moves
        self._added = added
        self._moved: dict[int, Mapping[str, Member]] = {**added}

    def __getitem__(self, start: int) -> Mapping[str, Member]:
        found = self._moved.get(start)
        if found is None:
            origin = self._moves.origin(start)
            if not self._moves.keeps(origin) or self._moves.at(origin) != start:
                raise KeyError(start)
            found = self._moved[start] = self._moves.members(origin, self._before[origin])
        return found

    def __iter__(self) -> Iterator[int]:
        yield from self._added
        yield from (self._moves.at(start) for start in self._before if self._moves.keeps(start))

    def __len__(self) -> int:
        return len(self._added) + sum(map(self._moves.keeps, self._before))


def _shifted(found: Mapping[str, Member], shift: int) -> dict[str, Member]:
    return {
        key: Member(Span(key_start + shift, key_end + shift), Span(value_start + shift, value_end + shift))
        for key, ((key_start, key_end), (value_start, value_end)) in found.items()
    }
