"""
The engines and what the gateway believes about each: ready or not, how busy, and who it is since when.

Beliefs come from active probes and from the requests themselves. An engine's batch id changes at each of its
starts; everything believed about the store of an earlier batch is void.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

FAILURES_MAX: Final = 3
"""Consecutive connection failures after which an engine is not ready until a probe passes."""


class Plugin(StrEnum):
    """What is known about an engine's suffix store."""

    UNKNOWN = "unknown"
    READY = "ready"
    UNSUPPORTED = "unsupported"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine by its base URL, without a trailing slash."""

    url: str


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


UNKNOWN: Final = Info(plugin=Plugin.UNKNOWN)
"""Of an engine that has not been asked yet."""


@dataclass(frozen=True, slots=True)
class View:
    """What is believed about one engine at one moment."""

    engine: Engine
    ready: bool
    in_flight: int
    info: Info


@dataclass(slots=True)
class _Record:
    ready: bool = False
    in_flight: int = 0
    failures: int = 0
    info: Info = UNKNOWN


class Fleet:
    """All engines of the pool. `on_batch` is told whenever an engine turns out to have started anew."""

    def __init__(self, engines: Sequence[Engine], on_batch: Callable[[Engine], None]) -> None:
        self._records = {engine: _Record() for engine in engines}
        self._on_batch = on_batch

    @property
    def engines(self) -> tuple[Engine, ...]:
        """Return all engines, ready or not."""
        return tuple(self._records)

    def views(self) -> tuple[View, ...]:
        """Return what is believed about every engine."""
        return tuple(
            View(engine, record.ready, record.in_flight, record.info)
            for engine, record in self._records.items()
        )

    def ready_views(self) -> tuple[View, ...]:
        """Return what is believed about the engines that may get requests."""
        return tuple(view for view in self.views() if view.ready)

    def info(self, engine: Engine) -> Info:
        """Return what the engine said about itself last."""
        return self._records[engine].info

    def is_ready(self, engine: Engine) -> bool:
        """Say whether the engine may get requests."""
        return self._records[engine].ready

    @contextmanager
    def flight(self, engine: Engine) -> Iterator[None]:
        """Count one request as in flight on an engine."""
        record = self._records[engine]
        record.in_flight += 1
        try:
            yield
        finally:
            record.in_flight -= 1

    def answered(self, engine: Engine) -> None:
        """Note that an engine answered a request, whatever it said."""
        self._records[engine].failures = 0

    def failed(self, engine: Engine) -> bool:
        """Note a connection failure; return whether the engine has become not ready by it."""
        record = self._records[engine]
        record.failures += 1
        if not record.ready or record.failures < FAILURES_MAX:
            return False
        record.ready = False
        return True

    def probed(self, engine: Engine, healthy: bool) -> bool:
        """Note a probe's outcome; return whether the engine's readiness has changed by it."""
        record = self._records[engine]
        changed = record.ready is not healthy
        record.ready = healthy
        record.failures = 0 if healthy else record.failures
        return changed

    def learned(self, engine: Engine, info: Info) -> bool:
        """Take what an engine says about itself; return whether that is news."""
        record = self._records[engine]
        news = (record.info.plugin, record.info.batch) != (info.plugin, info.batch)
        started_anew = record.info.batch != info.batch
        record.info = info
        if started_anew:
            self._on_batch(engine)
        return news

    def reported(self, engine: Engine, batch: str) -> bool:
        """Take the batch id of a report; return whether it is another than was known."""
        record = self._records[engine]
        if not batch or batch == record.info.batch:
            return False
        record.info = replace(record.info, batch=batch)
        self._on_batch(engine)
        return True
