"""
What is known about tails: their tokens, and which engine holds them.

Everything is bounded, least recently used first out; nothing here is more than a belief, because the engine
compares token ids itself. All methods are synchronous and quick: the hot path calls them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from sternpost_core.clock import Clock
from sternpost_core.content import ContentId
from sternpost_gateway.bounded import Bounded
from sternpost_gateway.bypass import Bypass
from sternpost_gateway.fleet import Engine
from sternpost_gateway.tokens import TailFacts

FACTS_MAX: Final = 512
"""Templates whose tokens are kept: at 5,000 tokens each, some 20 MiB."""

TAILS_MAX: Final = 4096
"""Tail keys whose state is kept."""

BUILD_INTERVAL_SECONDS: Final = 10.0
"""Between the starts of two builds of one tail on one engine."""

MISSES_MAX: Final = 3
"""Consecutive reads that found nothing although the tail had been built: then something does not fit."""

MISSES_HOLD_SECONDS: Final = 600.0
"""For which such a tail is not built again on that engine."""


class TailState(StrEnum):
    """What is believed about one tail on one engine."""

    ABSENT = "absent"
    BUILDING = "building"
    BUILT = "built"


@dataclass(frozen=True, slots=True)
class TailKey:
    """Names one tail's KV on any engine: equal keys may share it, others may not."""

    policy: str
    template_id: ContentId
    salt: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a template's tokens are not known, and until when nobody need try again (monotonic seconds)."""

    reason: Bypass
    until: float


@dataclass(slots=True)
class _Holding:
    state: TailState = TailState.ABSENT
    not_before: float = 0.0
    misses: int = 0


@dataclass(slots=True)
class _Tail:
    holdings: dict[Engine, _Holding] = field(default_factory=dict)


class Tails:
    """The tails registry."""

    def __init__(self, clock: Clock, facts_max: int = FACTS_MAX, tails_max: int = TAILS_MAX) -> None:
        self._clock = clock
        self._facts: Bounded[ContentId, TailFacts | Refused] = Bounded(facts_max)
        self._tails: Bounded[TailKey, _Tail] = Bounded(tails_max)

    def facts(self, template_id: ContentId) -> TailFacts | Refused | None:
        """Return a template's tokens, why they are not known, or None if nobody has tried (lately)."""
        found = self._facts.get(template_id)
        if isinstance(found, Refused) and found.until <= self._clock.monotonic():
            self._facts.drop(template_id)
            return None
        return found

    def learn(self, template_id: ContentId, facts: TailFacts) -> None:
        """Keep a template's tokens."""
        self._facts.put(template_id, facts)

    def refuse(self, template_id: ContentId, reason: Bypass, seconds: float) -> None:
        """Remember for some time that a template's tokens cannot be had."""
        self._facts.put(template_id, Refused(reason, self._clock.monotonic() + seconds))

    def state(self, engine: Engine, key: TailKey) -> TailState:
        """Return what is believed about a tail on an engine."""
        tail = self._tails.get(key)
        if tail is None or engine not in tail.holdings:
            return TailState.ABSENT
        return tail.holdings[engine].state

    def may_build(self, engine: Engine, key: TailKey) -> bool:
        """Say whether a tail may be built on an engine: it is absent, and was not tried just now."""
        holding = self._holding(engine, key)
        return holding.state is TailState.ABSENT and self._clock.monotonic() >= holding.not_before

    def begin_build(self, engine: Engine, key: TailKey) -> bool:
        """Claim the build of a tail on an engine; False if it may not be built."""
        if not self.may_build(engine, key):
            return False
        holding = self._holding(engine, key)
        holding.state = TailState.BUILDING
        holding.not_before = self._clock.monotonic() + BUILD_INTERVAL_SECONDS
        return True

    def end_build(self, engine: Engine, key: TailKey, *, built: bool) -> None:
        """Note a build's outcome; a claim that was voided meanwhile stays void."""
        holding = self._holding(engine, key)
        if holding.state is TailState.BUILDING:
            holding.state = TailState.BUILT if built else TailState.ABSENT

    def hit(self, engine: Engine, key: TailKey) -> None:
        """Note that a read found the tail: whoever built it."""
        holding = self._holding(engine, key)
        holding.state = TailState.BUILT
        holding.misses = 0

    def missed(self, engine: Engine, key: TailKey) -> None:
        """
        Note that a read did not find the tail.

        When that happens again and again after builds, our tokens are not the request's: they are then
        found anew, and the tail is left alone for a while.
        """
        holding = self._holding(engine, key)
        if holding.state is not TailState.BUILT:
            return
        holding.state = TailState.ABSENT
        holding.misses += 1
        if holding.misses >= MISSES_MAX:
            holding.misses = 0
            holding.not_before = self._clock.monotonic() + MISSES_HOLD_SECONDS
            self._facts.drop(key.template_id)

    def forget_engine(self, engine: Engine) -> None:
        """Void everything believed about an engine's store, because it has started anew."""
        for tail in self._tails.values():
            holding = tail.holdings.pop(engine, None)
            if holding is not None and holding.state is TailState.BUILDING:
                # The build may have begun after the start: it is not to be started again at once.
                tail.holdings[engine] = _Holding(not_before=holding.not_before)

    def _holding(self, engine: Engine, key: TailKey) -> _Holding:
        tail = self._tails.get(key)
        if tail is None:
            tail = _Tail()
            self._tails.put(key, tail)
        return tail.holdings.setdefault(engine, _Holding())
