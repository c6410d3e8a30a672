"""
The engines and what the gateway believes about each: ready or not, how busy, and who it is since when.

Beliefs come from active probes and from the requests themselves. An engine's batch id changes at each of its
starts; everything believed about the store of an earlier batch is void.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

FAILURES_MAX: Final = 3
"""Consecutive failures, of connections or of probes without an answer, until an engine is not ready."""


class Health(StrEnum):
    """What a probe of an engine found."""

    UP = "up"
    DOWN = "down"
    """It said that it is not well, or nobody listens at its address."""

    SILENT = "silent"
    """No answer in time, or none that ended: the network's or a busy moment's fault as often as its own."""


class Plugin(StrEnum):
    """What is known about an engine's suffix store."""

    UNKNOWN = "unknown"
    READY = "ready"
    UNSUPPORTED = "unsupported"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Engine:
    """
    One engine by its base URL, without a trailing slash.

    `pool` is the full name of the EnginePool that it belongs to; one without may serve every policy. What is
    at the same URL in another `revision` is another engine, of which nothing is known.
    """

    url: str
    pool: str = ""
    revision: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Info:
    """What an engine says about itself; `batch` is its batch id, empty without the plugin."""

    plugin: Plugin
    batch: str = ""
    reason: str = ""
    version: str = ""
    epoch: int = 0
    tail_tokens_min: int = 0
    tail_tokens_max: int = 0
    models: frozenset[str] = frozenset()
    """The models that it serves, adapters included; empty while nothing is known of them."""


