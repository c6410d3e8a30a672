"""
The gate in front of each engine: where requests wait for who computes the same, and for room.

The rules are `SingleFlight`'s and `ColdLimiter`'s; here are the tasks that wait. Every way out, also that of
a client that leaves, gives back what was held and wakes who is next.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from sternpost_core.clock import Clock
from sternpost_gateway.cold_limiter import ColdLimiter, ColdLimits, Outcome, Standing, Ticket
from sternpost_gateway.errors import ColdLimited
from sternpost_gateway.fleet import Engine
from sternpost_gateway.line import Line, no_turn
from sternpost_gateway.router import Routed
from sternpost_gateway.single_flight import Leader, SingleFlight

BATCH_TOKENS: Final = 64.0
"""In a batch, so many tokens that another request is still computing are worth waiting for."""

FOLLOW_SECONDS: Final = 0.5
"""What another request computes for so long is worth waiting for, however few tokens it is."""

WAIT_SECONDS_MAX: Final = 5.0
WAIT_SHARE: Final = 0.25
"""A request waits at most so long, or this share of its client's own deadline, whichever is shorter."""

TIMEOUT_HEADERS: Final = {"x-stainless-read-timeout": 1.0, "x-envoy-expected-rq-timeout-ms": 0.001}
"""Where common clients say how long they wait, and what one unit is in seconds."""

RETRY_AFTER_SECONDS_MIN: Final = 1
RETRY_AFTER_SECONDS_MAX: Final = 5
"""The spread keeps refused clients from coming back all at once."""

TIMEOUT_FORM: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
"""Of such a header; what is of another form is passed over."""

QUEUE_FULL: Final = "the queue of long prompts is full; come back later"
WAITED_TOO_LONG: Final = "no engine had room for a long prompt in time; come back later"


OnOutcome = Callable[[Outcome, float], None]
"""Told how each request came through, and after how many seconds."""


@dataclass(slots=True, eq=False)
class Pass:
    """
    One request that may go to its engine.

    It holds room until the engine has computed its prompt (`computed`), or until it is over (`leave`); each
    counts once.
    """

    _computed: Callable[[], None]
    _leave: Callable[[], None]

    def computed(self) -> None:
        """Note that the engine has computed the prompt."""
        self._computed()

    def leave(self) -> None:
        """Note that the request is over."""
        self._leave()


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """
    Who comes to a gate: whose request it is, and how many seconds it may wait.

    One that is part of a batch waits for less than others would; one that has followed in vain too often may
    follow no more.
    """

    tenant: str = ""
    wait_seconds: float = WAIT_SECONDS_MAX
    in_batch: bool = False
    may_follow: bool = True


