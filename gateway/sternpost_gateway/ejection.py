"""
Passive ejection: an engine whose answers fail one after the other gets nothing for a while.

It complements the probes, which an engine can pass while every request to it fails. The rules are those of
Envoy's outlier detection: so many failures in a row, an ejection that lasts longer each time, and a cap on
how much of the pool may be out at once, because a fault that all engines have is not one of theirs.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from sternpost_core.clock import Clock
from sternpost_gateway.fleet import Engine

logger = logging.getLogger(__name__)

FAILURES_MAX: Final = 5
"""Failures in a row that eject an engine: 5xx answers, cut ones, timeouts and failed connections."""

EJECTION_SECONDS_BASE: Final = 30.0
EJECTION_SECONDS_MAX: Final = 300.0
"""The n-th ejection in a row lasts n times the base, and never longer than the maximum."""

JITTER_SHARE: Final = 0.1
"""By which an ejection is made longer at random, so that gateways do not return to an engine at once."""

CALM_SECONDS: Final = 300.0
"""An ejection that begins so long after the end of the one before is a first one again."""

EJECTED_SHARE_MAX: Final = 0.5
"""Of the pool that may be out at once; one engine at least always stays."""


@dataclass(slots=True)
class _Record:
    failures: int = 0
    ejections: int = 0
    until: float = 0.0


class Ejections:
    """Counts failures of engines and ejects them; `on_eject` is told about each ejection."""

    def __init__(
        self, clock: Clock, chance: random.Random, on_eject: Callable[[Engine], None] = lambda engine: None
    ) -> None:
        self._clock = clock
        self._chance = chance
        self._on_eject = on_eject
        self._records: dict[Engine, _Record] = {}

    def is_ejected(self, engine: Engine) -> bool:
        """Say whether the engine gets nothing now."""
        record = self._records.get(engine)
        return record is not None and self._clock.monotonic() < record.until

    def succeeded(self, engine: Engine) -> None:
        """Note an answer that did not fail."""
        record = self._records.get(engine)
        if record is not None:
            record.failures = 0

    def failed(self, engine: Engine, pool: Sequence[Engine]) -> bool:
        """Note a failure; return whether the engine is ejected by it. `pool` are all engines there are."""
        record = self._records.setdefault(engine, _Record())
        if self.is_ejected(engine):
            # What was in flight when the engine was ejected says nothing new.
            return False
        record.failures += 1
        if record.failures < FAILURES_MAX or not self._may_eject(pool):
            return False
        self._eject(engine, record)
        return True

    def forget(self, engine: Engine) -> None:
        """Forget an engine that is gone, or has started anew."""
        self._records.pop(engine, None)

    def _may_eject(self, pool: Sequence[Engine]) -> bool:
        out = sum(self.is_ejected(engine) for engine in pool) + 1
        return out <= len(pool) * EJECTED_SHARE_MAX and out < len(pool)

    def _eject(self, engine: Engine, record: _Record) -> None:
        now = self._clock.monotonic()
        record.ejections = 1 if now - record.until >= CALM_SECONDS else record.ejections + 1
        seconds = min(EJECTION_SECONDS_MAX, EJECTION_SECONDS_BASE * record.ejections)
        seconds += seconds * JITTER_SHARE * self._chance.random()
        record.failures, record.until = 0, now + seconds
        logger.error(
            "engine %s is ejected for %.0f s: %d failures in a row", engine.url, seconds, FAILURES_MAX
        )
        self._on_eject(engine)
