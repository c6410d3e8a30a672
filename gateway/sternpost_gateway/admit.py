"""
The admit stage: how much is taken on at once.

Refusing early and cheaply is better than queueing unseen: each limit holds for the whole gateway, and a
refusal says when to come back.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from sternpost_gateway.client import CountBody
from sternpost_gateway.errors import Overloaded
from sternpost_gateway.settings import Limits

RETRY_AFTER_SECONDS_MIN: Final = 1
RETRY_AFTER_SECONDS_MAX: Final = 5
"""The spread keeps refused clients from coming back all at once."""


RETRY_WAIT_SECONDS_MAX: Final = 5.0
"""A request whose engine has died waits at most so long for its turn to be sent again."""


class Admission:
    """Counts requests, body bytes and retries in flight; each count returns to where it was."""

    def __init__(self, limits: Limits, chance: random.Random) -> None:
        self._limits = limits
        self._chance = chance
        self.in_flight = 0
        self.body_bytes = 0
        self.retries = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @contextmanager
    def request(self, *, is_surplus: bool = False) -> Iterator[None]:
        """
        Count one request; `is_surplus`: it came over a connection beyond those that are allowed.

        Raises:
            Overloaded: as many as allowed are in flight, or connected.
        """
        if is_surplus:
            raise self._overloaded("too many connections are open")
        if self.in_flight >= self._limits.in_flight_max:
            raise self._overloaded("too many requests are in flight")
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    @contextmanager
    def body(self, size: int) -> Iterator[CountBody]:
        """
        Count the bytes of one body, and yield what is told when they turn out to be more or fewer.

        Raises:
            Overloaded: the bodies in flight have as many bytes as allowed; the yielded raises it, too.
        """
        counted = 0

        def count(size: int) -> None:
            nonlocal counted
            others = self.body_bytes - counted
            if size > counted and others and others + size > self._limits.bodies_bytes_max:
                raise self._overloaded("the bodies in flight are too large together")
            self.body_bytes, counted = others + size, size

        count(size)
        try:
            yield count
        finally:
            self.body_bytes -= counted

    async def take_retry(self) -> Callable[[], None] | None:
        """
        Return what gives back one of the retries that the budget allows at once, None if there is none.

        When an engine dies, all that it had want a retry at the same moment: those beyond the budget wait for
        their turn, `RETRY_WAIT_SECONDS_MAX` at most.
        """
        if self._retries_max < 1:
            return None
        if self.retries < self._retries_max and not self._waiting:
            self.retries += 1
        elif not await self._wait_for_retry():
            return None
        return self._give_back_retry

    async def _wait_for_retry(self) -> bool:
        """Wait until a retry is handed over; it counts from then on. Return whether that was in time."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        is_taken = False
        try:
            async with asyncio.timeout(RETRY_WAIT_SECONDS_MAX):
                await turn
            is_taken = True
        except TimeoutError:
            pass
        finally:
            if not is_taken:
                self._forgo(turn)
        return is_taken

    def _forgo(self, turn: asyncio.Future[None]) -> None:
        """Let others have a turn; it may have been handed over just before its time was over."""
        if turn.done() and not turn.cancelled():
            self._give_back_retry()
            return
        # Whoever had a turn to hand over has passed over one that was given up.
        with suppress(ValueError):
            self._waiting.remove(turn)

    def _give_back_retry(self) -> None:
        self.retries -= 1
        while self._waiting and self.retries < self._retries_max:
            turn = self._waiting.popleft()
            if not turn.done():
                self.retries += 1
                turn.set_result(None)

    @property
    def _retries_max(self) -> int:
        return max(self._limits.retry_min, int(self._limits.retry_share * self.in_flight))

    def _overloaded(self, message: str) -> Overloaded:
        seconds = self._chance.randint(RETRY_AFTER_SECONDS_MIN, RETRY_AFTER_SECONDS_MAX)
        return Overloaded(message, seconds)
