"""
Which tails are worth finding out about and building: those that come again.

Nobody can tell that of one that is new. But where a policy's tails have been nothing but new for a while, a
clock or the like stands in them or in front of them, and each would cost its engine four renderings and a
build that no request ever reads. From then on a tail has to come a second time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from sternpost_core.content import ContentId
from sternpost_gateway.bounded import Bounded

POLICIES_MAX: Final = 1024
"""Policies whose tails are looked at, least recently used first out."""

TAILS_MAX: Final = 256
"""Tails of one policy that are remembered as seen."""

NEW_MAX: Final = 8
"""New tails of a policy, one after the other, that are built at first sight."""


@dataclass(slots=True)
class _Tails:
    seen: Bounded[ContentId, bool] = field(default_factory=lambda: Bounded(TAILS_MAX))
    new_in_a_row: int = 0


class Recurrence:
    """What is known of all policies' tails that requests have missed."""

    def __init__(self) -> None:
        self._policies: Bounded[str, _Tails] = Bounded(POLICIES_MAX)

    def is_expected(self, policy: str, template_id: ContentId) -> bool:
        """Say whether a tail that a request has missed may be expected to come again, and note it."""
        tails = self._policies.get(policy)
        if tails is None:
            tails = _Tails()
            self._policies.put(policy, tails)
        is_new = tails.seen.get(template_id) is None
        tails.seen.put(template_id, True)
        tails.new_in_a_row = tails.new_in_a_row + 1 if is_new else 0
        return tails.new_in_a_row <= NEW_MAX
