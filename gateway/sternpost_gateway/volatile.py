"""
Volatile lines: where a chat's prefix differs from request to request, and what the policy says about it.

Text is looked at line by line, and a line's outcome is remembered: most lines of a prompt come again with
every request, so that only the new ones cost anything. What is found in a line does not depend on others, so
that taking lines away never uncovers another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from sternpost_core.jsonspan import Document, Span, elements, members, value
from sternpost_core.policy import Detector, VolatileAction, VolatileRule
from sternpost_core.volatile import detect
from sternpost_gateway.bounded import ENTRY_SIZE, Bounded
from sternpost_gateway.dialogue import INSTRUCTIONS, Dialogue
from sternpost_gateway.roles import USER_ROLE, role_of

PREFIX_CHARS_MAX: Final = 128 * 1024
PREFIX_LINES_MAX: Final = 4096
"""Characters and lines of a prefix that is looked into; a larger one is left alone as a whole."""

LINE_CHARS_MAX: Final = 1024
"""Characters of a line that a policy's own patterns run over; longer lines are passed over."""

RULE_SETS_MAX: Final = 32
"""Sets of rules whose lines are remembered."""

MEMORY_CHARS_MAX: Final = 1024 * 1024
"""Characters of the lines that are remembered for one set of rules."""

UNKNOWN: Final = True
"""Stands for the hits of a line that has not been looked at: it may have some."""

PATTERN: Final = "Pattern"
"""What a span is called that a policy's own pattern has found."""


TEXT_TYPES: Final = frozenset({b'"text"', b'"input_text"'})
"""The types of parts that hold a text to read, in chats and in responses, as raw JSON."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text of the prefix: its path in the body, its JSON string, and the string decoded."""

    path: str
    span: Span
    text: str


@dataclass(frozen=True, slots=True)
class Hit:
    """A volatile span of a line: where it begins, what it looks like, and what the policy says about it."""

    start: int
    detector: str
    action: VolatileAction


@dataclass(frozen=True, slots=True)
class VolatileLine:
    """
    Line `number` of the text with the index `text`, and what is in it.

    It has the characters of that text from `start` up to, not including, `end`, where its line break is.
    """

    text: int
    number: int
    start: int
    end: int
    hits: tuple[Hit, ...]

    def asks_for(self, action: VolatileAction) -> bool:
        """Say whether a rule asks for this about anything in the line."""
        return any(hit.action is action for hit in self.hits)


def texts_of(document: Document, dialogue: Dialogue) -> list[Text]:
    """Return the texts of the prefix: the instructions, and the leading messages' strings and text parts."""
    found = [] if dialogue.instructions is None else [(INSTRUCTIONS, dialogue.instructions)]
    for index, message in enumerate(dialogue.messages[: dialogue.opening]):
        found += _strings(document, message, f"{dialogue.holder}[{index}]")
    return [Text(path, span, value(document, span)) for path, span in found]


def user_text(document: Document, dialogue: Dialogue) -> Span | None:
    """Return the JSON string that the first user message begins with, None if there is none."""
    if dialogue.text is not None:
        return None if dialogue.is_bare else dialogue.text
    user = next((message for message in dialogue.middle if role_of(document, message) == USER_ROLE), None)
    return None if user is None else leading_text(document, user)


def leading_text(document: Document, message: Span) -> Span | None:
    """Return the JSON string that a message begins with, None if it begins with something else."""
    content = members(document, message).get("content")
    if content is None:
        return None
    if document.text[content.value_span.start] != "[":
        return _string(document, content.value_span)
    parts = elements(document, content.value_span)
    return _part_text(document, parts[0]) if parts else None


def _strings(document: Document, message: Span, path: str) -> Iterator[tuple[str, Span]]:
    content = members(document, message).get("content")
    if content is None:
        return
    if document.text[content.value_span.start] == "[":
        for number, part in enumerate(elements(document, content.value_span)):
            if (text := _part_text(document, part)) is not None:
                yield f"{path}.content[{number}]", text
    elif (text := _string(document, content.value_span)) is not None:
        yield path, text


