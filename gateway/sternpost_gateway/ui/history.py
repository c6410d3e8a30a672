"""What one gateway's figures were a few seconds ago, so that a page can show rates and shares of now."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from sternpost_core.clock import Clock
from sternpost_gateway.top.page import Page, Series

SAMPLE_SECONDS_MIN: Final = 1.0
"""Between two samples, however many look: taking one holds up requests for a moment."""

WINDOW_SECONDS: Final = 10.0
"""Rates, shares and times are over so long, as those of `sternpost top` are."""

SAMPLES_MAX: Final = int(WINDOW_SECONDS / SAMPLE_SECONDS_MIN) + 1


Sample = Callable[[], Awaitable[tuple[Series, ...]]]
"""Returns all series of a gateway as they are now."""


class History:
    """The samples of the last few seconds of the gateway `name`; one is taken only when somebody looks."""

    def __init__(self, name: str, sample: Sample, clock: Clock) -> None:
        self._name = name
        self._sample = sample
        self._clock = clock
        self._pages: deque[Page] = deque(maxlen=SAMPLES_MAX)
        self._taking = asyncio.Lock()

    async def look(self) -> tuple[Page | None, Page]:
        """Return the oldest sample of the window, None if there is none, and the newest one."""
        async with self._taking:
            now = self._clock.monotonic()
            if not self._pages or now - self._pages[-1].at >= SAMPLE_SECONDS_MIN:
                self._pages.append(Page(self._name, now, await self._sample()))
        while now - self._pages[0].at > WINDOW_SECONDS + SAMPLE_SECONDS_MIN and len(self._pages) > 1:
            self._pages.popleft()
        return (self._pages[0] if len(self._pages) > 1 else None), self._pages[-1]
