"""
Divergence: where two prompts part, and what it looks like that they differ by.

A prompt is compared part by part in the order in which an engine's template renders it. What is reported is a
place and a guess; the text itself stays with the caller.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import zip_longest
from typing import Final

from sternpost_core.jsonspan import elements, scan
from sternpost_core.policy import Detector
from sternpost_core.tool_form import Tool, read_tool
from sternpost_core.volatile import detect

LINE_CHARS_MAX: Final = 1024
"""Characters of a line, about the place where two part, that are looked at to guess why."""


class PartKind(StrEnum):
    """What a part of a prompt holds."""

    TEXT = "text"
    """Words, decoded."""

    TOOLS = "tools"
    """The list of tools as it was sent."""

    JSON = "json"
    """Any other JSON as it was sent."""


class Difference(StrEnum):
    """What two prompts differ by, where it is nothing that changes by itself."""

    TOOL_ORDER = "ToolOrder"
    """The same tools in another order."""

    KEY_ORDER = "KeyOrder"
    """The same tools with the members of an object, or the names of `required`, in another order."""

    SPACING = "Spacing"
    """The same tools, byte for byte, with other space between them."""

    TOOL_SET = "ToolSet"
    """Other tools."""

    TOOL_TEXT = "ToolText"
    """A tool of the same name with another description or schema."""

    MESSAGES = "Messages"
    """A message or a part that the other prompt does not have there."""

    TEXT = "Text"
    """Other words."""

    JSON = "Json"
    """Another value."""


Guess = Detector | Difference


@dataclass(frozen=True, slots=True)
class Part:
    """
    A part of a prompt: `path` is where it stands in the body, such as `tools` or `messages[2].content[0]`.

    `message` is the index of its message, None outside of messages.
    """

    path: str
    kind: PartKind
    message: int | None
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Divergence:
    """
    Where a prompt begins to differ from another, and what that looks like.

    `index` is that of the part in both prompts; `path` and `message` are those of the part, and `offset`
    counts characters in it.
    """

    index: int
    path: str
    message: int | None
    offset: int
    guess: Guess


def first_divergence(left: Sequence[Part], right: Sequence[Part]) -> Divergence | None:
    """Return where `right` begins to differ from `left`, None if the two are equal."""
    place = parting_place(left, right)
    if place is None:
        return None
    index, offset = place
    if index >= min(len(left), len(right)) or not _are_alike(left[index], right[index]):
        shown = right[index] if index < len(right) else left[index]
        return Divergence(index, shown.path, shown.message, 0, Difference.MESSAGES)
    one, other = left[index], right[index]
    return Divergence(index, other.path, other.message, offset, _guess(one, other, offset))


def parting_place(left: Sequence[Part], right: Sequence[Part]) -> tuple[int, int] | None:
    """Return the index of the first part that differs, and how many of its characters do not; or None."""
    for index, (one, other) in enumerate(zip_longest(left, right)):
        if one is None or other is None or not _are_alike(one, other):
            return index, 0
        if one.text != other.text:
            return index, common_length(one.text, other.text)
    return None


def _are_alike(left: Part, right: Part) -> bool:
    """Say whether two parts stand at one place, so that their texts can be compared."""
    return (left.path, left.kind) == (right.path, right.kind)


def common_length(left: str, right: str) -> int:
    """Return how many characters two texts begin with alike."""
    shorter = min(len(left), len(right))
    if left[:shorter] == right[:shorter]:
        return shorter
    # Whether they differ within so many characters turns from no to yes exactly once.
    return bisect_left(range(shorter), True, key=lambda end: left[: end + 1] != right[: end + 1])


def _guess(left: Part, right: Part, offset: int) -> Guess:
    if right.kind is PartKind.TOOLS:
        return _guess_tools(left.text, right.text)
    looks = _looks(right.text, offset) or _looks(left.text, offset)
    return looks or (Difference.TEXT if right.kind is PartKind.TEXT else Difference.JSON)


def _looks(text: str, offset: int) -> Detector | None:
    """Return what a text looks like about an offset: a span may end where the other text goes on."""
    start = text.rfind("\n", 0, offset) + 1
    end = text.find("\n", offset)
    line = text[
        max(start, offset - LINE_CHARS_MAX) : min(len(text) if end < 0 else end, offset + LINE_CHARS_MAX)
    ]
    place = offset - max(start, offset - LINE_CHARS_MAX)
    return next((span.detector for span in detect(line) if span.start <= place <= span.end), None)


def _guess_tools(left: str, right: str) -> Difference:
    ours, theirs = _read_tools(left), _read_tools(right)
    if ours is None or theirs is None:
        return Difference.TOOL_SET
    if sorted(tool.label for tool in ours) != sorted(tool.label for tool in theirs):
        return Difference.TOOL_SET
    if sorted(tool.key for tool in ours) != sorted(tool.key for tool in theirs):
        return Difference.TOOL_TEXT
    if [tool.key for tool in ours] != [tool.key for tool in theirs]:
        return Difference.TOOL_ORDER
    return Difference.SPACING if _raw_tools(left) == _raw_tools(right) else Difference.KEY_ORDER


def _read_tools(text: str) -> list[Tool] | None:
    """Return the tools of a checked list, None if something else is there."""
    tools = [read_tool(raw) for raw in _raw_tools(text)] if text.startswith("[") else [None]
    return None if None in tools else [tool for tool in tools if tool is not None]


def _raw_tools(text: str) -> list[bytes]:
    document = scan(b'{"tools":' + text.encode() + b"}")
    spans = elements(document, document.members["tools"].value_span)
    return [document.body[span.start : span.end] for span in spans]
