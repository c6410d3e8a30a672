"""
The local trip: an engine whose suffix reads fail repeatedly gets no more of them for a while.

It is `NoSuffixReads` for one engine: bytes and routing stay as they are. A trip lasts a minute and, when the
next one follows soon after, twice as long as the one before, up to a limit. Trips are on disk, so that an
engine does not fail its clients anew because the gateway has restarted; a file that cannot be read back is
left behind, because the failures themselves would come again.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sternpost_core.clock import Clock
from sternpost_core.errors import OperatingError
from sternpost_gateway.fleet import Engine
from sternpost_gateway.state_files import read_json, write_file

logger = logging.getLogger(__name__)

TRIP_FILE: Final = "trips.json"
TRIP_VERSION: Final = 1

TRIPS_MAX: Final = 1024
"""Trips that are read back; engines that are gone are among them."""

FAILURES_MAX: Final = 5
WINDOW_SECONDS: Final = 10.0
"""So many failures within so many seconds trip an engine."""

TRIP_SECONDS_MIN: Final = 60.0
TRIP_SECONDS_MAX: Final = 600.0
"""How long the first trip lasts, and how long one lasts at most."""

CALM_SECONDS: Final = 600.0
"""A trip that begins so long after the end of the one before is a first one again."""


@dataclass(frozen=True, slots=True)
class Trip:
    """A trip of one engine; `until` is in monotonic seconds and may be past."""

    engine: Engine
    until: float
    seconds: float
    reason: str


@dataclass(slots=True)
class _Record:
    failures: deque[float] = field(default_factory=lambda: deque(maxlen=FAILURES_MAX))
    trip: Trip | None = None


class Trips:
    """
    Counts failures and keeps trips; an engine that is not known yet has neither.

    `state` is the directory of the trip file, if there is one; `on_trip` is told about each new trip.
    """

    def __init__(
        self,
        clock: Clock,
        state: Path | None,
        on_trip: Callable[[Trip], None] = lambda trip: None,
    ) -> None:
        self._records: dict[str, _Record] = {}
        self._clock = clock
        self._file = state / TRIP_FILE if state else None
        self._on_trip = on_trip
        self._restore()

    def is_tripped(self, engine: Engine) -> bool:
        """Say whether the engine gets no suffix reads now."""
        record = self._records.get(engine.url)
        trip = record.trip if record is not None else None
        return trip is not None and self._clock.monotonic() < trip.until

    def active(self) -> tuple[Trip, ...]:
        """Return the trips that have not ended."""
        trips = (record.trip for record in self._records.values())
        return tuple(trip for trip in trips if trip is not None and self._clock.monotonic() < trip.until)

    def forget(self, engine: Engine) -> None:
        """Forget an engine that is gone."""
        self._records.pop(engine.url, None)

    def remaining_seconds(self, trip: Trip) -> float:
        """Return for how long a trip lasts from now."""
        return max(0.0, trip.until - self._clock.monotonic())

    def failed(self, engine: Engine, reason: str) -> None:
        """Note that a suffix read failed; `reason` is one of a few fixed words."""
        if self.is_tripped(engine):
            # What was in flight when the engine tripped says nothing new.
            return
        record, now = self._record(engine), self._clock.monotonic()
        record.failures.append(now)
        if len(record.failures) == FAILURES_MAX and now - record.failures[0] <= WINDOW_SECONDS:
            record.failures.clear()
            self._begin(engine, reason)

    def trip(self, engine: Engine, reason: str) -> None:
        """Give an engine no more suffix reads, at once: for what must not happen even a second time."""
        if not self.is_tripped(engine):
            self._begin(engine, reason)

    def _begin(self, engine: Engine, reason: str) -> None:
        record, now = self._record(engine), self._clock.monotonic()
        seconds = next_seconds(record.trip, now)
        record.trip = trip = Trip(engine, now + seconds, seconds, reason)
        logger.error("engine %s gets no suffix reads for %.0f s: %s", engine.url, seconds, reason)
        self._on_trip(trip)
        try:
            self._store()
        except OperatingError as error:
            logger.error("the trip would not survive a restart: %s", error)

    def _record(self, engine: Engine) -> _Record:
        return self._records.setdefault(engine.url, _Record())

    def _store(self) -> None:
        if self._file is None:
            return
        trips = [self._to_mapping(record.trip) for record in self._records.values() if record.trip]
        write_file(self._file, json.dumps({"v": TRIP_VERSION, "trips": trips}, indent=1).encode())

    def _to_mapping(self, trip: Trip) -> dict[str, Any]:
        # A monotonic time means nothing to the next process.
        until = self._clock.time() + trip.until - self._clock.monotonic()
        return {"engine": trip.engine.url, "until": until, "seconds": trip.seconds, "reason": trip.reason}

    def _restore(self) -> None:
        try:
            state = read_json(self._file) if self._file else None
            trips = [] if state is None else self._read_state(state)
        except OperatingError as error:
            logger.error("%s; engines begin without a trip", error)
            return
        for trip in trips:
            self._record(trip.engine).trip = trip

    def _read_state(self, state: Mapping[str, Any]) -> list[Trip]:
        try:
            if state["v"] != TRIP_VERSION:
                raise ValueError("another version")
            return [self._read_trip(item) for item in state["trips"][:TRIPS_MAX]]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise OperatingError(f"{TRIP_FILE} does not hold trips: {type(error).__name__}") from error

    def _read_trip(self, item: Mapping[str, Any]) -> Trip:
        # A clock that was set back must not make a trip last longer than any may.
        remaining = min(float(item["until"]) - self._clock.time(), TRIP_SECONDS_MAX)
        seconds = min(float(item["seconds"]), TRIP_SECONDS_MAX)
        return Trip(
            Engine(str(item["engine"])), self._clock.monotonic() + remaining, seconds, str(item["reason"])
        )


def next_seconds(before: Trip | None, now: float) -> float:
    """Return how long a trip lasts that begins at `now`, after the one before."""
    if before is None or now - before.until >= CALM_SECONDS:
        return TRIP_SECONDS_MIN
    return min(TRIP_SECONDS_MAX, 2 * before.seconds)
