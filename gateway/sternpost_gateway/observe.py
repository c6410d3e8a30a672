"""
The observe stage: what a prompt teaches about its policy's template, and where it departs.

It runs after the answer, so that no client waits for it. What is noted is told once a session, in a metric
and a log line, by place and looks and never by text.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from sternpost_core.content import ContentId, content_id
from sternpost_core.divergence import Part
from sternpost_core.jsonspan import Document, Span, elements, members
from sternpost_core.policy import TailSource
from sternpost_gateway.bounded import Bounded
from sternpost_gateway.bypass import Bypass
from sternpost_gateway.metrics import Metrics
from sternpost_gateway.parts import closing_elements, message_parts, opening_elements, prefix_parts
from sternpost_gateway.plan import Planned
from sternpost_gateway.prompts import Prompts
from sternpost_gateway.segment import Chat, tail_source
from sternpost_gateway.turns import BODY_BYTES_MAX, CALL_ID_GUESS, Departure, departure

logger = logging.getLogger(__name__)

FRONTS_MAX: Final = 1024
"""Prefixes whose elements are known without reading them again, least recently used first out."""

TOLD_MAX: Final = 16384
"""Departures that are remembered as told, least recently used first out."""

MEDIA_FIRST: Final = "MediaFirst"
"""What a departure looks like where an image, or the like, stands in front of words that stay the same."""

MEDIA: Final = re.compile(r"\.content\[0\]")
"""Where such an image stands."""

Told = tuple[str, str, str, str, str]


class Observer:
    """Learns from each request."""

    def __init__(self, prompts: Prompts, metrics: Metrics, told_max: int = TOLD_MAX) -> None:
        self._prompts = prompts
        self._metrics = metrics
        self._told: Bounded[Told, bool] = Bounded(told_max)
        self._fronts: Bounded[ContentId, list[ContentId]] = Bounded(FRONTS_MAX)

    def observe(self, planned: Planned) -> None:
        """Learn from a request that an engine has answered; one that no policy matches teaches nothing."""
        chat, policy = planned.segmented.chat, planned.policy
        document = planned.segmented.canonicalized.document
        if chat is None or policy is None or document is None or chat.dialogue.is_bare:
            return
        template = self._prompts.learning.observe(
            policy.full_name, self._front(document, chat), _closing(planned, document, chat)
        )
        self._metrics.template_stability.labels(policy.full_name).set(template.stability)
        departures = (
            self._prefix_departure(planned, document, chat),
            self._tail_departure(planned, document, chat),
            self._turn_departure(planned),
        )
        # Both may have come upon the same, which is lost once.
        for found in {(one.kind, one.path): one for one in departures if one is not None}.values():
            self._tell(planned, policy.full_name, found)

    def _front(self, document: Document, chat: Chat) -> list[ContentId]:
        """Return the ids of what a prompt begins with: prefixes of one id have the same elements."""
        front = self._fronts.get(chat.prefix_id)
        if front is None:
            front = opening_elements(document, chat.dialogue)
            self._fronts.put(chat.prefix_id, front)
        return front

    def _prefix_departure(self, planned: Planned, document: Document, chat: Chat) -> Departure | None:
        """Return where a prefix that is new departs from the one before it."""
        assert planned.policy is not None, "a policy's prompt is observed"
        if len(document.body) > BODY_BYTES_MAX:
            return None
        front = front_of(document, chat)
        own: list[Part] = []

        def parts() -> Sequence[Part]:
            own.extend(front.parts(document, chat))
            return own

        before = self._prompts.learning.departs(planned.policy.full_name, front.front_id, parts)
        if before is None:
            return None
        found = departure(before, own, document, chat)
        if found is not None and front.has_media and MEDIA.search(found.path):
            return replace(found, guess=MEDIA_FIRST)
        return None if front.has_media else found

    def _tail_departure(self, planned: Planned, document: Document, chat: Chat) -> Departure | None:
        """Return where a tail that is new departs from the one before it: none of it is reused."""
        place = chat.place
        if chat.tail_id is None or place is None or place.first is None or place.inside is not None:
            return None
        assert planned.policy is not None, "a policy's prompt is observed"
        is_reused = planned.wish is not None or planned.bypass is Bypass.TAIL_FIRST
        if not is_reused or len(document.body) > BODY_BYTES_MAX:
            return None
        first, end = place.first, place.first + place.count
        own = message_parts(document, chat.dialogue, first, end)
        before = self._prompts.learning.departs(
            planned.policy.full_name, chat.tail_id, lambda: renumbered(own, -first), is_tail=True
        )
        found = departure(renumbered(before, first), own, document, chat) if before else None
        if found is None:
            return None
        messages = chat.dialogue.messages
        return replace(found, lost_bytes=messages[end - 1].end - messages[first].start)

    def _turn_departure(self, planned: Planned) -> Departure | None:
        document, chat = planned.segmented.canonicalized.document, planned.segmented.chat
        if planned.conversation is None or document is None or chat is None:
            return None
        found = self._prompts.turns.take(planned.conversation, document, chat)
        if found is not None and found.guess == CALL_ID_GUESS:
            # Where the template prints no ids, the tokens are the same, and so nothing is lost.
            is_printed = (
                self._prompts.chat_templates.of(planned.identified.model).prints_call_ids is not False
            )
            return found if is_printed else None
        return found

    def _tell(self, planned: Planned, policy: str, found: Departure) -> None:
        lost = round(self._prompts.tokens(found.lost_bytes))
        self._prompts.learning.missed(policy, (found.kind.value, found.path, found.guess), found.offset, lost)
        self._metrics.departures.labels(policy, found.kind.value, found.guess).inc()
        self._metrics.departed_tokens.labels(policy, found.kind.value, found.guess).inc(lost)
        identified = planned.identified
        told = (policy, identified.tenant or "", identified.session or "", found.kind.value, found.path)
        if self._told.get(told) is None:
            logger.info(
                "policy %s: %s at %s char %d, looks like %s, about %d tokens behind it",
                policy,
                found.kind.value,
                found.path,
                found.offset,
                found.guess,
                lost,
            )
        self._told.put(told, True)


def renumbered(parts: Sequence[Part], by: int) -> list[Part]:
    """Return the parts of messages as those of messages that stand so much further behind."""
    return [
        replace(part, path=part.path.replace(f"[{part.message}]", f"[{number}]", 1), message=number)
        for part in parts
        if part.message is not None
        for number in [part.message + by]
    ]


@dataclass(frozen=True, slots=True)
class Front:
    """
    What of a prompt is compared with other prompts of its policy.

    That is the prefix, and where an image or the like stands in front of words, the message that they are in:
    the words could be fixed, and nothing behind the image ever is.
    """

    front_id: ContentId
    has_media: bool

    def parts(self, document: Document, chat: Chat) -> list[Part]:
        """Return the parts to compare."""
        more = 1 + chat.dialogue.has_moved if self.has_media else 0
        return prefix_parts(document, chat.dialogue, more)


def front_of(document: Document, chat: Chat) -> Front:
    """Return what of a prompt is compared with others."""
    dialogue = chat.dialogue
    if not dialogue.middle:
        return Front(chat.prefix_id, has_media=False)
    first = dialogue.middle[0]
    if not _has_media_first(document, first):
        return Front(chat.prefix_id, has_media=False)
    raw = document.body[slice(*first)]
    return Front(content_id("front", [("prefix", chat.prefix_id.encode()), ("first", raw)]), has_media=True)


def _has_media_first(document: Document, message: Span) -> bool:
    """Say whether a message begins with a part that is not text, and has text behind it."""
    if document.text[message.start] != "{":
        return False
    content = members(document, message).get("content")
    if content is None or document.text[content.value_span.start] != "[":
        return False
    is_text = [_is_text(document, part) for part in elements(document, content.value_span)]
    return any(is_text) and not is_text[0]


def _is_text(document: Document, part: Span) -> bool:
    return document.text[part.start] == "{" and "text" in members(document, part)


def _closing(planned: Planned, document: Document, chat: Chat) -> list[ContentId]:
    """Return the ids of what could be fixed at a prompt's end; a tail is at the end in any layout."""
    if tail_source(planned.policy) is TailSource.LEARNED:
        return closing_elements(document, chat.dialogue)
    return [] if chat.tail_id is None else [chat.tail_id]
