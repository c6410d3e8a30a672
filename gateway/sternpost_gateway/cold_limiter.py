"""
The cold limiter of one engine: how much of long prompts it computes at once, and who has to wait.

It decides and knows neither time nor tasks: `now` is passed in, and whoever waits is told by the caller. Warm
requests never wait here. A cold one goes on while the engine has room for it, waits in a bounded queue, or is
refused; it is always on, so that a stampede meets what every request meets.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from sternpost_gateway.adaptive_limit import AdaptiveLimit

FRESH_SECONDS: Final = 2.0
"""When the oldest waits longer, the newest goes first: it still has a client, the oldest may not."""

COLD_SHARE: Final = 0.5
"""Of the room that cold requests get while warm ones are being computed."""

TENANT_SHARE: Final = 0.25
"""Of the room that one tenant gets while others wait."""

QUEUE_FACTOR: Final = 8
"""The queue holds this many times the room."""

BATCHES: Final = 2
"""The room is that of so many of the engine's batches: one that it computes, and one to follow."""

SLOTS_SHARE: Final = 0.25
"""Of an engine's sequences that may be cold at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdLimits:
    """
    What is cold, and what an engine can do.

    `cold_tokens` predicted uncached tokens make a request cold; `batched_tokens` and `sequences` are the
    engine's `--max-num-batched-tokens` and `--max-num-seqs`.
    """

    cold_tokens: int = 4096
    batched_tokens: int = 8192
    sequences: int = 256

    @property
    def room_tokens(self) -> int:
        """Return how many uncached tokens may be in flight on one engine."""
        return BATCHES * self.batched_tokens

    @property
    def slots_max(self) -> int:
        """Return how many cold requests may be in flight on one engine at most: no more than have room."""
        return max(1, min(int(SLOTS_SHARE * self.sequences), self.room_tokens // self.cold_tokens))


class Standing(StrEnum):
    """Where a request stands."""

    ADMITTED = "admitted"
    WAITING = "waiting"
    REFUSED = "refused"
    LEFT = "left"


class Outcome(StrEnum):
    """How a request came through the gate; the values are metric labels."""

    WARM = "warm"
    COLD = "cold"
    FOLLOWED = "followed"
    RELEASED = "released"
    LEADER_FAILED = "leader_failed"
    QUEUE_FULL = "queue_full"
    WAITED_TOO_LONG = "waited_too_long"


@dataclass(slots=True, eq=False)
class Ticket:
    """One request at one engine's limiter; `arrived` is a monotonic time in seconds."""

    tokens: float
    tenant: str
    arrived: float
    is_cold: bool = False
    standing: Standing = Standing.WAITING


@dataclass(slots=True)
class ColdLimiter:
    """Admits the requests of one engine; every ticket that enters has to leave."""

    limits: ColdLimits
    adaptive: AdaptiveLimit = field(init=False)
    active: list[Ticket] = field(default_factory=list)
    waiting: list[Ticket] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.adaptive = AdaptiveLimit(self.limits.slots_max)

    @property
    def active_tokens(self) -> float:
        """Return the uncached tokens of all that are admitted."""
        return sum(ticket.tokens for ticket in self.active)

    @property
    def waiting_tokens(self) -> float:
        """Return the uncached tokens of all that wait."""
        return sum(ticket.tokens for ticket in self.waiting)

    @property
    def is_idle(self) -> bool:
        """Say whether nothing is admitted and nothing waits."""
        return not self.active and not self.waiting

    def enter(self, ticket: Ticket) -> Standing:
        """Take a request: admitted, waiting, or refused because the queue is full."""
        ticket.is_cold = ticket.tokens >= self.limits.cold_tokens
        if not ticket.is_cold:
            return self._admit(ticket)
        queue_max = QUEUE_FACTOR * self.limits.room_tokens
        if self.waiting and self.waiting_tokens + ticket.tokens > queue_max:
            ticket.standing = Standing.REFUSED
            return ticket.standing
        self.waiting.append(ticket)
        self.grant(ticket.arrived)
        return ticket.standing

    def leave(self, ticket: Ticket, now: float) -> list[Ticket]:
        """Let a request go, from wherever it stands; return those that are admitted by that."""
        ticket.standing = Standing.LEFT
        for tickets in (self.active, self.waiting):
            if ticket in tickets:
                tickets.remove(ticket)
        return self.grant(now)

    def grant(self, now: float) -> list[Ticket]:
        """Admit all that may be; return them."""
        granted: list[Ticket] = []
        while (ticket := self._next(now)) is not None and self._fits(ticket):
            self.waiting.remove(ticket)
            self._admit(ticket)
            granted.append(ticket)
        return granted

    def _admit(self, ticket: Ticket) -> Standing:
        self.active.append(ticket)
        ticket.standing = Standing.ADMITTED
        return ticket.standing

    def _next(self, now: float) -> Ticket | None:
        """Return who is next: first come, unless they have waited too long, and within the tenant's share."""
        if not self.waiting:
            return None
        newest_first = now - self.waiting[0].arrived > FRESH_SECONDS
        order = reversed(self.waiting) if newest_first else iter(self.waiting)
        others = len({ticket.tenant for ticket in self.waiting}) > 1
        return next((ticket for ticket in order if not others or self._within_share(ticket)), None)

    def _within_share(self, ticket: Ticket) -> bool:
        held = _tokens(active for active in self.active if active.is_cold and active.tenant == ticket.tenant)
        return not held or held + ticket.tokens <= TENANT_SHARE * self.limits.room_tokens

    def _fits(self, ticket: Ticket) -> bool:
        cold = [active for active in self.active if active.is_cold]
        if not cold:
            # Never below one: a prompt longer than the room would wait for ever.
            return True
        room = self.limits.room_tokens
        share = COLD_SHARE if len(cold) < len(self.active) else 1.0
        return (
            len(cold) < self.adaptive.limit
            and _tokens(cold) + ticket.tokens <= share * room
            and self.active_tokens + ticket.tokens <= room
        )


def _tokens(tickets: Iterable[Ticket]) -> float:
    return sum(ticket.tokens for ticket in tickets)
