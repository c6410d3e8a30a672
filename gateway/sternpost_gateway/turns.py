"""
Turns: whether a conversation's request goes on from the one before it, and if not, where they part.

An engine's prefix cache holds the turn before, so that what a client changes in the history is computed
again from there on. The agents of one session take turns, each with a history of its own, and begin anew with
each task: a request is compared with the last one of its own history. Some last bodies of each conversation
are kept, in memory only and within a bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Final

from sternpost_core.content import ContentId
from sternpost_core.divergence import Divergence, Part, PartKind, first_divergence
from sternpost_core.jsonpath import path_at
from sternpost_core.jsonspan import Document, Span
from sternpost_gateway.bounded import BoundedSize
from sternpost_gateway.dialogue import Dialogue
from sternpost_gateway.parts import message_parts, prefix_parts
from sternpost_gateway.segment import Chat

BODIES_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of all bodies that are kept, with what is known of them."""

READ_FACTOR: Final = 3
"""Bytes that a body takes which has been read, for each of its own."""

AGENTS_MAX: Final = 4
"""Histories of one conversation of which the last body is kept."""

WINDOWS_MAX: Final = 4
"""Messages that differ in their bytes and, perhaps, in nothing else, that are looked into."""

BODY_BYTES_MAX: Final = 1024 * 1024
"""Of one body that is looked into: comparing a longer one would hold up everything else."""

PREVIOUS_FIELD: Final = "previous_response_id"
"""Names history that the engine keeps itself; what the body holds is not all of it."""

ASSISTANT: Final = '"assistant"'

CALL_ID: Final = re.compile(r"\.(?:tool_calls\[\d+\]\.id|tool_call_id)\Z")
"""Ends the path of a tool call's id, which many clients make anew with every replay."""

CALL_ID_GUESS: Final = "ToolCallId"


class DepartureKind(StrEnum):
    """How a request departs from what came before; the values are metric labels."""

    CONTENT_FORM_FLIP = "content_form_flip"
    """The same words as a string here and as parts there, which some chat templates render differently."""

    HISTORY_DIVERGED = "history_diverged_from_generation"
    """An assistant's message is no longer what it was."""

    MISS = "miss"
    """Anything else that is computed again."""


@dataclass(frozen=True, slots=True)
class Departure:
    """
    Where a request departs from what came before, and what that looks like; never its text.

    `offset` counts characters in what is at `path`; the prompt goes on for `lost_bytes` from about there.
    """

    kind: DepartureKind
    path: str
    offset: int
    guess: str
    lost_bytes: int


@dataclass(frozen=True, slots=True)
class _Turn:
    """A request up to its tail, which begins behind so many `messages`."""

    document: Document
    dialogue: Dialogue
    prefix_id: ContentId
    messages: int

    @property
    def span(self) -> Span:
        """Return where the messages stand."""
        return Span(self.dialogue.messages[0].start, self.dialogue.messages[self.messages - 1].end)

    @property
    def first(self) -> int:
        """Return the index of the first message behind the prefix, whether there is one or not."""
        return len(self.dialogue.messages) - len(self.dialogue.middle)

    @property
    def opening(self) -> bytes | None:
        """Return that message as it was sent, None if there is none."""
        return self.raw(self.first) if self.first < self.messages else None

    def raw(self, index: int) -> bytes:
        """Return a message as it was sent."""
        return self.document.body[slice(*self.dialogue.messages[index])]


class Turns:
    """The last turns of each conversation, the newest first."""

    def __init__(self, bytes_max: int = BODIES_BYTES_MAX) -> None:
        self._turns: BoundedSize[str, tuple[_Turn, ...]] = BoundedSize(bytes_max)

    def take(self, conversation: str, document: Document, chat: Chat) -> Departure | None:
        """Return how a request departs from its history's turn before, and keep it as the last."""
        turn = _turn(document, chat)
        if turn is None:
            return None
        known = self._turns.get(conversation) or ()
        repeated = next((one for one in known if _goes_on(one, turn)), None)
        before = repeated or next((one for one in known if _is_alike(one, turn)), None)
        turns = (turn, *(one for one in known if one is not before))[:AGENTS_MAX]
        self._turns.put(conversation, turns, sum(READ_FACTOR * len(one.document.body) for one in turns))
        if before is None or repeated is not None:
            return None
        found = _departure(before, turn, chat)
        return None if found is not None and _begins_anew(found, turn) else found

    def __len__(self) -> int:
        return len(self._turns)


def _turn(document: Document, chat: Chat) -> _Turn | None:
    """Return what is kept of a request: its messages up to the tail; None if it is not looked into."""
    dialogue, place = chat.dialogue, chat.place
    count = len(dialogue.messages) if place is None or place.first is None else place.first
    if not count or len(document.body) > BODY_BYTES_MAX or PREVIOUS_FIELD in document.members:
        return None
    return _Turn(document, dialogue, chat.prefix_id, count)


