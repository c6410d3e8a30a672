"""
JSON bodies as byte spans, and edits as splices into the bytes that came.

A body is checked once and never written anew: number spelling, key order, escapes and white space survive
because nothing but the spans named by an edit is touched. The check is strict where two readers could read
two things: duplicate keys, lone surrogates and invalid UTF-8 are refused.

The standard library's scanner works on text and knows positions in text only, so the body is read as
Latin-1: one character per byte, every position a byte position, and JSON's own syntax is ASCII anyway.
Strings seen this way are not the strings that were meant; `value` and the keys of `members` are decoded
from the body's UTF-8.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from json.scanner import make_scanner
from typing import Any, Final, NamedTuple, NoReturn

from sternpost_core.errors import BodyError, Fault
from sternpost_core.jsonpath import constant_path, duplicate_path, long_integer_path, path_at, too_deep_path

DEPTH_MAX: Final = 128
"""How many arrays and objects may be open at once, the top-level object included."""

DIGITS_MAX: Final = 4300
"""How many digits an integer may have; what Python itself converts."""

OUTLINED: Final = frozenset({"input", "messages"})
"""
The top-level arrays that every request is asked about: the check notes the spans in them on its way.

A list of tools is not among them: most come again byte for byte, and are known as a whole.
"""

Read = Callable[[str, int], tuple[Any, int]]
"""Reads the value that begins at a position; returns it, and where it ends."""

_CHUNK_BYTES: Final = 65536
_SPACES: Final = frozenset(" \t\n\r")
_CONTAINERS: Final = frozenset({dict, list})
_WHITESPACE: Final = re.compile(r"[ \t\n\r]*")
_PLAIN_KEY: Final = re.compile(r'"([^"\\\x00-\x1f]*)"[ \t\n\r]*:[ \t\n\r]*')
"""A key without escapes, with its colon: nearly every key there is."""

_NEXT: Final = re.compile(r"[ \t\n\r]*([,}\]])[ \t\n\r]*")
"""What stands behind a value: a comma, or the end of what the value is in."""

_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_LONE_HIGH: Final = re.compile(rb"\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])")
_LONE_LOW: Final = re.compile(rb"\\u[dD][c-fC-F](?<!\\u[dD][89abAB]..\\u[dD].)")


class Span(NamedTuple):
    """The bytes from `start` up to, not including, `end`."""

    start: int
    end: int


class Member(NamedTuple):
    """Where one key, quotes included, and its value stand."""

    key_span: Span
    value_span: Span


@dataclass(frozen=True, slots=True)
class Outline:
    """The elements of arrays and the members of objects, by where they start."""

    elements: Mapping[int, tuple[Span, ...]]
    members: Mapping[int, Mapping[str, Member]]


@dataclass(frozen=True, slots=True)
class Document:
    """
    A checked body: `members` are those of the top-level object, which is at `span`.

    `text` is the body read as Latin-1; `outline` holds the spans that the check has noted, by their start.
    The representation shows nothing of what the client wrote.
    """

    body: bytes = field(repr=False)
    text: str = field(repr=False)
    span: Span
    members: Mapping[str, Member] = field(repr=False)
    outline: Outline = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Edit:
    """Put `replacement` in the place of the bytes from `start` up to `end`."""

    start: int
    end: int
    replacement: bytes = field(repr=False)


class _Duplicate(Exception):
    """A key stands twice in one object."""


class _Constant(Exception):
    """NaN, Infinity or -Infinity, which JSON does not have."""


def scan(body: bytes) -> Document:
    """
    Check a body and find the members of its top-level object.

    Raises:
        BodyError: for anything but a JSON object in UTF-8 without byte order mark, duplicate keys, lone
            surrogates, NaN, Infinity, integers over 4,300 digits and nesting over `DEPTH_MAX`. The fault
            names the path and the byte, and never repeats the body.
    """
    _check_encoding(body)
    text = body.decode("latin-1")
    start = _skip(text, 0)
    if text[start : start + 1] != "{":
        raise _fault("body", "something else" if text[start:] else "nothing", "a JSON object")
    try:
        outline, end, decoded = _read_all(body, text, start)
    except json.JSONDecodeError as error:
        raise _malformed(text, error.pos) from None
    except StopIteration as stop:
        # So the library's scanner says that no value begins where it was asked for one.
        raise _malformed(text, stop.value) from None
    except _Duplicate:
        raise _fault(duplicate_path(body.decode()), "a duplicate key", "each key once") from None
    except _Constant as constant:
        raise _fault(constant_path(text), str(constant), "a JSON number") from None
    except RecursionError:
        raise _too_deep(text) from None
    except ValueError:
        path = long_integer_path(text, DIGITS_MAX)
        raise _fault(path, "a longer integer", f"at most {DIGITS_MAX} digits") from None
    if (rest := _skip(text, end)) != len(text):
        raise _malformed(text, rest)
    _check_depth(text, decoded)
    _check_surrogates(body, text)
    return Document(body, text, Span(start, end), outline.members[start], outline)


def elements(document: Document, span: Span) -> tuple[Span, ...]:
    """Return the spans of the elements of the array at `span`; programmer error if there is no array."""
    if (noted := document.outline.elements.get(span.start)) is not None:
        return noted
    assert document.text[span.start] == "[", "not the span of an array"
    outliner = _Outliner(document.body, document.text, _read_checked)
    outliner.read_array(span.start)
    return outliner.elements[span.start]


def members(document: Document, span: Span) -> Mapping[str, Member]:
    """Return the members of the object at `span`; programmer error if there is no object."""
    if (noted := document.outline.members.get(span.start)) is not None:
        return noted
    assert document.text[span.start] == "{", "not the span of an object"
    outliner = _Outliner(document.body, document.text, _read_checked)
    outliner.read_object(span.start)
    return outliner.members[span.start]


def value(document: Document, span: Span) -> Any:
    """Return the decoded JSON value at `span`."""
    return json.loads(document.body[span.start : span.end])


def apply(body: bytes, edits: Sequence[Edit]) -> bytes:
    """Make the edits, which are in order and do not overlap; without any, return the same object."""
    if not edits:
        return body
    pieces: list[bytes] = []
    position = 0
    for edit in edits:
        assert position <= edit.start <= edit.end <= len(body), "edits are in order and do not overlap"
        pieces += (body[position : edit.start], edit.replacement)
        position = edit.end
    pieces.append(body[position:])
    return b"".join(pieces)


def in_order(*groups: Iterable[Edit]) -> list[Edit]:
    """Merge edits by their start; of two at one place, the earlier group's comes first."""
    return sorted((edit for group in groups for edit in group), key=lambda edit: edit.start)


