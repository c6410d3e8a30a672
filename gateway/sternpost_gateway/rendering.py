"""
What the fixed parts of a prompt are rendered from, in the form in which `/tokenize` takes it.

Responses are rendered as chats are: their instructions as the first system message, their tools in the form
that chats have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sternpost_core.content import ContentId, content_id
from sternpost_core.jsonspan import Document, Edit, Span, apply, edit_object, elements, members
from sternpost_gateway.dialogue import HOLDERS, Dialogue, raw_member
from sternpost_gateway.receive import RESPONSES_PATH
from sternpost_gateway.segment import Chat, TailPlace
from sternpost_gateway.tokens import Template

TOOLS: Final = "tools"

RENDERED_FIELDS: Final = (TOOLS, "chat_template", "chat_template_kwargs", "add_special_tokens")
"""Fields that a chat's rendering depends on, and that /tokenize takes as they are."""

BARE_FIELDS: Final = ("add_special_tokens",)
"""The same for a completion."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """The fixed parts of one prompt."""

    document: Document
    chat: Chat

    @property
    def ids(self) -> tuple[ContentId, ...]:
        """Return the content ids of prefix and tail, as far as there are any."""
        prefix = () if self.chat.dialogue.is_bare else (self.chat.prefix_id,)
        return prefix if self.chat.tail_id is None else (*prefix, self.chat.tail_id)

    def read(self) -> dict[ContentId, Template]:
        """Return what each is rendered from: the prefix without a tail, the tail with everything."""
        return {
            content_id: prefix_of(self.document, self.chat)
            if content_id == self.chat.prefix_id
            else template_of(self.document, self.chat)
            for content_id in self.ids
        }


def prefix_of(document: Document, chat: Chat) -> Template:
    """Return what a prompt's prefix is rendered from, its tail left away."""
    return Template(
        template_id=chat.prefix_id,
        model=raw_member(document, "model") or b"null",
        opening=_opening(document, chat.dialogue),
        tail=b"",
        options=_options(document, chat.dialogue),
    )


def template_of(document: Document, chat: Chat) -> Template:
    """Return what the fixed parts of a prompt with a tail are rendered from."""
    dialogue, place = chat.dialogue, chat.place
    assert place is not None and chat.tail_id is not None, "the prompt has a tail"
    tail, insert = _tail(document, dialogue, place)
    options = _options(document, dialogue)
    model = raw_member(document, "model") or b"null"
    named = [("model", model), ("prefix", chat.prefix_id.encode()), ("tail", chat.tail_id.encode())]
    # The prefix's id stands for the tools, which are long.
    others = (option for option in options if option[0] != TOOLS)
    return Template(
        template_id=content_id("template", [*named, *others]),
        model=model,
        opening=_opening(document, dialogue),
        tail=tail,
        options=options,
        insert=insert,
        is_bare=dialogue.is_bare,
    )


def _opening(document: Document, dialogue: Dialogue) -> tuple[bytes, ...]:
    """Return the leading messages, the instructions as the first."""
    messages = tuple(document.body[slice(*span)] for span in dialogue.messages[: dialogue.opening])
    if dialogue.instructions is None:
        return messages
    return (b'{"role":"system","content":' + document.body[slice(*dialogue.instructions)] + b"}", *messages)


def _tail(document: Document, dialogue: Dialogue, place: TailPlace) -> tuple[bytes, int | None]:
    """Return the tail's messages, without what stands before the tail in them, and where that stood."""
    marked = place.inside
    if marked is None:
        assert place.first is not None, "a whole tail consists of messages"
        tail = dialogue.messages[place.first : place.first + place.count]
        return b",".join(document.body[slice(*span)] for span in tail), None
    text = b'"' + document.body[marked.start : marked.content.end]
    if place.first is None:
        before, after = (b"", b"") if dialogue.is_bare else (b'{"role":"user","content":', b"}")
        return before + text + after, len(before) + 1
    message = dialogue.messages[place.first]
    head = document.body[message.start : marked.content.start]
    return head + text + document.body[marked.content.end : message.end], len(head) + 1


def _options(document: Document, dialogue: Dialogue) -> tuple[tuple[str, bytes], ...]:
    names = BARE_FIELDS if dialogue.is_bare else RENDERED_FIELDS
    found = ((name, _option(document, dialogue, name)) for name in names)
    return tuple((name, raw) for name, raw in found if raw is not None and raw != b"null")


def _option(document: Document, dialogue: Dialogue, name: str) -> bytes | None:
    raw = raw_member(document, name)
    is_response = dialogue.holder == HOLDERS[RESPONSES_PATH]
    if name != TOOLS or raw is None or not is_response or not raw.startswith(b"["):
        return raw
    tools = elements(document, document.members[name].value_span)
    return b"[" + b",".join(_chat_tool(document, tool) for tool in tools) + b"]"


def _chat_tool(document: Document, tool: Span) -> bytes:
    """Return a response's tool, which has its function's members itself, as a chat has it."""
    raw = document.body[slice(*tool)]
    if not raw.startswith(b"{"):
        return raw
    found = members(document, tool)
    kind = found.get("type")
    if kind is None or document.body[slice(*kind.value_span)] != b'"function"' or "function" in found:
        return raw
    edits = [
        Edit(edit.start - tool.start, edit.end - tool.start, edit.replacement)
        for edit in edit_object(document, tool, found, {}, ("type",))
    ]
    return b'{"type":"function","function":' + apply(raw, edits) + b"}"
