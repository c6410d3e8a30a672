"""
Where a body holds its prompt: one shape for chats, responses and completions.

A chat has its messages in `messages`. A response has `instructions`, a string that stands in front of all
messages as a system message would, and `input`: its messages, or a string that is the user's only one. A
completion has a `prompt`, a string of which nobody says what is fixed about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sternpost_core.jsonspan import Document, Span, elements, members
from sternpost_gateway.receive import CHAT_PATH, COMPLETIONS_PATH, RESPONSES_PATH
from sternpost_gateway.roles import is_fixed

INSTRUCTIONS: Final = "instructions"

HOLDERS: Final[Mapping[str, str]] = {
    CHAT_PATH: "messages",
    RESPONSES_PATH: "input",
    COMPLETIONS_PATH: "prompt",
}
"""The member that holds the messages, or the string in their place, by path."""

LISTED: Final = frozenset({"messages", "input"})
"""The members that may hold a list of messages; a list of prompts is not one."""

MOVED_MARK: Final = b"<system-context>\\n"
"""What stands in front of lines that were moved out of the prefix, as JSON writes it inside a string."""

WRITTEN: Final = frozenset({"input", "prompt"})
"""The members that may be a string instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogue:
    """
    A prompt by its spans; `holder` is the member it stands in.

    `array` is the list of messages, of which the first `opening` are the system's or the developer's. With
    `has_moved`, the message behind them holds what was moved out of them. Without a list, `text` is the JSON
    string that stands in its place. `instructions` is the JSON string in front.
    """

    holder: str
    array: Span | None = None
    messages: tuple[Span, ...] = ()
    opening: int = 0
    has_moved: bool = False
    text: Span | None = None
    instructions: Span | None = None

    @property
    def middle(self) -> tuple[Span, ...]:
        """Return the messages behind the opening, and behind what was moved out of it."""
        return self.messages[self.opening + self.has_moved :]

    @property
    def is_bare(self) -> bool:
        """Say whether the text is the whole prompt, to which no template adds anything."""
        return self.holder == HOLDERS[COMPLETIONS_PATH]


def dialogue_of(document: Document, path: str) -> Dialogue | None:
    """Return the prompt of a request to `path`, None if the body has none that can be read."""
    holder = HOLDERS.get(path, "")
    member = document.members.get(holder)
    if member is None:
        return None
    instructions = _instructions(document) if path == RESPONSES_PATH else None
    begins = document.text[member.value_span.start]
    if begins == "[" and holder in LISTED:
        messages = elements(document, member.value_span)
        opening, has_moved = _opening(document, messages, is_led=instructions is not None)
        return Dialogue(
            holder=holder,
            array=member.value_span,
            messages=messages,
            opening=opening,
            has_moved=has_moved,
            instructions=instructions,
        )
    if begins == '"' and holder in WRITTEN:
        return Dialogue(holder=holder, text=member.value_span, instructions=instructions)
    return None


def message_fields(document: Document, message: Span, tag: str) -> Iterable[tuple[str, bytes]]:
    """Yield a message's members by name, so that their order does not count, each value as it was sent."""
    for name, member in sorted(members(document, message).items()):
        yield f"{tag}.{name}", document.body[slice(*member.value_span)]


def raw_member(document: Document, name: str) -> bytes | None:
    """Return a top-level member's value as it was sent."""
    member = document.members.get(name)
    return None if member is None else document.body[slice(*member.value_span)]


def prompt_end(dialogue: Dialogue) -> int:
    """Return the byte at which what holds the prompt ends."""
    held = dialogue.array or dialogue.text
    assert held is not None, "a prompt stands somewhere"
    return held.end


def _opening(document: Document, messages: tuple[Span, ...], *, is_led: bool) -> tuple[int, bool]:
    """
    Return how many leading messages are fixed, and whether what was moved out of them follows.

    That is moved out of something in front, which `is_led` says of instructions, and stands before the user's
    words; elsewhere the mark is an application's own.
    """
    fixed = next((at for at, span in enumerate(messages) if not is_fixed(document, span)), len(messages))
    last = fixed - 1
    if last < (0 if is_led else 1) or fixed == len(messages) or not _is_moved(document, messages[last]):
        return fixed, False
    return last, True


def _is_moved(document: Document, message: Span) -> bool:
    """Say whether a message holds lines that were moved out of the prefix, as its first words tell."""
    content = members(document, message).get("content")
    return content is not None and document.body.startswith(b'"' + MOVED_MARK, content.value_span.start)


def _instructions(document: Document) -> Span | None:
    member = document.members.get(INSTRUCTIONS)
    is_text = member is not None and document.text[member.value_span.start] == '"'
    return member.value_span if member is not None and is_text else None
