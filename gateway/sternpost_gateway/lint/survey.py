"""
Looking through a log for what differs in the prefix of its prompts, by the gateway's own detectors.

Everything is counted in bounded space. Of a prompt's text, no more than one short excerpt of each finding is
kept, and that only if it is asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from sternpost_core.content import content_id
from sternpost_core.divergence import Difference, Divergence, Part, PartKind, first_divergence, parting_place
from sternpost_core.jsonspan import Document, Span
from sternpost_core.policy import Detector
from sternpost_core.policy_parse import NAME_LENGTH_MAX, NAMES_MAX
from sternpost_core.template import STABLE_SHARE, FrequentRuns, Template, TemplateSummary
from sternpost_core.text import shorten
from sternpost_gateway.canonicalize import canonicalize
from sternpost_gateway.dialogue import dialogue_of
from sternpost_gateway.identify import text_member
from sternpost_gateway.lint.fixes import PolicyNames, detector_fix, pin_fix, policy_of
from sternpost_gateway.lint.request import LoggedRequest
from sternpost_gateway.lint.rewrite import MODEL_FIELD, identified_as
from sternpost_gateway.parts import message_parts, opening_elements, parts_of, prefix_length
from sternpost_gateway.segment import Chat, chat_of
from sternpost_gateway.tool_pins import ToolPins, ToolsOutcome
from sternpost_gateway.volatile import Text, VolatileLines, texts_of

REFERENCES_MAX: Final = 8
"""Earlier prompts that each prompt is compared with: the one that it follows longest counts."""

PLACES_MAX: Final = 1024
"""Places, by path, looks and number, whose values are told apart."""

VALUES_MAX: Final = 64
"""Values of one place that are counted at once."""

EXCERPT_CHARS_MAX: Final = 60
"""Characters of a prompt that are shown where it is asked for."""


HARMLESS: Final = frozenset({Difference.SPACING})
"""Differences that no engine sees, because it reads the tools before it renders them."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a log something was found first: file, line, path in the body and characters in there."""

    file: str
    line: int
    path: str
    offset: int
    excerpt: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VolatileSpan:
    """A volatile span of one prompt, with its line, and how many characters stand behind its beginning."""

    path: str
    offset: int
    detector: Detector
    line: str
    chars_behind: int
    chars_beside: int


@dataclass(slots=True)
class Sighting:
    """
    How often something was found, where first, and what it said how often.

    `chars_behind` is what the prefix goes on for behind it, `chars_beside` how much of that is in its line.
    """

    first: Place
    requests: int = 0
    chars_behind: int = 0
    chars_beside: int = 0
    values: FrequentRuns = field(default_factory=lambda: FrequentRuns(VALUES_MAX))

    def count(self, span: VolatileSpan) -> None:
        """Count it in one more request."""
        self.requests += 1
        self.chars_behind += span.chars_behind
        self.chars_beside += span.chars_beside
        self.values.add(content_id("line", [("text", span.line.encode())]))

    @property
    def varies(self) -> bool:
        """Say whether it is not nearly always the same."""
        most = self.values.most_frequent()
        return most is None or most[1] < STABLE_SHARE * self.requests


@dataclass(slots=True)
class Parting:
    """How often prompts parted from the nearest earlier one because of something, and what was behind it."""

    first: Place
    requests: int = 0
    chars_behind: int = 0


class Partings:
    """Where prompts begin to differ within their prefix, each from the one that it follows longest."""

    def __init__(self, *, show_text: bool) -> None:
        self.found: dict[str, Parting] = {}
        self._show_text = show_text
        self._references: deque[Sequence[Part]] = deque(maxlen=REFERENCES_MAX)

    def observe(self, file: str, request: LoggedRequest, document: Document) -> None:
        """Compare a prompt with those before it, and remember it."""
        dialogue = dialogue_of(document, request.path)
        if dialogue is None:
            return
        parts = parts_of(document, dialogue)
        fixed = prefix_length(parts, dialogue)
        nearest = self._nearest(parts)
        divergence = None if nearest is None else first_divergence(nearest, parts)
        if divergence is not None and divergence.index < fixed and divergence.guess not in HARMLESS:
            self._count(file, request, parts[:fixed], divergence)
        self._references.append(parts)

    def _nearest(self, parts: Sequence[Part]) -> Sequence[Part] | None:
        """Return the reference that a prompt follows longest."""
        return max(
            self._references,
            key=lambda reference: parting_place(reference, parts) or (len(parts), 0),
            default=None,
        )

    def _count(
        self, file: str, request: LoggedRequest, prefix: Sequence[Part], divergence: Divergence
    ) -> None:
        kind = divergence.guess.value
        text = prefix[divergence.index].text[divergence.offset :]
        if kind not in self.found:
            excerpt = excerpt_of(text) if self._show_text else None
            place = Place(file, request.number, divergence.path, divergence.offset, excerpt)
            self.found[kind] = Parting(place)
        parting = self.found[kind]
        parting.requests += 1
        parting.chars_behind += len(text) + sum(len(part.text) for part in prefix[divergence.index + 1 :])


