"""
Whether conversations come through other gateways, too.

Nobody tells a gateway how many stand beside it, or what spreads its clients over them. But a conversation
that goes on, and of which this gateway has not seen the beginning, began somewhere else.
"""

from __future__ import annotations

from typing import Final

from sternpost_gateway.bounded import Bounded
from sternpost_gateway.plan import Planned
from sternpost_gateway.roles import ASSISTANT_ROLE, role_of

CONVERSATIONS_MAX: Final = 32_768
"""Conversations that are remembered, some 8 MiB, least recently used first out."""

WEIGHT: Final = 1 / 32
"""Of one request in the average: one alone may be left from before a restart, and two in a row are more."""

SHARE_MAX: Final = 0.05
"""Of the requests of conversations that go on; where fewer are unknown, a gateway is as good as alone."""


class Elsewhere:
    """Remembers conversations, and how many of those that go on were not seen before."""

    def __init__(self) -> None:
        self._seen: Bounded[str, bool] = Bounded(CONVERSATIONS_MAX)
        self._unknown_share = 0.0

    @property
    def is_alone(self) -> bool:
        """Say whether what this gateway has seen is all there is, but for a few requests."""
        return self._unknown_share < SHARE_MAX

    def note(self, conversation: str, *, goes_on: bool) -> None:
        """Take in a request by its conversation key; one that goes on holds an answer already."""
        is_unknown = self._seen.get(conversation) is None
        if is_unknown:
            self._seen.put(conversation, True)
        if goes_on:
            self._unknown_share += WEIGHT * (is_unknown - self._unknown_share)


def goes_on(planned: Planned) -> bool:
    """Say whether a chat holds an answer to its first message."""
    chat, document = planned.segmented.chat, planned.segmented.canonicalized.document
    if chat is None or document is None:
        return False
    return any(role_of(document, message) == ASSISTANT_ROLE for message in chat.dialogue.middle[1:2])