def _part_text(document: Document, part: Span) -> Span | None:
    if document.text[part.start] != "{":
        return None
    found = members(document, part)
    kind, text = found.get("type"), found.get("text")
    if kind is None or text is None or document.body[slice(*kind.value_span)] not in TEXT_TYPES:
        return None
    return _string(document, text.value_span)


def _string(document: Document, span: Span) -> Span | None:
    return span if document.text[span.start] == '"' else None


class VolatileLines:
    """What is in lines, by the rules that they are looked at with."""

    def __init__(self, rule_sets_max: int = RULE_SETS_MAX, chars_max: int = MEMORY_CHARS_MAX) -> None:
        self._chars_max = chars_max
        self._rule_sets: Bounded[tuple[bool, tuple[VolatileRule, ...]], _RuleSet] = Bounded(rule_sets_max)

    def find(
        self, texts: Sequence[Text], rules: tuple[VolatileRule, ...], *, report: bool
    ) -> list[VolatileLine]:
        """Return the volatile lines of texts; without `report`, only what a rule names counts."""
        if _too_large(texts):
            return []
        rule_set = self._rule_sets.get((report, rules))
        if rule_set is None:
            rule_set = _RuleSet(rules, self._chars_max, report=report)
            self._rule_sets.put((report, rules), rule_set)
        return [line for index, text in enumerate(texts) for line in rule_set.find(index, text.text)]

    def __len__(self) -> int:
        """Return how many lines are remembered."""
        return sum(map(len, self._rule_sets.values()))


class _RuleSet:
    """A policy's rules, ready to run, and what they have found."""

    def __init__(self, rules: tuple[VolatileRule, ...], chars_max: int, *, report: bool) -> None:
        self._actions: dict[Detector, VolatileAction] = (
            dict.fromkeys(Detector, VolatileAction.REPORT) if report else {}
        )
        self._actions |= {rule.detect: rule.action for rule in rules if rule.detect is not None}
        self._patterns = [
            (re.compile(rule.pattern), rule.action) for rule in rules if rule.pattern is not None
        ]
        self._chars_max = chars_max
        self._known: dict[str, tuple[Hit, ...]] = {}
        self._known_chars = 0

    def find(self, index: int, text: str) -> list[VolatileLine]:
        """Return the volatile lines of a text."""
        lines, known = text.split("\n"), self._known
        # A line without hits is passed over in this one look, which is what nearly all lines get.
        numbers = [number for number, line in enumerate(lines) if known.get(line, UNKNOWN)]
        found = [(number, hits) for number in numbers if (hits := self._hits(lines[number]))]
        if not found:
            return []
        lengths = list(accumulate(map(len, lines), initial=0))
        return [
            VolatileLine(index, number, lengths[number] + number, lengths[number + 1] + number, hits)
            for number, hits in found
        ]

    def __len__(self) -> int:
        return len(self._known)

    def _hits(self, line: str) -> tuple[Hit, ...]:
        """Return what is in a line, in no order, and remember it; when too much is known, begin anew."""
        hits = self._known.get(line)
        if hits is None:
            hits = (*self._detected(line), *self._matched(line.removesuffix("\r")))
            if self._known_chars > self._chars_max:
                self._known.clear()
                self._known_chars = 0
            self._known[line] = hits
            self._known_chars += len(line) + ENTRY_SIZE
        return hits

    def _detected(self, line: str) -> Iterator[Hit]:
        for span in detect(line) if self._actions else ():
            if (action := self._actions.get(span.detector)) is not None:
                yield Hit(span.start, span.detector.value, action)

    def _matched(self, line: str) -> Iterator[Hit]:
        if len(line) > LINE_CHARS_MAX:
            return
        for pattern, action in self._patterns:
            if (match := pattern.search(line)) is not None:
                yield Hit(match.start(), PATTERN, action)


def _too_large(texts: Sequence[Text]) -> bool:
    return (
        sum(len(text.text) for text in texts) > PREFIX_CHARS_MAX
        or sum(text.text.count("\n") + 1 for text in texts) > PREFIX_LINES_MAX
    )
