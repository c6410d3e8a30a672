"""A body as the parts that two prompts are compared by, in the order in which templates render them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from sternpost_core.content import ContentId, content_id
from sternpost_core.divergence import Part, PartKind
from sternpost_core.jsonspan import Document, Span, elements, members, value
from sternpost_gateway.roles import is_fixed

TOOLS: Final = "tools"

WHOLE: Final = ("instructions", "prompt", "input")
"""What holds the prompt of a body without messages."""

FIRST_MEMBERS: Final = ("role", "content")
"""The members of a message that come first; the others follow by name."""


def parts_of(document: Document) -> list[Part]:
    """Return the parts of a body: its tools, and its messages or what stands in their place."""
    tools = document.members.get(TOOLS)
    parts = [_part(document, TOOLS, PartKind.TOOLS, None, tools.value_span)] if tools else []
    for name in WHOLE:
        if (member := document.members.get(name)) is not None:
            parts += _content_parts(document, name, None, member.value_span)
    for index, message in enumerate(messages_of(document)):
        parts += _message_parts(document, index, message)
    return parts


def messages_of(document: Document) -> Sequence[Span]:
    """Return the spans of a chat's messages, () if it has none."""
    member = document.members.get("messages")
    is_list = member is not None and document.text[member.value_span.start] == "["
    return elements(document, member.value_span) if member is not None and is_list else ()


def opening_of(document: Document) -> Sequence[Span]:
    """Return the spans of a chat's leading messages of system or developer."""
    return _leading(document, messages_of(document))


def fixed_elements(document: Document) -> tuple[list[ContentId], list[ContentId]]:
    """
    Return the content ids of what could be fixed about a chat, in front and at the end, in their order.

    In front that is the tools and the leading messages of system or developer, at the end the closing ones.
    """
    tools = document.members.get(TOOLS)
    messages = messages_of(document)
    opening = _leading(document, messages)
    closing = _leading(document, messages[len(opening) :][::-1])[::-1]
    front = [content_id(TOOLS, [(TOOLS, _raw(document, tools.value_span))])] if tools else []
    return front + [_message_id(document, span) for span in opening], [
        _message_id(document, span) for span in closing
    ]


def _leading(document: Document, messages: Sequence[Span]) -> Sequence[Span]:
    count = next(
        (index for index, span in enumerate(messages) if not is_fixed(document, span)), len(messages)
    )
    return messages[:count]


def _message_id(document: Document, message: Span) -> ContentId:
    named = sorted(members(document, message).items())
    return content_id("message", [(name, _raw(document, member.value_span)) for name, member in named])


def _message_parts(document: Document, index: int, message: Span) -> Iterator[Part]:
    path = f"messages[{index}]"
    if document.text[message.start] != "{":
        yield _part(document, path, PartKind.JSON, index, message)
        return
    found = members(document, message)
    for name in (*FIRST_MEMBERS, *sorted(found.keys() - set(FIRST_MEMBERS))):
        if name in found and name == "content":
            yield from _content_parts(document, path, index, found[name].value_span)
        elif name in found:
            yield _part(document, f"{path}.{name}", PartKind.JSON, index, found[name].value_span)


def _content_parts(document: Document, path: str, index: int | None, span: Span) -> Iterator[Part]:
    """Yield a content's parts: a string is one, a list has one for each of its elements."""
    if document.text[span.start] != "[":
        yield _text_part(document, path, index, span)
        return
    for number, element in enumerate(elements(document, span)):
        yield _text_part(
            document,
            f"{path}[{number}]" if index is None else f"{path}.content[{number}]",
            index,
            _text_of(document, element),
        )


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
    return Part(path, kind, index, _raw(document, span).decode())


def _raw(document: Document, span: Span) -> bytes:
    return document.body[span.start : span.end]
