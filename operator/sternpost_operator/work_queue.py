"""
Which objects are to be looked at, and when: each at most once at a time, failures later and later.

Deciding is level-triggered: how often an object was announced does not matter, so announcements merge.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Mapping
from typing import Final

from sternpost_core.clock import Clock
from sternpost_operator.resources import Key

KEYS_MAX: Final = 20_000
"""Objects that wait: beyond, a new announcement is dropped, and the next full list brings it back."""

RETRY_SECONDS: Final = 1.0
RETRY_SECONDS_MAX: Final = 60.0
DOUBLINGS_MAX: Final = 6
"""After which a retry waits as long as any."""


class WorkQueue:
    """Hands out keys whose time has come; a key that is being worked on is not handed out again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._order = itertools.count()
        self._working: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._due)

    @property
    def failures(self) -> Mapping[Key, int]:
        """How often in a row each key has failed."""
        return self._failures

    def add(self, key: Key, delay_seconds: float = 0.0) -> None:
        """Announce a key; the earliest of several times counts."""
        at = self._clock.monotonic() + delay_seconds
        if key not in self._due and len(self._due) >= KEYS_MAX:
            return
        if at < self._due.get(key, float("inf")):
            self._due[key] = at
            heapq.heappush(self._heap, (at, next(self._order), key))
            self._changed.set()

    def take(self) -> Key | None:
        """Return a key whose time has come and that nobody works on, or None."""
        now = self._clock.monotonic()
        held: list[tuple[float, int, Key]] = []
        found = None
        while self._heap and found is None and self._heap[0][0] <= now:
            at, order, key = heapq.heappop(self._heap)
            if self._due.get(key) != at:
                continue
            if key in self._working:
                held.append((at, order, key))
            else:
                del self._due[key]
                self._working.add(key)
                found = key
        for entry in held:
            heapq.heappush(self._heap, entry)
        return found

    async def next(self) -> Key:
        """Wait for a key whose time has come."""
        while True:
            self._changed.clear()
            key = self.take()
            if key is not None:
                return key
            await self._wait()

    async def _wait(self) -> None:
        waiting = [at for key, at in self._due.items() if key not in self._working]
        delay = max(0.0, min(waiting) - self._clock.monotonic()) if waiting else None
        try:
            await asyncio.wait_for(self._changed.wait(), delay)
        except TimeoutError:
            return

    def done(self, key: Key) -> None:
        """Say that a key has been dealt with."""
        self._failures.pop(key, None)
        self._release(key)

    def failed(self, key: Key) -> None:
        """Say that dealing with a key has failed; it comes again after 1 s, 2 s, 4 s ... 60 s."""
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        self._release(key)
        # An object that fails for days must not make the number too large to be one.
        self.add(key, min(RETRY_SECONDS_MAX, RETRY_SECONDS * 2 ** min(count, DOUBLINGS_MAX)))

    def forget(self, key: Key) -> None:
        """Forget a key that there is no object of any more."""
        self._due.pop(key, None)
        self._failures.pop(key, None)
        self._release(key)

    def _release(self, key: Key) -> None:
        self._working.discard(key)
        self._changed.set()