def set_member(document: Document, key: str, value_bytes: bytes) -> Edit:
    """Replace the value of a top-level key, or append the key before the closing brace."""
    (edit,) = edit_members(document, {key: value_bytes}, ())
    return edit


def remove_member(document: Document, key: str) -> Edit:
    """Remove a top-level key that is there, with its comma."""
    assert key in document.members, "only a key that is there can be removed"
    (edit,) = edit_members(document, {}, (key,))
    return edit


def edit_members(
    document: Document,
    set: Mapping[str, bytes],  # noqa: A002 - the pair set and remove says it best
    remove: Collection[str],
) -> list[Edit]:
    """Set and remove several top-level keys at once; keys to remove that are not there are passed over."""
    return edit_object(document, document.span, document.members, set, remove)


def edit_object(
    document: Document,
    span: Span,
    present: Mapping[str, Member],
    set: Mapping[str, bytes],  # noqa: A002 - the pair set and remove says it best
    remove: Collection[str],
) -> list[Edit]:
    """Do what `edit_members` does to the object at `span`, whose members are `present`."""
    assert not any(key in set for key in remove), "a key is set or removed, not both"
    removals = _removals(list(present.items()), remove)
    replacements = [
        Edit(*present[key].value_span, replacement) for key, replacement in set.items() if key in present
    ]
    added = [_encode_key(key) + b":" + new for key, new in set.items() if key not in present]
    last = max((member.value_span.end for member in present.values()), default=span.start + 1)
    follows = any(key not in remove for key in present)
    appended = [Edit(last, last, b"," * follows + b",".join(added))] if added else []
    return in_order(removals, replacements, appended)


def move_element_to_end(document: Document, array_span: Span, index: int) -> list[Edit]:
    """Move an array element, byte for byte, behind the last; the separator that followed it goes along."""
    spans = elements(document, array_span)
    assert 0 <= index < len(spans), "no such element"
    if index == len(spans) - 1:
        return []
    moved, following, last = spans[index], spans[index + 1], spans[-1]
    separator = document.body[moved.end : following.start]
    element = document.body[moved.start : moved.end]
    return [Edit(moved.start, following.start, b""), Edit(last.end, last.end, separator + element)]


