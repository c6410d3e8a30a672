"""How many requests each engine was sent lately, which shows an uneven load that comes in bursts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from sternpost_core.clock import Clock
from sternpost_gateway.fleet import Engine

DECAY_SECONDS: Final = 5.0
"""After which a request counts 1/e: longer than a burst, shorter than a rollout."""


@dataclass(slots=True)
class _Count:
    value: float
    at: float


class Recent:
    """Counts requests by engine, older ones for less."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counts: dict[Engine, _Count] = {}

    def add(self, engine: Engine) -> None:
        """Count a request."""
        self._counts[engine] = _Count(self.count(engine) + 1.0, self._clock.monotonic())

    def count(self, engine: Engine) -> float:
        """Return how many requests an engine was sent lately."""
        count = self._counts.get(engine)
        if count is None:
            return 0.0
        return count.value * math.exp((count.at - self._clock.monotonic()) / DECAY_SECONDS)

    def forget(self, engine: Engine) -> None:
        """Forget an engine that is gone."""
        self._counts.pop(engine, None)
