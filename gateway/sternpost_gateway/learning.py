"""
Learning: what most prompts of each policy begin and end with, and what breaks that.

Prompts are counted by the content ids of their fixed elements. Of one prompt for each policy the fixed parts
are kept as text, in memory only, so that the place can be named where another prefix or tail departs. Each
gateway learns by itself: two of them may use a tail some requests apart, which costs reuse and nothing else,
because a learned tail is never moved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from sternpost_core.content import ContentId
from sternpost_core.divergence import Part
from sternpost_core.template import WITHDRAWN_SHARE, FixedRun, Template, TemplateSummary
from sternpost_gateway.bounded import Bounded

POLICIES_MAX: Final = 1024
"""Policies that are learned about, least recently used first out."""

WINDOW: Final = 2000
"""Prompts after which what was counted weighs half, so that a changed template is noticed within minutes."""

JUDGED_EVERY: Final = 16
"""Prompts between two looks at what was counted: a look costs more than a count."""

SEGMENTS_MAX: Final = 256
"""Prefixes of one policy, and tails, that are remembered: they are warm, and no miss when they come again."""

EXAMPLE_CHARS_MAX: Final = 256 * 1024
"""Characters of the prefix, and of the tail, that is kept for comparison."""

MISSES_MAX: Final = 32
"""Places at which prompts of one policy depart, most recent first, that are shown."""

MissKey = tuple[str, str, str]
"""The kind of a departure, its path and its guess."""


@dataclass(slots=True)
class Miss:
    """How often prompts departed at one place, and about what that cost; `offset` is the last one's."""

    count: int = 0
    lost_tokens: int = 0
    offset: int = 0


@dataclass(slots=True)
class SegmentsSeen:
    """The prefixes of a policy, or its tails, that have been seen, and the parts of the last new one."""

    ids: Bounded[ContentId, bool] = field(default_factory=lambda: Bounded(SEGMENTS_MAX))
    example: tuple[Part, ...] = ()


@dataclass(slots=True)
class PolicyLearning:
    """What is known about one policy's prompts; `tail` is the learned tail in use."""

    summary: TemplateSummary = field(default_factory=lambda: TemplateSummary(WINDOW))
    template: Template | None = None
    tail: FixedRun | None = None
    observed: int = 0
    prefixes: SegmentsSeen = field(default_factory=SegmentsSeen)
    tails: SegmentsSeen = field(default_factory=SegmentsSeen)
    misses: Bounded[MissKey, Miss] = field(default_factory=lambda: Bounded(MISSES_MAX))


class Learning:
    """What is learned about all policies' prompts."""

    def __init__(self, policies_max: int = POLICIES_MAX) -> None:
        self._policies: Bounded[str, PolicyLearning] = Bounded(policies_max)

    def tail(self, policy: str) -> FixedRun | None:
        """Return the learned tail that a policy's requests may reuse, None while there is none."""
        known = self._policies.get(policy)
        return known.tail if known else None

    def observe(self, policy: str, front: Sequence[ContentId], end: Sequence[ContentId]) -> Template:
        """Count a prompt by the fixed elements of its two ends, and return the template as last judged."""
        known = self._known(policy)
        known.summary.observe(front, end)
        known.observed += 1
        if known.template is None or known.observed < JUDGED_EVERY or known.observed % JUDGED_EVERY == 0:
            template = known.summary.template()
            assert template is not None, "a prompt has just been counted"
            known.template = template
            known.tail = judged_tail(known.tail, template, known.summary)
        return known.template

    def departs(
        self, policy: str, segment: ContentId, parts: Callable[[], Sequence[Part]], *, is_tail: bool = False
    ) -> tuple[Part, ...] | None:
        """
        Return the prefix, or the tail, that a new one is to be compared with; None if there is none.

        One that came before is warm: only one that is new departs, from the one that came last. `parts`
        gives the new one's own, which are kept.
        """
        known = self._known(policy)
        seen = known.tails if is_tail else known.prefixes
        is_new = seen.ids.get(segment) is None
        seen.ids.put(segment, True)
        if not is_new:
            return None
        example, own = seen.example, tuple(parts())
        if sum(len(part.text) for part in own) <= EXAMPLE_CHARS_MAX:
            seen.example = own
        return example or None

    def missed(self, policy: str, key: MissKey, offset: int, lost_tokens: int) -> None:
        """Note a departure."""
        misses = self._known(policy).misses
        miss = misses.get(key) or Miss()
        miss.count, miss.lost_tokens, miss.offset = miss.count + 1, miss.lost_tokens + lost_tokens, offset
        misses.put(key, miss)

    def policies(self) -> tuple[tuple[str, PolicyLearning], ...]:
        """Return what is known about each policy."""
        return self._policies.items()

    def _known(self, policy: str) -> PolicyLearning:
        known = self._policies.get(policy)
        if known is None:
            known = PolicyLearning()
            self._policies.put(policy, known)
        return known


def judged_tail(in_use: FixedRun | None, template: Template, summary: TemplateSummary) -> FixedRun | None:
    """
    Return the tail to use from now on.

    One is taken up when the template is stable, and kept until that is clearly so no more: a share that
    wavers about one bound must not switch reuse on and off.
    """
    if template.is_stable and template.tail.length:
        return template.tail
    if in_use is None:
        return None
    share = template.prefix.share + summary.tail_share(in_use) - 1.0
    return in_use if share >= WITHDRAWN_SHARE else None
