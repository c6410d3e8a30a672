"""
The admit stage: how much is taken on at once.

Refusing early and cheaply is better than queueing unseen: each limit holds for the whole gateway, and a
refusal says when to come back.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sternpost_gateway.errors import Overloaded
from sternpost_gateway.settings import Limits

RETRY_AFTER_SECONDS_MIN: Final = 1
RETRY_AFTER_SECONDS_MAX: Final = 5
"""The spread keeps refused clients from coming back all at once."""


class Admission:
    """Counts requests, body bytes and retries in flight; each count returns to where it was."""

    def __init__(self, limits: Limits, chance: random.Random) -> None:
        self._limits = limits
        self._chance = chance
        self.in_flight = 0
        self.body_bytes = 0
        self.retries = 0

    @contextmanager
    def request(self) -> Iterator[None]:
        """
        Count one request.

        Raises:
            Overloaded: as many as allowed are in flight.
        """
        if self.in_flight >= self._limits.in_flight_max:
            raise self._overloaded("too many requests are in flight")
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    @contextmanager
    def body(self, size: int) -> Iterator[None]:
        """
        Count the bytes of one body, by its declared length or, without one, by the most it may have.

        Raises:
            Overloaded: the bodies in flight have as many bytes as allowed.
        """
        if self.body_bytes + size > self._limits.bodies_bytes_max and self.body_bytes:
            raise self._overloaded("the bodies in flight are too large together")
        self.body_bytes += size
        try:
            yield
        finally:
            self.body_bytes -= size

    def may_retry(self) -> bool:
        """Say whether the retry budget allows one more retry now."""
        allowed = max(self._limits.retry_min, int(self._limits.retry_share * self.in_flight))
        return self.retries < allowed

    @contextmanager
    def retry(self) -> Iterator[None]:
        """Count one retry."""
        self.retries += 1
        try:
            yield
        finally:
            self.retries -= 1

    def _overloaded(self, message: str) -> Overloaded:
        seconds = self._chance.randint(RETRY_AFTER_SECONDS_MIN, RETRY_AFTER_SECONDS_MAX)
        return Overloaded(message, seconds)
