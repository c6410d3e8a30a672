"""A prompt as the parts that two are compared by, in the order in which templates render them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from sternpost_core.content import ContentId, content_id
from sternpost_core.divergence import Part, PartKind
from sternpost_core.jsonspan import Document, Span, elements, members, value
from sternpost_gateway.dialogue import INSTRUCTIONS, Dialogue, message_fields, raw_member
from sternpost_gateway.roles import is_fixed

TOOLS: Final = "tools"

FIRST_MEMBERS: Final = ("role", "content")
"""The members of a message that come first; the others follow by name."""


def parts_of(document: Document, dialogue: Dialogue) -> list[Part]:
    """Return the parts of a prompt: tools, instructions, and messages or the text in their place."""
    tools = document.members.get(TOOLS)
    parts = [_part(document, TOOLS, PartKind.TOOLS, None, tools.value_span)] if tools else []
    if dialogue.instructions is not None:
        parts.append(_text_part(document, INSTRUCTIONS, None, dialogue.instructions))
    if dialogue.text is not None:
        parts.append(_text_part(document, dialogue.holder, None, dialogue.text))
    for index, message in enumerate(dialogue.messages):
        parts += _message_parts(document, dialogue.holder, index, message)
    return parts


def prefix_parts(document: Document, dialogue: Dialogue, more: int = 0) -> list[Part]:
    """Return the parts of a prompt's prefix, and of so many messages behind it."""
    messages = dialogue.messages[: dialogue.opening + more]
    return parts_of(document, replace(dialogue, messages=messages, text=None))


def message_parts(document: Document, dialogue: Dialogue, start: int, end: int) -> list[Part]:
    """Return the parts of the messages from `start` up to, not including, `end`."""
    numbered = list(enumerate(dialogue.messages))[start:end]
    return [
        part
        for index, message in numbered
        for part in _message_parts(document, dialogue.holder, index, message)
    ]


def prefix_length(parts: Sequence[Part], dialogue: Dialogue) -> int:
    """Return how many of a prompt's parts are its prefix: tools, instructions and leading messages."""
    later = (
        index
        for index, part in enumerate(parts)
        if part.path == dialogue.holder or (part.message is not None and part.message >= dialogue.opening)
    )
    return next(later, len(parts))


def fixed_elements(document: Document, dialogue: Dialogue) -> tuple[list[ContentId], list[ContentId]]:
    """Return the content ids of what could be fixed about a prompt, in front and at the end."""
    return opening_elements(document, dialogue), closing_elements(document, dialogue)


def opening_elements(document: Document, dialogue: Dialogue) -> list[ContentId]:
    """Return the ids of tools, instructions and the leading messages of system or developer, in order."""
    fields = [
        (name, raw) for name in (TOOLS, INSTRUCTIONS) if (raw := raw_member(document, name)) is not None
    ]
    front = [content_id(name, [(name, raw)]) for name, raw in fields]
    front += (_message_id(document, span) for span in dialogue.messages[: dialogue.opening])
    return front


def closing_elements(document: Document, dialogue: Dialogue) -> list[ContentId]:
    """Return the ids of the closing messages of system or developer, in order."""
    later = dialogue.messages[dialogue.opening :]
    begin = next(
        (index + 1 for index in reversed(range(len(later))) if not is_fixed(document, later[index])), 0
    )
    return [_message_id(document, span) for span in later[begin:]]


def _message_id(document: Document, message: Span) -> ContentId:
    return content_id("message", message_fields(document, message, "message"))


def _message_parts(document: Document, holder: str, index: int, message: Span) -> Iterator[Part]:
    path = f"{holder}[{index}]"
    if document.text[message.start] != "{":
        yield _part(document, path, PartKind.JSON, index, message)
        return
    found = members(document, message)
    for name in (*FIRST_MEMBERS, *sorted(found.keys() - set(FIRST_MEMBERS))):
        if name in found and name == "content":
            yield from _content_parts(document, path, index, found[name].value_span)
        elif name in found:
            yield _part(document, f"{path}.{name}", PartKind.JSON, index, found[name].value_span)


def _content_parts(document: Document, path: str, index: int, span: Span) -> Iterator[Part]:
    """Yield a content's parts: a string is one, a list has one for each of its elements."""
    if document.text[span.start] != "[":
        yield _text_part(document, path, index, span)
        return
    for number, element in enumerate(elements(document, span)):
        yield _text_part(document, f"{path}.content[{number}]", index, _text_of(document, element))


def _text_of(document: Document, element: Span) -> Span:
    """Return the string of a text part, or the whole of any other element."""
    if document.text[element.start] != "{":
        return element
    text = members(document, element).get("text")
    return element if text is None else text.value_span


def _text_part(document: Document, path: str, index: int | None, span: Span) -> Part:
    if document.text[span.start] == '"':
        return Part(path, PartKind.TEXT, index, value(document, span))
    return _part(document, path, PartKind.JSON, index, span)


def _part(document: Document, path: str, kind: PartKind, index: int | None, span: Span) -> Part:
    return Part(path, kind, index, document.body[span.start : span.end].decode())
