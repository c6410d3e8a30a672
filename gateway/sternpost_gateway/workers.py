"""
Several worker processes on one port: started, started again, told of signals, and ended together.

This process serves nobody. It holds the port, so that it stays the gateway's while workers come and go, and
the kernel gives each connection to one of those that listen.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Final

from sternpost_core.errors import OperatingError
from sternpost_gateway.app import load_secret
from sternpost_gateway.listening import bound_socket
from sternpost_gateway.settings import Settings, Worker
from sternpost_gateway.worker import share_of

logger = logging.getLogger(__name__)

BACKOFF_SECONDS_MIN: Final = 1.0
BACKOFF_SECONDS_MAX: Final = 60.0
"""Before a worker that has died is started again: twice as long each time, while it dies soon."""

SOON_SECONDS: Final = 60.0
"""A worker that has lived for longer has not died of its start."""

DEATHS_MAX: Final = 5
"""So many early deaths in a row of a worker end the gateway, if no other worker lives."""

END_SECONDS: Final = 10.0
"""Beyond the drain's own limits, until workers that have been told to end are killed."""

POLL_SECONDS: Final = 0.02

END_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
KILL_SIGNALS: Final = (signal.SIGUSR1, signal.SIGUSR2)

STATE_FOLDER: Final = "state"
"""Within the workers' own folder, where no other is given: it outlives a worker, not the gateway."""

Start = Callable[[int], tuple[SpawnProcess, Event]]
"""Starts the worker of a number; the process sets the event when it serves."""


@dataclass(slots=True)
class Backoff:
    """How long to wait before a worker is started again; `deaths`: early ones in a row."""

    deaths: int = 0

    def died(self, lived_seconds: float) -> float:
        """Note a death; return the seconds to wait."""
        self.deaths = self.deaths + 1 if lived_seconds < SOON_SECONDS else 1
        return min(BACKOFF_SECONDS_MAX, BACKOFF_SECONDS_MIN * 2.0 ** (self.deaths - 1))