UNKNOWN: Final = Info(plugin=Plugin.UNKNOWN)
"""Of an engine that has not been asked yet."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """
    The prompts that an engine was sent and has not computed, in tokens.

    `first_tokens` are those of the prompt that was sent first, which has been the first for `first_seconds`.
    """

    tokens: float = 0.0
    first_tokens: float = 0.0
    first_seconds: float = 0.0

    def ahead_tokens(self, prefill_rate: float) -> float:
        """
        Return what is still to be computed, if the engine computes `prefill_rate` tokens a second.

        Until its answer begins, the first prompt may be computed nearly whole, and those behind it are not.
        """
        return self.tokens - min(self.first_tokens, prefill_rate * self.first_seconds)


NO_BACKLOG: Final = Backlog()


@dataclass(frozen=True, slots=True)
class View:
    """
    What is believed about one engine at one moment.

    `uncached_tokens` are to be computed there of all requests in flight, also of those that are not sent yet.
    """

    engine: Engine
    ready: bool
    in_flight: int
    info: Info
    uncached_tokens: float = 0.0
    backlog: Backlog = NO_BACKLOG

    def ahead_tokens(self, prefill_rate: float) -> float:
        """Return the tokens that the engine has to compute before a new prompt, at so many a second."""
        return self.uncached_tokens - self.backlog.tokens + self.backlog.ahead_tokens(prefill_rate)


@dataclass(frozen=True, slots=True, eq=False)
class Flight:
    """One request for an engine: `uncached_tokens` of its prompt are still to be computed there."""

    uncached_tokens: float
    _record: _Record
    _monotonic: Callable[[], float]

    def sent(self) -> Backlog:
        """Note that the request goes to the engine, and is computed behind what is returned."""
        return self._record.send(self, self._monotonic())

    def computed(self) -> None:
        """Note that the engine has computed the prompt."""
        self._record.drop(self, self._monotonic())


@dataclass(slots=True)
class _Line:
    """Prompts in the order in which they came; `tokens` is kept, so that no request has to add it up."""

    flights: OrderedDict[Flight, None] = field(default_factory=OrderedDict)
    tokens: float = 0.0

    @property
    def first(self) -> Flight | None:
        """Return the prompt that has been here for longest."""
        return next(iter(self.flights), None)

    def add(self, flight: Flight) -> None:
        """Let a prompt stand behind the others."""
        self.flights[flight] = None
        self.tokens += flight.uncached_tokens

    def remove(self, flight: Flight) -> bool:
        """Take a prompt out; return whether it was here."""
        if flight not in self.flights:
            return False
        del self.flights[flight]
        # What rounding has left does not outlive the last prompt.
        self.tokens = self.tokens - flight.uncached_tokens if self.flights else 0.0
        return True


@dataclass(slots=True)
class _Record:
    """`waiting` requests are not sent yet; what was sent is computed in this order."""

    ready: bool = False
    in_flight: int = 0
    waiting: _Line = field(default_factory=_Line)
    sent: _Line = field(default_factory=_Line)
    first_since: float = 0.0
    failures: int = 0
    info: Info = UNKNOWN

    def backlog(self, now: float) -> Backlog:
        """Return what was sent and is not computed."""
        first = self.sent.first
        if first is None:
            return NO_BACKLOG
        return Backlog(self.sent.tokens, first.uncached_tokens, now - self.first_since)

    def send(self, flight: Flight, now: float) -> Backlog:
        """Let a prompt follow those that were sent before; return them."""
        before = self.backlog(now)
        if self.waiting.remove(flight):
            if self.sent.first is None:
                self.first_since = now
            self.sent.add(flight)
        return before

    def drop(self, flight: Flight, now: float) -> None:
        """Count a prompt no more; the one behind it is the first from now on."""
        self.waiting.remove(flight)
        if self.sent.first is flight:
            self.first_since = now
        self.sent.remove(flight)

    def view(self, engine: Engine, now: float) -> View:
        """Return what is believed at a moment."""
        backlog = self.backlog(now)
        return View(
            engine, self.ready, self.in_flight, self.info, backlog.tokens + self.waiting.tokens, backlog
        )


class Fleet:
    """
    All engines of the pool.

    `on_batch` is told whenever an engine turns out to have started anew, `on_ready` when one becomes ready,
    `on_gone` when one leaves the pool. What is said about an engine that is gone goes nowhere. `monotonic`
    tells the time in seconds.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        on_batch: Callable[[Engine], None],
        *,
        on_ready: Callable[[Engine], None] = lambda engine: None,
        on_gone: Callable[[Engine], None] = lambda engine: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._records = {engine: _Record() for engine in engines}
        self._on_batch = on_batch
        self._on_ready = on_ready
        self._on_gone = on_gone
        self._monotonic = monotonic
        self._change = asyncio.Event()

    @property
    def engines(self) -> tuple[Engine, ...]:
        """Return all engines, ready or not."""
        return tuple(self._records)

    def set_engines(self, engines: Sequence[Engine]) -> tuple[tuple[Engine, ...], tuple[Engine, ...]]:
        """Take the pool as it is now; return which engines have come, and which have gone."""
        come = tuple(engine for engine in dict.fromkeys(engines) if engine not in self._records)
        gone = tuple(engine for engine in self._records if engine not in set(engines))
        for engine in come:
            self._records[engine] = _Record()
        for engine in gone:
            del self._records[engine]
            self._on_gone(engine)
        if come or gone:
            self._change.set()
        return come, gone

    async def changed(self, seconds_max: float) -> None:
        """Wait until engines come or go, for `seconds_max` at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                await self._change.wait()
        self._change.clear()

    def views(self) -> tuple[View, ...]:
        """Return what is believed about every engine."""
        now = self._monotonic()
        return tuple(record.view(engine, now) for engine, record in self._records.items())

    def ready_views(self) -> tuple[View, ...]:
        """Return what is believed about the engines that may get requests."""
        return tuple(view for view in self.views() if view.ready)

    def serves_several(self) -> bool:
        """Say whether ready engines are known to serve different models."""
        kinds = {record.info.models for record in self._records.values() if record.ready}
        return len(kinds - {frozenset()}) > 1

    def info(self, engine: Engine) -> Info:
        """Return what the engine said about itself last."""
        return self._record(engine).info

    def is_ready(self, engine: Engine) -> bool:
        """Say whether the engine may get requests."""
        return self._record(engine).ready

    @contextmanager
    def flight(self, engine: Engine, uncached_tokens: float = 0.0) -> Iterator[Flight]:
        """Count one request as in flight on an engine, and its uncached tokens until they are computed."""
        record = self._record(engine)
        flight = Flight(uncached_tokens, record, self._monotonic)
        record.in_flight += 1
        if uncached_tokens > 0:
            record.waiting.add(flight)
        try:
            yield flight
        finally:
            flight.computed()
            record.in_flight -= 1

    def answered(self, engine: Engine) -> None:
        """Note that an engine answered a request, whatever it said."""
        self._record(engine).failures = 0

    def failed(self, engine: Engine) -> bool:
        """Note a failure to get an answer; return whether the engine has become not ready by it."""
        record = self._record(engine)
        record.failures += 1
        if not record.ready or record.failures < FAILURES_MAX:
            return False
        record.ready = False
        return True

    def probed(self, engine: Engine, health: Health) -> bool:
        """Note a probe's outcome; return whether the engine's readiness has changed by it."""
        if health is Health.SILENT:
            return self.failed(engine)
        healthy = health is Health.UP
        record = self._record(engine)
        changed = record.ready is not healthy
        record.ready = healthy
        record.failures = 0 if healthy else record.failures
        if changed and healthy:
            self._on_ready(engine)
        return changed

    def learned(self, engine: Engine, info: Info) -> bool:
        """Take what an engine says about itself; return whether that is news."""
        record = self._record(engine)
        news = (record.info.plugin, record.info.batch) != (info.plugin, info.batch)
        started_anew = record.info.batch != info.batch
        record.info = info
        if started_anew:
            self._on_batch(engine)
        return news

    def reported(self, engine: Engine, batch: str) -> bool:
        """Take the batch id of a report; return whether it is another than was known."""
        record = self._record(engine)
        if not batch or batch == record.info.batch:
            return False
        record.info = replace(record.info, batch=batch)
        self._on_batch(engine)
        return True

    def _record(self, engine: Engine) -> _Record:
        return self._records.get(engine) or _Record()
