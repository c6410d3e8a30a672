"""
The segment stage: prefix, middle and tail of a prompt.

The prefix is the tools, the instructions and the leading run of system or developer messages. The tail is the
last system or developer message behind that run, or what the marker says. What is left is the middle.
Messages are compared as they were sent: an equal id means equal bytes in every member.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sternpost_core.content import ContentId, content_id
from sternpost_core.jsonspan import Document
from sternpost_core.policy import Policy, TailSource
from sternpost_core.template import FixedRun, has_run
from sternpost_gateway.canonicalize import Canonicalized
from sternpost_gateway.dialogue import Dialogue, dialogue_of, message_fields, raw_member
from sternpost_gateway.marker import MarkedTail, find_marked_tail, find_marked_text
from sternpost_gateway.parts import closing_elements
from sternpost_gateway.receive import CHAT_PATH
from sternpost_gateway.roles import is_fixed

Learned = Callable[[str], FixedRun | None]
"""Returns the tail that a policy, by its full name, has learned."""


def nothing_learned(policy: str) -> FixedRun | None:
    """Return nothing: no policy has learned a tail."""
    return None


@dataclass(frozen=True, slots=True)
class TailPlace:
    """
    Where a tail stands: `count` messages from the index `first`, or, by `inside`, the end of one.

    Without `first` it is the end of the text that stands in the place of messages.
    """

    first: int | None = None
    count: int = 1
    inside: MarkedTail | None = None
    is_learned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """
    A prompt's segments.

    `prefix_id` covers the tools, the instructions and the leading messages. `place` is None, and so is
    `tail_id`, where there is no tail.
    """

    dialogue: Dialogue
    place: TailPlace | None
    prefix_id: ContentId
    tail_id: ContentId | None

    @property
    def tail_is_last(self) -> bool:
        """Say whether there is a tail with nothing behind it."""
        if self.place is None or self.place.first is None:
            return self.place is not None
        return self.place.first + self.place.count == len(self.dialogue.messages)

    @property
    def tail_is_part(self) -> bool:
        """Say whether the tail is only part of a message, or a user's, so that it cannot be moved."""
        return self.place is not None and self.place.inside is not None

    @property
    def tail_may_move(self) -> bool:
        """
        Say whether there is a tail that a layout may move.

        A learned one may not: another gateway may not have learned it yet, and would send other bytes.
        """
        return self.place is not None and self.place.inside is None and not self.place.is_learned


@dataclass(frozen=True, slots=True)
class Segmented:
    """A request and its segments, None where it has no prompt that can be read."""

    canonicalized: Canonicalized
    chat: Chat | None


def segment(canonicalized: Canonicalized, learned: Learned = nothing_learned) -> Segmented:
    """Find the segments of a request's prompt; `learned` returns the tail that a policy has learned."""
    document = canonicalized.document
    if document is None:
        return Segmented(canonicalized, None)
    identified = canonicalized.identified
    source = tail_source(identified.policy)
    is_learned = source is TailSource.LEARNED and identified.policy is not None
    run = learned(identified.policy.full_name) if is_learned and identified.policy else None
    return Segmented(canonicalized, chat_of(document, source, identified.received.path, run))


def tail_source(policy: Policy | None) -> TailSource:
    """Return how the tail of a policy's requests is found."""
    tail = policy.prompt.tail if policy else None
    return tail.source if tail else TailSource.LAST_SYSTEM_MESSAGE


def chat_of(
    document: Document,
    source: TailSource = TailSource.LAST_SYSTEM_MESSAGE,
    path: str = CHAT_PATH,
    learned: FixedRun | None = None,
) -> Chat | None:
    """Return the segments of a request to `path`, None if it has no prompt that can be read."""
    dialogue = dialogue_of(document, path)
    if dialogue is None:
        return None
    place = _place(document, dialogue, source, learned)
    return Chat(
        dialogue=dialogue,
        place=place,
        prefix_id=_prefix_id(document, dialogue),
        tail_id=None if place is None else _tail_id(document, dialogue, place),
    )


def _place(
    document: Document, dialogue: Dialogue, source: TailSource, learned: FixedRun | None
) -> TailPlace | None:
    match source:
        case TailSource.MARKER:
            return _marked(document, dialogue)
        case TailSource.LEARNED:
            return None if learned is None else _learned(document, dialogue, learned)
        case TailSource.LAST_SYSTEM_MESSAGE:
            return _last_fixed(document, dialogue)


def _learned(document: Document, dialogue: Dialogue, learned: FixedRun) -> TailPlace | None:
    """Return the last messages if they are what has been learned; they are the tail where they stand."""
    closing = closing_elements(document, dialogue)
    if not learned.length or not has_run(learned, closing[::-1]):
        return None
    return TailPlace(len(dialogue.messages) - learned.length, learned.length, is_learned=True)


def _last_fixed(document: Document, dialogue: Dialogue) -> TailPlace | None:
    """Find the last message of the system or the developer behind the prefix."""
    messages = dialogue.messages
    for index in range(len(messages) - 1, dialogue.opening, -1):
        if is_fixed(document, messages[index]):
            return TailPlace(index)
    return None


def _marked(document: Document, dialogue: Dialogue) -> TailPlace | None:
    """
    Find the last message behind the prefix that holds the marker, or the text that does.

    A user's message is the tail in part even where the marker is at its beginning: it cannot be moved.
    """
    if dialogue.text is not None:
        marked = find_marked_text(document, dialogue.text)
        return None if marked is None else TailPlace(inside=marked)
    messages = dialogue.messages
    for index in range(len(messages) - 1, dialogue.opening - 1, -1):
        if (found := find_marked_tail(document, messages[index])) is not None:
            is_message = found.is_whole and is_fixed(document, messages[index])
            return TailPlace(index, inside=None if is_message else found)
    return None


def _tail_id(document: Document, dialogue: Dialogue, place: TailPlace) -> ContentId:
    marked = place.inside
    inside = [] if marked is None else [("inside", document.body[marked.start : marked.content.end])]
    if place.first is None:
        return content_id("tail", [("holder", dialogue.holder.encode()), *inside])
    fields = [
        field
        for message in dialogue.messages[place.first : place.first + place.count]
        for field in message_fields(document, message, "tail")
        if marked is None or field[0] != "tail.content"
    ]
    return content_id("tail", [*fields, *inside])


def _prefix_id(document: Document, dialogue: Dialogue) -> ContentId:
    tools = raw_member(document, "tools")
    fields = [("tools", tools)] if tools is not None else []
    if dialogue.instructions is not None:
        fields.append(("instructions", document.body[slice(*dialogue.instructions)]))
    for index, message in enumerate(dialogue.messages[: dialogue.opening]):
        fields.extend(message_fields(document, message, f"message.{index}"))
    return content_id("prefix", fields)
