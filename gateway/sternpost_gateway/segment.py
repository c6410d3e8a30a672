"""
The segment stage: prefix, middle and tail of a chat.

The prefix is the tools and the leading run of system or developer messages. The tail is the last system or
developer message behind that run, or what the marker says. What is left is the middle. Messages are compared
as they were sent: an equal id means equal bytes in every member.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sternpost_core.content import ContentId, content_id
from sternpost_core.jsonspan import Document, Span, elements, members
from sternpost_core.policy import Policy, TailSource
from sternpost_gateway.canonicalize import Canonicalized
from sternpost_gateway.marker import MarkedTail, find_marked_tail
from sternpost_gateway.receive import CHAT_PATH
from sternpost_gateway.roles import is_fixed


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """
    A chat's messages by their spans.

    The first `opening` messages are the prefix's; `tail` is the index of the tail, None if there is none.
    `inside` says which part of that message is the tail, None if all of it is. `prefix_id` covers the tools
    and the leading messages.
    """

    array: Span
    messages: tuple[Span, ...]
    opening: int
    tail: int | None
    prefix_id: ContentId
    tail_id: ContentId | None
    inside: MarkedTail | None = None

    @property
    def tail_is_last(self) -> bool:
        """Say whether nothing stands behind the tail."""
        return self.tail == len(self.messages) - 1


@dataclass(frozen=True, slots=True)
class Segmented:
    """A request and its chat, None where it has no messages."""

    canonicalized: Canonicalized
    chat: Chat | None


def segment(canonicalized: Canonicalized) -> Segmented:
    """Find the segments of a chat."""
    document = canonicalized.document
    if document is None or canonicalized.identified.received.path != CHAT_PATH:
        return Segmented(canonicalized, None)
    return Segmented(canonicalized, chat_of(document, tail_source(canonicalized.identified.policy)))


def tail_source(policy: Policy | None) -> TailSource:
    """Return how the tail of a policy's requests is found."""
    tail = policy.prompt.tail if policy else None
    return tail.source if tail else TailSource.LAST_SYSTEM_MESSAGE


def chat_of(document: Document, source: TailSource = TailSource.LAST_SYSTEM_MESSAGE) -> Chat | None:
    """Return the segments of a document's messages, None if it has none."""
    member = document.members.get("messages")
    if member is None or document.body[member.value_span.start : member.value_span.start + 1] != b"[":
        return None
    messages = elements(document, member.value_span)
    opening = next(
        (index for index, span in enumerate(messages) if not is_fixed(document, span)), len(messages)
    )
    find = _marked if source is TailSource.MARKER else _last_fixed
    tail, inside = find(document, messages, opening)
    return Chat(
        array=member.value_span,
        messages=messages,
        opening=opening,
        tail=tail,
        prefix_id=_prefix_id(document, messages[:opening]),
        tail_id=None if tail is None else _tail_id(document, messages[tail], inside),
        inside=inside,
    )


def _last_fixed(document: Document, messages: Sequence[Span], opening: int) -> tuple[int | None, None]:
    """Find the last message of the system or the developer behind the prefix."""
    later = range(len(messages) - 1, opening, -1)
    return next((index for index in later if is_fixed(document, messages[index])), None), None


def _marked(
    document: Document, messages: Sequence[Span], opening: int
) -> tuple[int | None, MarkedTail | None]:
    """
    Find the last message behind the prefix that holds the marker.

    A user's message is the tail in part even where the marker is at its beginning: it cannot be moved.
    """
    for index in range(len(messages) - 1, opening - 1, -1):
        if (found := find_marked_tail(document, messages[index])) is not None:
            is_message = found.is_whole and is_fixed(document, messages[index])
            return index, None if is_message else found
    return None, None


def _tail_id(document: Document, message: Span, inside: MarkedTail | None) -> ContentId:
    if inside is None:
        return content_id("tail", message_fields(document, message, "tail"))
    others = (field for field in message_fields(document, message, "tail") if field[0] != "tail.content")
    return content_id("tail", [*others, ("inside", document.body[inside.start : inside.content.end])])


def message_fields(document: Document, message: Span, tag: str) -> Iterable[tuple[str, bytes]]:
    """Yield a message's members by name, so that their order does not count, each value as it was sent."""
    for name, member in sorted(members(document, message).items()):
        yield f"{tag}.{name}", document.body[slice(*member.value_span)]


def raw_member(document: Document, name: str) -> bytes | None:
    """Return a top-level member's value as it was sent."""
    member = document.members.get(name)
    return None if member is None else document.body[slice(*member.value_span)]


def _prefix_id(document: Document, messages: Sequence[Span]) -> ContentId:
    tools = raw_member(document, "tools")
    fields = [("tools", tools)] if tools is not None else []
    for index, message in enumerate(messages):
        fields.extend(message_fields(document, message, f"message.{index}"))
    return content_id("prefix", fields)