class Survey:
    """What was found in a log so far."""

    def __init__(self, *, show_text: bool) -> None:
        self.requests = 0
        self.chars = 0
        self.volatile: dict[tuple[str, Detector, int], Sighting] = {}
        self.tail_volatile: dict[Detector, Sighting] = {}
        self.tools: dict[str, Sighting] = {}
        self.first_tail: Place | None = None
        self._models: dict[str, None] = {}
        self.partings = Partings(show_text=show_text)
        self._show_text = show_text
        self._lines = VolatileLines()
        self._pins = ToolPins()
        self._templates = (TemplateSummary(), TemplateSummary())
        # Every detector's lines are taken out to see what is left to differ.
        fixes = (pin_fix(), *map(detector_fix, Detector))
        self._policy = policy_of(fixes, PolicyNames())

    def observe(self, file: str, request: LoggedRequest) -> None:
        """Look at one request."""
        document = request.document
        self.requests += 1
        self.chars += len(document.body)
        if (model := text_member(document, MODEL_FIELD)) and len(self._models) <= NAMES_MAX:
            self._models[model] = None
        canonical = canonicalize(identified_as(request, self._policy), self._pins, self._lines)
        assert canonical.document is not None, "logged requests have been read"
        self._observe_volatile(file, request)
        self._observe_tools(file, request, canonical.document, canonical.tools)
        self._observe_templates(file, request, canonical.document)
        self.partings.observe(file, request, canonical.document)

    @property
    def models(self) -> tuple[str, ...]:
        """Return the models that a policy may name; () for all, where it cannot name each."""
        can_name = len(self._models) <= NAMES_MAX and all(
            len(model) <= NAME_LENGTH_MAX for model in self._models
        )
        return tuple(self._models) if can_name else ()

    @property
    def template_before(self) -> Template | None:
        """Return the template of the prompts as they are."""
        return self._templates[0].template()

    @property
    def template_after(self) -> Template | None:
        """Return the template of the prompts with everything volatile taken out."""
        return self._templates[1].template()

    def _observe_volatile(self, file: str, request: LoggedRequest) -> None:
        dialogue = dialogue_of(request.document, request.path)
        if dialogue is None:
            return
        texts = texts_of(request.document, dialogue)
        numbers: dict[tuple[str, Detector], int] = {}
        for span in self._volatile_spans(texts):
            number = numbers[span.path, span.detector] = numbers.get((span.path, span.detector), -1) + 1
            key = (span.path, span.detector, number)
            if key in self.volatile or len(self.volatile) < PLACES_MAX:
                sighting = self.volatile.setdefault(key, Sighting(self._place(file, request, span)))
                sighting.count(span)

    def _observe_tail(self, file: str, request: LoggedRequest, document: Document, chat: Chat) -> None:
        """Look for what changes in a tail, which no rule moves: the first of each kind."""
        place = chat.place
        if place is None or place.first is None or place.inside is not None:
            return
        parts = message_parts(document, chat.dialogue, place.first, place.first + place.count)
        texts = [Text(part.path, Span(0, 0), part.text) for part in parts if part.kind is PartKind.TEXT]
        first = {span.detector: span for span in reversed(list(self._volatile_spans(texts)))}
        for detector, span in first.items():
            sighting = self.tail_volatile.setdefault(detector, Sighting(self._place(file, request, span)))
            sighting.count(span)

    def _place(self, file: str, request: LoggedRequest, span: VolatileSpan) -> Place:
        excerpt = excerpt_of(span.line) if self._show_text else None
        return Place(file, request.number, span.path, span.offset, excerpt)

    def _volatile_spans(self, texts: Sequence[Text]) -> Iterator[VolatileSpan]:
        behind = [*accumulate((len(text.text) for text in reversed(texts)), initial=0)][-2::-1]
        for line in self._lines.find(texts, (), report=True):
            text = texts[line.text]
            for hit in line.hits:
                offset = line.start + hit.start
                yield VolatileSpan(
                    path=text.path,
                    offset=offset,
                    detector=Detector(hit.detector),
                    line=text.text[line.start : line.end],
                    chars_behind=len(text.text) - offset + behind[line.text],
                    chars_beside=line.end - offset,
                )

    def _observe_tools(
        self, file: str, request: LoggedRequest, pinned: Document, outcome: ToolsOutcome | None
    ) -> None:
        if outcome is not ToolsOutcome.PINNED:
            return
        ours, theirs = _tools_part(request.document), _tools_part(pinned)
        divergence = first_divergence([theirs], [ours])
        assert divergence is not None, "a pinned form differs from what came"
        if divergence.guess in HARMLESS:
            return
        kind = divergence.guess.value
        if kind not in self.tools:
            self.tools[kind] = Sighting(Place(file, request.number, divergence.path, divergence.offset))
        self.tools[kind].requests += 1

    def _observe_templates(self, file: str, request: LoggedRequest, canonical: Document) -> None:
        for summary, document in zip(self._templates, (request.document, canonical), strict=True):
            chat = chat_of(document, path=request.path)
            if chat is None:
                continue
            front = opening_elements(document, chat.dialogue)
            summary.observe(front, [chat.tail_id] if chat.tail_id else [])
            if self.first_tail is None and chat.place is not None:
                path = f"{chat.dialogue.holder}[{chat.place.first}]"
                self.first_tail = Place(file, request.number, path, 0)
            if document is request.document:
                self._observe_tail(file, request, document, chat)


def excerpt_of(text: str) -> str:
    """Return the little of a text that may be shown, on one line."""
    return shorten(" ".join(text[: 2 * EXCERPT_CHARS_MAX].split()), EXCERPT_CHARS_MAX)


def _tools_part(document: Document) -> Part:
    span = document.members["tools"].value_span
    return Part("tools", PartKind.TOOLS, None, document.body[slice(*span)].decode())