def move_element_before(document: Document, array_span: Span, index: int, target: int) -> list[Edit]:
    """Move an array element, byte for byte, before an earlier one; the separator before it goes along."""
    spans = elements(document, array_span)
    assert 0 <= target <= index < len(spans), "no such element, or none to move it before"
    if index == target:
        return []
    before, moved = spans[index - 1], spans[index]
    separator = document.body[before.end : moved.start]
    element = document.body[moved.start : moved.end]
    place = spans[target].start
    return [Edit(place, place, element + separator), Edit(before.end, moved.end, b"")]


def _removals(present: Sequence[tuple[str, Member]], remove: Collection[str]) -> list[Edit]:
    """
    Cut the members to remove, each with exactly one comma.

    Behind a member that stays, the comma in front goes; before the first that stays, the comma behind. With
    {"a":1,"b":2,"c":3}: removing b and c cuts `,"b":2` and `,"c":3`; removing a and b cuts `"a":1,` and
    `"b":2,`; removing all three cuts `"a":1,`, `"b":2,` and `"c":3`.
    """
    edits: list[Edit] = []
    kept_before = False
    for position, (key, member) in enumerate(present):
        if key not in remove:
            kept_before = True
        elif kept_before:
            edits.append(Edit(present[position - 1][1].value_span.end, member.value_span.end, b""))
        else:
            follower = present[position + 1][1].key_span.start if position + 1 < len(present) else None
            edits.append(Edit(member.key_span.start, follower or member.value_span.end, b""))
    return edits


def _encode_key(key: str) -> bytes:
    return json.dumps(key, ensure_ascii=False).encode()


def _check_encoding(body: bytes) -> None:
    if body.startswith(codecs.BOM_UTF8):
        raise _fault("body", "a byte order mark", "UTF-8 without a byte order mark")
    if body.isascii():
        return
    # Chunks keep the decoded text small: one emoji would otherwise make it four times as large as the body.
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, len(body), _CHUNK_BYTES):
        begun, _ = decoder.getstate()
        try:
            decoder.decode(body[start : start + _CHUNK_BYTES], start + _CHUNK_BYTES >= len(body))
        except UnicodeDecodeError as error:
            position = start - len(begun) + error.start
            path = path_at(body.decode("latin-1"), position)
            raise _fault(path, f"invalid UTF-8 at byte {position}", "UTF-8") from None


def _read_all(body: bytes, text: str, start: int) -> tuple[Outline, int, dict[str, Any]]:
    """Read the top-level object; return its outline, its end and its value."""
    # One key may be spelled in UTF-8 here and as an escape there; only the decoded text shows them equal.
    ambiguous = not body.isascii() and b"\\u" in body
    outliner = _Outliner(body, text, _read_checked if ambiguous else _read_unchecked)
    decoded, end = outliner.read_object(start, OUTLINED)
    if ambiguous:
        _read_unchecked(body[start:end].decode(), 0)
    return Outline(outliner.elements, outliner.members), end, decoded


class _Outliner:
    """Reads values, by `read`, and notes the spans of what is likely to be asked about."""

    def __init__(self, body: bytes, text: str, read: Read) -> None:
        self.elements: dict[int, tuple[Span, ...]] = {}
        self.members: dict[int, Mapping[str, Member]] = {}
        self._body = body
        self._text = text
        self._read = read

    def read_object(self, start: int, outlined: Collection[str] = ()) -> tuple[dict[str, Any], int]:
        """Read the object at `start` and note its members, and the elements of those that are `outlined`."""
        found: dict[str, Member] = {}
        decoded: dict[str, Any] = {}
        position, is_more = _opened(self._text, start, "}")
        while is_more:
            raw, key_end, value_start = _read_key(self._text, position)
            key = raw if raw.isascii() else self._key(position, key_end)
            if key in found:
                raise _Duplicate
            if key in outlined and self._text.startswith("[", value_start):
                value, value_end = self.read_array(value_start)
            else:
                value, value_end = self._read(self._text, value_start)
            found[key] = Member(Span(position, key_end), Span(value_start, value_end))
            decoded[key] = value
            position, is_more = _behind(self._text, value_end, "}")
        self.members[start] = found
        return decoded, position

    def read_array(self, start: int) -> tuple[list[Any], int]:
        """Read the array at `start`, note its elements, and the members of those that are objects."""
        spans: list[Span] = []
        decoded: list[Any] = []
        position, is_more = _opened(self._text, start, "]")
        while is_more:
            if self._text.startswith("{", position):
                value, end = self.read_object(position)
            else:
                value, end = self._read(self._text, position)
            spans.append(Span(position, end))
            decoded.append(value)
            position, is_more = _behind(self._text, end, "]")
        self.elements[start] = tuple(spans)
        return decoded, position

    def _key(self, start: int, end: int) -> str:
        """Return a key that is written in UTF-8."""
        decoded: str = json.loads(self._body[start:end])
        return decoded