def _goes_on(before: _Turn, turn: _Turn) -> bool:
    """Say whether a turn repeats all of the one before, byte for byte, which is what most turns do."""
    repeated = before.document.body[slice(*before.span)]
    return before.prefix_id == turn.prefix_id and turn.document.body.startswith(repeated, turn.span.start)


def _is_alike(before: _Turn, turn: _Turn) -> bool:
    """Say whether two turns may be of one history: they have the prefix or the first words in common."""
    return before.prefix_id == turn.prefix_id or before.opening == turn.opening


def _begins_anew(found: Departure, turn: _Turn) -> bool:
    """Say whether a turn has other first words and nothing behind them: it changes no history."""
    is_first = found.path.startswith(f"{turn.dialogue.holder}[{turn.first}]")
    return found.kind is DepartureKind.MISS and is_first and turn.first == turn.messages - 1


def _departure(before: _Turn, turn: _Turn, chat: Chat) -> Departure | None:
    """
    Return how a turn departs from the one before.

    Only what differs in its bytes is decoded: a conversation's history is long, and mostly the same.
    """
    if before.prefix_id != turn.prefix_id:
        old, new = (prefix_parts(one.document, one.dialogue) for one in (before, turn))
        if (found := departure(old, new, turn.document, chat)) is not None:
            return found
    for index in islice(_differing(before, turn), WINDOWS_MAX):
        old, new = (message_parts(one.document, one.dialogue, index, index + 2) for one in (before, turn))
        if (found := departure(old, new, turn.document, chat)) is not None:
            return found
    return None


def _differing(before: _Turn, turn: _Turn) -> Iterator[int]:
    """Yield the messages, by their index, that differ in their bytes."""
    start = min(before.dialogue.opening, turn.dialogue.opening)
    shared = range(start, min(before.messages, turn.messages))
    return (index for index in shared if before.raw(index) != turn.raw(index))


def departure(old: Sequence[Part], new: Sequence[Part], document: Document, chat: Chat) -> Departure | None:
    """Return how a prompt, as `new`, departs from `old`; None if one of the two only goes on for longer."""
    found = first_divergence(old, new)
    if found is None or found.index >= min(len(old), len(new)):
        return None
    places = [part.message for part in (old[found.index], new[found.index]) if part.message is not None]
    message = min(places) if places else None
    kind, path, offset = _kind(old, new, found, message)
    guess = CALL_ID_GUESS if CALL_ID.search(path) else found.guess.value
    return Departure(kind, path, offset, guess, _lost_bytes(document, chat, message))


def _kind(
    old: Sequence[Part], new: Sequence[Part], found: Divergence, message: int | None
) -> tuple[DepartureKind, str, int]:
    """Return what kind of departure a divergence is, and the place that it is told by."""
    path = refined_path(new[found.index], found.offset)
    if message is None:
        return DepartureKind.MISS, path, found.offset
    ours, theirs = _of(old, message), _of(new, message)
    if _words(ours) == _words(theirs) and _rest(ours) == _rest(theirs):
        return DepartureKind.CONTENT_FORM_FLIP, _message_path(ours), 0
    if ASSISTANT in (part.text for part in ours if part.path.endswith(".role")) and not CALL_ID.search(path):
        return DepartureKind.HISTORY_DIVERGED, _message_path(ours), 0
    return DepartureKind.MISS, path, found.offset


def refined_path(part: Part, offset: int) -> str:
    """Return the path of what stands at an offset of a part, as deep as its JSON goes."""
    if part.kind is not PartKind.JSON or not part.text.startswith(("[", "{")):
        return part.path
    inner = path_at(part.text, offset)
    return part.path + ("" if inner.startswith("[") else ".") + inner


def _of(parts: Sequence[Part], message: int) -> list[Part]:
    return [part for part in parts if part.message == message]


def _words(parts: Sequence[Part]) -> str:
    return "".join(part.text for part in parts if part.kind is PartKind.TEXT)


def _rest(parts: Sequence[Part]) -> list[tuple[str, str]]:
    return [(part.path, part.text) for part in parts if part.kind is not PartKind.TEXT]


def _message_path(parts: Sequence[Part]) -> str:
    """Return the path of a message, which all its parts' paths begin with."""
    return parts[0].path.partition("]")[0] + "]"


def _lost_bytes(document: Document, chat: Chat, message: int | None) -> int:
    """Return about how many bytes of the prompt stand behind the beginning of a message."""
    messages = chat.dialogue.messages
    if not messages:
        return 0
    tools = document.members.get("tools")
    if message is None or message >= len(messages):
        tools_bytes = tools.value_span.end - tools.value_span.start if tools else 0
        return messages[-1].end - messages[0].start + tools_bytes
    return messages[-1].end - messages[message].start