class ColdGate:
    """The gates of all engines."""

    def __init__(
        self,
        limits: ColdLimits,
        clock: Clock,
        chance: random.Random,
        on_outcome: OnOutcome = lambda outcome, seconds: None,
    ) -> None:
        self._limits = limits
        self._clock = clock
        self.chance = chance
        self._on_outcome = on_outcome
        self._flights = SingleFlight(chance)
        self._limiters: dict[Engine, ColdLimiter] = {}
        self._lines: dict[Leader, Line] = {}
        self._waiting: dict[Ticket, asyncio.Future[None]] = {}

    @property
    def leaders(self) -> int:
        """Return how many blocks are being computed that others may wait for."""
        return len(self._flights)

    def limiters(self) -> dict[Engine, ColdLimiter]:
        """Return the limiters of the engines that have had requests."""
        return dict(self._limiters)

    def began(self, routed: Routed, seconds: float) -> None:
        """Take the time to first token of a request; only a warm one's says how warm ones fare."""
        limiter = self._limiters.get(routed.engine)
        if limiter is not None and routed.uncached_tokens < self._limits.cold_tokens:
            limiter.adaptive.observe(seconds, self._clock.monotonic())

    def forget(self, engine: Engine) -> None:
        """Forget an engine that is gone; who is in its gate keeps the gate for as long."""
        self._limiters.pop(engine, None)

    async def enter(self, routed: Routed, entry: Entry) -> Pass | None:
        """
        Wait for a request's turn; None when what it followed has failed, so that it is to be routed anew.

        Raises:
            ColdLimited: there is no room, and no hope for any in time.
        """
        began = self._clock.monotonic()
        worth = BATCH_TOKENS if entry.in_batch else self._worth(routed)
        followed = self._leader_of(routed, worth) if entry.may_follow else None
        turn = no_turn if followed is None else await self._follow(followed, routed, began)
        if turn is None:
            return None
        leader = self._lead(routed) if routed.uncached_tokens >= worth else None
        try:
            limiter = self._limiters.setdefault(routed.engine, ColdLimiter(self._limits))
            ticket = await self._find_room(limiter, routed.uncached_tokens, entry)
        except BaseException:
            self._end(leader, succeeded=False)
            turn()
            raise
        outcome = _came_through(ticket.is_cold, followed)
        self._on_outcome(outcome, self._clock.monotonic() - began)
        return self._pass(limiter, ticket, leader, turn)

    def _worth(self, routed: Routed) -> float:
        """Return from how many tokens on it pays to wait for another request that computes them."""
        return min(self._limits.cold_tokens, FOLLOW_SECONDS * routed.prefill_rate)

    def _leader_of(self, routed: Routed, worth: float) -> Leader | None:
        """Return whom a request follows: who computes `worth` tokens of what it is predicted to find."""
        if routed.expected_tokens < worth or not routed.expected_blocks:
            return None
        return self._flights.leader_of(routed.engine, routed.expected_blocks[-1])

    async def _follow(self, leader: Leader, routed: Routed, began: float) -> Callable[[], None] | None:
        """Wait for a leader; return what ends the follower's turn, None if the leader has failed."""
        line = self._lines.setdefault(leader, Line())
        try:
            async with asyncio.timeout(self._flights.wait_seconds(leader)):
                succeeded = await line.ended()
        except TimeoutError:
            await self._go_on(leader)
            return no_turn
        if not succeeded:
            self._on_outcome(Outcome.LEADER_FAILED, self._clock.monotonic() - began)
            return None
        return await line.turn(routed.uncached_tokens / routed.prefill_rate)

    async def _go_on(self, leader: Leader) -> None:
        """Wait in turn, among those who have waited in vain for a leader."""
        now = self._clock.monotonic()
        await asyncio.sleep(self._flights.release_at(leader, now) - now)
        self._on_outcome(Outcome.RELEASED, 0.0)

    def _lead(self, routed: Routed) -> Leader:
        new = routed.blocks.hashes[routed.held_blocks :]
        return self._flights.lead(routed.engine, new, routed.prefill_seconds)

    def _end(self, leader: Leader | None, *, succeeded: bool) -> None:
        if leader is None:
            return
        self._flights.end(leader)
        line = self._lines.pop(leader, None)
        if line is not None:
            line.end(succeeded=succeeded)

    async def _find_room(self, limiter: ColdLimiter, tokens: float, entry: Entry) -> Ticket:
        ticket = Ticket(tokens, entry.tenant, self._clock.monotonic())
        standing = limiter.enter(ticket)
        if standing is Standing.REFUSED:
            raise self._refusal(Outcome.QUEUE_FULL, QUEUE_FULL)
        if standing is Standing.WAITING:
            await self._wait(limiter, ticket, min(WAIT_SECONDS_MAX, entry.wait_seconds))
        return ticket

    async def _wait(self, limiter: ColdLimiter, ticket: Ticket, wait_seconds: float) -> None:
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = room
        try:
            async with asyncio.timeout(wait_seconds):
                await room
        except BaseException as error:
            self._leave(limiter, ticket)
            if isinstance(error, TimeoutError):
                raise self._refusal(Outcome.WAITED_TOO_LONG, WAITED_TOO_LONG) from None
            raise
        finally:
            self._waiting.pop(ticket, None)

    def _leave(self, limiter: ColdLimiter, ticket: Ticket) -> None:
        if ticket.standing is Standing.LEFT:
            return
        for granted in limiter.leave(ticket, self._clock.monotonic()):
            room = self._waiting.get(granted)
            if room is not None and not room.done():
                room.set_result(None)

    def _pass(
        self, limiter: ColdLimiter, ticket: Ticket, leader: Leader | None, end_turn: Callable[[], None]
    ) -> Pass:
        def computed() -> None:
            self._end(leader, succeeded=True)
            self._leave(limiter, ticket)
            end_turn()

        def leave() -> None:
            # After `computed` this finds nothing left to give back.
            self._end(leader, succeeded=False)
            self._leave(limiter, ticket)
            end_turn()

        return Pass(computed, leave)

    def _refusal(self, outcome: Outcome, message: str) -> ColdLimited:
        self._on_outcome(outcome, 0.0)
        seconds = self.chance.randint(RETRY_AFTER_SECONDS_MIN, RETRY_AFTER_SECONDS_MAX)
        return ColdLimited(message, seconds)


def _came_through(leads: bool, followed: Leader | None) -> Outcome:
    if leads:
        return Outcome.COLD
    return Outcome.FOLLOWED if followed is not None else Outcome.WARM


def patience_of(headers: Mapping[str, str]) -> float:
    """Return for how many seconds a request may wait, by what its client says of its own deadline."""
    for name, unit in TIMEOUT_HEADERS.items():
        text = headers.get(name, "")
        if TIMEOUT_FORM.fullmatch(text):
            return min(WAIT_SECONDS_MAX, WAIT_SHARE * unit * float(text))
    return WAIT_SECONDS_MAX