@dataclass(slots=True)
class Place:
    """
    One worker's place: the process that fills it now, which has set `serves` when it serves.

    `pending` is the last kill signal that came while a process was starting, and would have ended by it.
    """

    process: SpawnProcess
    serves: Event
    pending: signal.Signals | None = None

    def tell(self, number: signal.Signals) -> None:
        """Send a kill signal, now or as soon as the process can take it."""
        if self.serves.is_set():
            self.send(number)
        else:
            self.pending = number

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it lives."""
        if self.process.pid is not None and self.process.is_alive():
            os.kill(self.process.pid, number)


class Crew:
    """Keeps `count` workers running until told to end; `start` starts the one of a number."""

    def __init__(self, count: int, start: Start, end_seconds_max: float) -> None:
        self._count = count
        self._start = start
        self._end_seconds_max = end_seconds_max
        self._places: dict[int, Place] = {}
        self._ending = asyncio.Event()
        self._has_served = False
        self._failed = False

    async def run(self, on_up: Callable[[], None]) -> None:
        """
        Run the workers; `on_up` is told when all of them serve for the first time.

        Raises:
            OperatingError: no worker can be kept running.
        """
        with self._signals():
            # The first alone: whatever keeps workers from starting is then said once.
            keepers = [asyncio.create_task(self._keep(0))]
            await self._up(0)
            keepers += [asyncio.create_task(self._keep(index)) for index in range(1, self._count)]
            for index in range(1, self._count):
                await self._up(index)
            if not self._ending.is_set():
                on_up()
            await asyncio.gather(*keepers)
        if self._failed:
            raise OperatingError("no worker can be kept running; what each said stands above")

    def end(self) -> None:
        """Tell all workers to end; told again, they end at once."""
        if not self._ending.is_set():
            self._ending.set()
            return
        for place in self._places.values():
            place.send(signal.SIGTERM)

    async def _keep(self, index: int) -> None:
        loop = asyncio.get_running_loop()
        backoff = Backoff()
        while not self._ending.is_set():
            begun = loop.time()
            place = self._place(index)
            await self._watch(place)
            if self._ending.is_set():
                return
            seconds = backoff.died(loop.time() - begun)
            logger.error("worker %d has ended with status %s", index, place.process.exitcode)
            if self._is_hopeless(backoff, place):
                self._failed = True
                self.end()
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), seconds)

    def _place(self, index: int) -> Place:
        """Fill a place; a signal that came while nobody filled it is for the new process."""
        before = self._places.get(index)
        process, serves = self._start(index)
        self._places[index] = Place(process, serves, before.pending if before else None)
        return self._places[index]

    async def _watch(self, place: Place) -> None:
        """Wait for the end of a process; one that has been told to end, for a limited time."""
        loop = asyncio.get_running_loop()
        deadline: float | None = None
        while place.process.is_alive():
            if place.pending is not None and place.serves.is_set():
                place.send(place.pending)
                place.pending = None
            if self._ending.is_set() and deadline is None:
                place.send(signal.SIGTERM)
                deadline = loop.time() + self._end_seconds_max
            if deadline is not None and loop.time() > deadline:
                logger.error("a worker has not ended in time, and is killed")
                place.process.kill()
            await asyncio.sleep(POLL_SECONDS)

    def _is_hopeless(self, backoff: Backoff, died: Place) -> bool:
        """Say whether to give up: no other lives, and none ever served or this one has died too often."""
        others = (place for place in self._places.values() if place is not died)
        nobody = not any(place.process.is_alive() for place in others)
        return nobody and (not self._has_served or backoff.deaths >= DEATHS_MAX)

    async def _up(self, index: int) -> None:
        """Wait until a worker serves for the first time, or all are told to end."""
        while not self._ending.is_set():
            place = self._places.get(index)
            if place is not None and place.serves.is_set():
                self._has_served = True
                return
            await asyncio.sleep(POLL_SECONDS)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Take the process's signals for the length of a block: those that end it, and those that kill."""
        loop = asyncio.get_running_loop()
        for number in END_SIGNALS:
            loop.add_signal_handler(number, self.end)
        for number in KILL_SIGNALS:
            loop.add_signal_handler(number, self._tell, number)
        try:
            yield
        finally:
            for number in (*END_SIGNALS, *KILL_SIGNALS):
                loop.remove_signal_handler(number)

    def _tell(self, number: signal.Signals) -> None:
        for place in self._places.values():
            place.tell(number)


def supervise(settings: Settings, run_worker: Callable[[Settings, Event], None]) -> None:
    """
    Run `settings.workers` processes of `run_worker` until told to stop.

    Raises:
        OperatingError: the port cannot be bound, state cannot be read, or no worker can be kept running.
    """
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory(prefix="sternpost-") as folder,
        bound_socket(settings) as held,
    ):
        place = Path(folder)
        address = held.getsockname()
        share = replace(
            share_of(settings),
            port=address[1],
            state=settings.state or place / STATE_FOLDER,
            salt_secret=load_secret(settings),
        )

        def start(index: int) -> tuple[SpawnProcess, Event]:
            serves = context.Event()
            worker = Worker(index, settings.workers, place)
            process = context.Process(target=run_worker, args=(replace(share, worker=worker), serves))
            process.start()
            return process, serves

        timeouts = settings.timeouts
        end_seconds = timeouts.drain_delay_seconds + timeouts.drain_seconds + END_SECONDS
        crew = Crew(settings.workers, start, end_seconds)
        asyncio.run(crew.run(lambda: _log_up(settings, address)))


def _log_up(settings: Settings, address: tuple[Any, ...]) -> None:
    engines = ", ".join(settings.engines)
    scheme = "http" if settings.tls is None else "https"
    where = f"{scheme}://{address[0]}:{address[1]}"
    logger.info("listening on %s for %s, %d workers", where, engines, settings.workers)