def _opened(text: str, start: int, closing: str) -> tuple[int, bool]:
    """Return where the first member or element begins; False, and where all ends, if there is none."""
    position = _skip(text, start + 1)
    return (position + 1, False) if text.startswith(closing, position) else (position, True)


def _behind(text: str, position: int, closing: str) -> tuple[int, bool]:
    """Return where the next member or element begins; False, and where all ends, if there is none."""
    found = _NEXT.match(text, position)
    if found is not None:
        if found[1] == ",":
            return found.end(), True
        if found[1] == closing:
            return found.end(1), False
    raise json.JSONDecodeError("a comma is missing", text, _skip(text, position))


def _read_key(text: str, position: int) -> tuple[str, int, int]:
    """Return the key at a position as Latin-1 spells it, where it ends, and where its value starts."""
    plain = _PLAIN_KEY.match(text, position)
    if plain is not None:
        return plain[1], plain.end(1) + 1, plain.end()
    if not text.startswith('"', position):
        raise json.JSONDecodeError("a key is missing", text, position)
    key, key_end = _read_checked(text, position)
    colon = _skip(text, key_end)
    if not text.startswith(":", colon):
        raise json.JSONDecodeError("a colon is missing", text, colon)
    return key, key_end, _skip(text, colon + 1)


def _skip(text: str, position: int) -> int:
    # Most tokens follow one another directly, and this test is far cheaper than the pattern.
    if text[position : position + 1] not in _SPACES:
        return position
    match = _WHITESPACE.match(text, position)
    assert match is not None, "the pattern matches the empty string"
    return match.end()


def _check_depth(text: str, decoded: dict[str, Any]) -> None:
    if text.count("{") + text.count("[") <= DEPTH_MAX:
        # No more are opened at all, be it in strings, than may be open at once.
        return
    level: list[Any] = [decoded]
    for _ in range(DEPTH_MAX):
        if not level:
            return
        level = _containers_in(level)
    if level:
        raise _too_deep(text)


def _containers_in(level: list[Any]) -> list[Any]:
    found: list[Any] = []
    for container in level:
        inner = container.values() if isinstance(container, dict) else container
        # A long list of numbers is passed over without a step of Python for each.
        if not _CONTAINERS.isdisjoint(map(type, inner)):
            found += [one for one in inner if type(one) in _CONTAINERS]
    return found


def _check_surrogates(body: bytes, text: str) -> None:
    if not _SURROGATE.search(body):
        return
    # An escaped backslash before a `u` is no escape; blanking it keeps every position.
    plain = body.replace(b"\\\\", b"__")
    lone = _LONE_HIGH.search(plain) or _LONE_LOW.search(plain)
    if lone:
        found = f"a lone surrogate at byte {lone.start()}"
        raise _fault(path_at(text, lone.start()), found, "paired surrogates")


def _malformed(text: str, position: int) -> BodyError:
    return _fault(path_at(text, position), f"malformed JSON at byte {position}", "valid JSON")


def _too_deep(text: str) -> BodyError:
    return _fault(too_deep_path(text, DEPTH_MAX), "deeper nesting", f"at most {DEPTH_MAX} levels")


def _fault(path: str, found: str, allowed: str) -> BodyError:
    return BodyError("request", [Fault(path, found, allowed)])


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise _Duplicate
    return unique


def _refuse_constant(name: str) -> NoReturn:
    raise _Constant(name)


def _reader(decoder: Any) -> Read:
    # What `raw_decode` calls for every value; the library's types name another argument.
    return make_scanner(decoder)


_read_unchecked: Final = _reader(
    json.JSONDecoder(object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant)
)
"""Reads what is still to be checked."""

_read_checked: Final = _reader(json.JSONDecoder(parse_constant=_refuse_constant))
"""Reads what has been checked."""
