"""
The procedure: every target gets every workload, one after the other in changing order, all in one run.

What drifts, such as the machine's temperature, then meets all targets alike. Before a unit is measured the
engines' prefix caches are emptied, if that was asked for, and the target gets its warm-ups.

Or in turn: each session is held at every target before the next begins. What disturbs the machine for a few
seconds then meets all targets, where it would be in all of one target's unit, and differences of a percent
can be told.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, TypeVar

import aiohttp

from sternpost_core.clock import Clock
from sternpost_core.errors import Fault, SettingsError
from sternpost_gateway.bench.arrivals import hold_sessions
from sternpost_gateway.bench.client import Client, Place
from sternpost_gateway.bench.recipes import arrivals_text
from sternpost_gateway.bench.sample import Sample, Unit, summed
from sternpost_gateway.bench.target import Target
from sternpost_gateway.bench.watching import forget_prefixes, raise_peaks, watching
from sternpost_gateway.bench.workload import Arrivals, Closed, Session, Workload

SETTLE_SECONDS: Final = 1.0
"""After each warm-up: a gateway learns a tail and has it built while nobody waits."""

WARM_UP: Final = "warm-up"

ONE_AT_A_TIME: Final = Closed(at_once=1)
"""How sessions have to arrive that are held in turn: others would not wait until a target has its turn."""

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Step:
    """One unit that is to be run: which workload, at which target, for which time."""

    workload: Callable[[], Workload]
    target: Target
    repeat: int


@dataclass(frozen=True, slots=True)
class Window:
    """What was measured at a target without a break; the members are those of a unit."""

    seconds: float
    samples: tuple[Sample, ...]
    counted: Mapping[str, float]
    peak: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Measurement:
    """A step whose target is warm: the client that asks it all the time, and the windows so far."""

    step: Step
    workload: Workload
    client: Client
    windows: list[Window] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Return how long the windows lasted, all together."""
        return sum(window.seconds for window in self.windows)

    def unit(self) -> Unit:
        """Return what the windows come to."""
        peak: dict[str, float] = {}
        for window in self.windows:
            raise_peaks(peak, window.peak)
        return Unit(
            workload=self.workload.name,
            target=self.step.target.name,
            repeat=self.step.repeat,
            seconds=self.seconds,
            samples=tuple(sample for window in self.windows for sample in window.samples),
            counted=summed(window.counted for window in self.windows),
            peak=peak,
        )


@dataclass(frozen=True, slots=True)
class Bench:
    """
    What runs units.

    `resets` are the engines whose prefix caches are emptied before each unit, and where sessions are held in
    turn before each session; `settle_seconds` is the pause after each warm-up.
    """

    http: aiohttp.ClientSession
    clock: Clock
    salt: str
    resets: tuple[str, ...] = ()
    settle_seconds: float = SETTLE_SECONDS

    async def units(self, steps: Sequence[Step], *, in_turn: bool) -> AsyncIterator[Unit]:
        """
        Yield the unit of each step: each as soon as it is done, those that are held in turn at the end.

        Raises:
            OperatingError: an engine did not empty its prefix cache.
            SettingsError: sessions that are not held one after the other cannot be held in turn.
        """
        if in_turn:
            for unit in await self.run_in_turn(steps):
                yield unit
        else:
            for step in steps:
                yield await self.run(step)

    async def run(self, step: Step) -> Unit:
        """
        Warm the target up, then measure.

        Raises:
            OperatingError: an engine did not empty its prefix cache.
        """
        measurement = await self._begin(step, step.workload())
        await self._measure(measurement, measurement.workload.sessions)
        return measurement.unit()

    async def run_in_turn(self, steps: Sequence[Step]) -> list[Unit]:
        """
        Warm every target up, then hold each session at all of them, one right after the other.

        The steps are one repetition of one workload at several targets, whose order changes from session to
        session. Return a unit for each step, in the steps' order.

        Raises:
            OperatingError: an engine did not empty its prefix cache.
            SettingsError: the workload's sessions are not held one after the other; nothing was sent.
        """
        made = [(step, step.workload()) for step in steps]
        check_in_turn("in_turn", {workload.name: workload.arrivals for _, workload in made})
        measurements = [await self._begin(step, workload) for step, workload in made]
        sessions = max((len(workload.sessions) for _, workload in made), default=0)
        for number, order in interleaved(measurements, sessions):
            for one in order:
                # Else a target would find what the one before it has left of the same session.
                await forget_prefixes(self.http, self.resets)
                await self._measure(one, one.workload.sessions[number : number + 1])
        return [one.unit() for one in measurements]

    async def _begin(self, step: Step, workload: Workload) -> Measurement:
        salt = f"{self.salt}-{workload.name}-{step.target.name}-{step.repeat}"
        client = Client(self.http, self.clock, salt)
        await forget_prefixes(self.http, self.resets)
        for number, call in enumerate(workload.warm_ups):
            place = Place(f"{WARM_UP}-{number}", 0, False)
            await client.ask(step.target, call, place, self.clock.monotonic())
            await asyncio.sleep(self.settle_seconds)
        return Measurement(step, workload, client)

    async def _measure(self, measurement: Measurement, sessions: Sequence[Session]) -> None:
        """Hold sessions in one window."""
        async with watching(self.http, measurement.step.target.engines) as seen:
            opened = self.clock.monotonic()
            # A unit's seconds go on from window to window; what was between them is no part of it.
            samples = await _hold(measurement, sessions, opened - measurement.seconds)
            seconds = self.clock.monotonic() - opened
        measurement.windows.append(Window(seconds, tuple(samples), seen.counted, seen.peak))


async def _hold(measurement: Measurement, sessions: Sequence[Session], began: float) -> list[Sample]:
    step, workload, client = measurement.step, measurement.workload, measurement.client

    async def converse(session: Session) -> list[Sample]:
        return [
            await client.ask(step.target, call, Place(session.id, turn, call.measured), began)
            for turn, call in enumerate(session.calls)
        ]

    chance = Random(f"{workload.name} {step.repeat}")
    return await hold_sessions(sessions, workload.arrivals, chance, converse)


def check_in_turn(path: str, arrivals: Mapping[str, Arrivals]) -> None:
    """
    Refuse to hold sessions in turn that are not held one after the other; `arrivals` are by workload.

    Raises:
        SettingsError: naming `path` and every workload whose sessions arrive in another way.
    """
    faults = [
        Fault(path, f"{name}, {arrivals_text(found)}", f"workloads of {arrivals_text(ONE_AT_A_TIME)}")
        for name, found in arrivals.items()
        if found != ONE_AT_A_TIME
    ]
    if faults:
        raise SettingsError("bench", faults)


def interleaved(items: Sequence[Item], repeats: int) -> Iterator[tuple[int, list[Item]]]:
    """
    Yield each repetition with the targets, or what stands for them, in its order.

    Every second order is the one before, backwards; then the next begins one place further on. So no target
    always follows the same other one.
    """
    for repeat in range(repeats):
        first = repeat // 2 % len(items)
        order = [*items[first:], *items[:first]]
        yield repeat, order[::-1] if repeat % 2 else order
