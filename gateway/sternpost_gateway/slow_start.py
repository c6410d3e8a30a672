"""
Slow start: an engine that comes back to a running pool gets its full share only after a while.

Its caches are empty, so that everything it gets is cold. The weight rises linearly from a tenth to one. Where
most engines are new nobody starts slowly: somebody has to serve, and equal weights mean nothing (Envoy's slow
start mode has the same limit).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sternpost_core.clock import Clock
from sternpost_gateway.fleet import Engine

WINDOW_SECONDS: Final = 120.0
WEIGHT_MIN: Final = 0.1
NEW_SHARE_MAX: Final = 0.5
"""Of the pool that may start slowly; when more of it is new, everybody has full weight."""


FIRST_LOOK_SECONDS: Final = 5.0
"""After a gateway's own start: an engine that is ready by then has been there before the gateway."""


class SlowStart:
    """Remembers since when each engine serves that has begun to while the gateway ran."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started = clock.monotonic()
        self._since: dict[Engine, float] = {}

    def began(self, engine: Engine) -> None:
        """Note that an engine begins to serve: it has become ready, has started anew, or is back."""
        now = self._clock.monotonic()
        if now - self._started > FIRST_LOOK_SECONDS:
            self._since[engine] = now

    def forget(self, engine: Engine) -> None:
        """Forget an engine that is gone."""
        self._since.pop(engine, None)

    def weights(self, engines: Sequence[Engine]) -> list[float]:
        """Return the weight of each of the engines that may get requests."""
        weights = [self._weight(engine) for engine in engines]
        new = sum(weight < 1.0 for weight in weights)
        return weights if new <= NEW_SHARE_MAX * len(engines) else [1.0] * len(engines)

    def _weight(self, engine: Engine) -> float:
        since = self._since.get(engine)
        if since is None:
            return 1.0
        age = self._clock.monotonic() - since
        return min(1.0, max(WEIGHT_MIN, age / WINDOW_SECONDS))
