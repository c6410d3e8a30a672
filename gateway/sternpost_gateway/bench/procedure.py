"""
The procedure: every target gets every workload, one after the other in changing order, all in one run.

What drifts, such as the machine's temperature, then meets all targets alike. Before a unit is measured the
engines' prefix caches are emptied, if that was asked for, and the target gets its warm-ups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

import aiohttp

from sternpost_core.clock import Clock
from sternpost_gateway.bench.arrivals import hold_sessions
from sternpost_gateway.bench.client import Client, Place
from sternpost_gateway.bench.sample import Sample, Unit
from sternpost_gateway.bench.target import Target
from sternpost_gateway.bench.watching import forget_prefixes, watching
from sternpost_gateway.bench.workload import Session, Workload

SETTLE_SECONDS: Final = 1.0
"""After each warm-up: a gateway learns a tail and has it built while nobody waits."""

WARM_UP: Final = "warm-up"


@dataclass(frozen=True, slots=True)
class Step:
    """One unit that is to be run: which workload, at which target, for which time."""

    workload: Callable[[], Workload]
    target: Target
    repeat: int


@dataclass(frozen=True, slots=True)
class Bench:
    """
    What runs units.

    `resets` are the engines whose prefix caches are emptied before each unit; `settle_seconds` is the pause
    after each warm-up.
    """

    http: aiohttp.ClientSession
    clock: Clock
    salt: str
    resets: tuple[str, ...] = ()
    settle_seconds: float = SETTLE_SECONDS

    async def run(self, step: Step) -> Unit:
        """
        Warm the target up, then measure.

        Raises:
            OperatingError: an engine did not empty its prefix cache.
        """
        workload = step.workload()
        client = Client(
            self.http, self.clock, f"{self.salt}-{workload.name}-{step.target.name}-{step.repeat}"
        )
        await forget_prefixes(self.http, self.resets)
        await self._warm_up(client, step.target, workload)
        async with watching(self.http, step.target.engines) as seen:
            began = self.clock.monotonic()
            samples = await self._measure(client, step, workload, began)
            seconds = self.clock.monotonic() - began
        return Unit(
            workload=workload.name,
            target=step.target.name,
            repeat=step.repeat,
            seconds=seconds,
            samples=tuple(samples),
            counted=seen.counted,
            peak=seen.peak,
        )

    async def _warm_up(self, client: Client, target: Target, workload: Workload) -> None:
        for number, call in enumerate(workload.warm_ups):
            await client.ask(target, call, Place(f"{WARM_UP}-{number}", 0, False), self.clock.monotonic())
            await asyncio.sleep(self.settle_seconds)

    async def _measure(self, client: Client, step: Step, workload: Workload, began: float) -> list[Sample]:
        async def converse(session: Session) -> list[Sample]:
            return [
                await client.ask(step.target, call, Place(session.id, turn, call.measured), began)
                for turn, call in enumerate(session.calls)
            ]

        chance = Random(f"{workload.name} {step.repeat}")
        return await hold_sessions(workload.sessions, workload.arrivals, chance, converse)


def interleaved(targets: Sequence[Target], repeats: int) -> Iterator[tuple[int, list[Target]]]:
    """
    Yield each repetition with the targets in its order.

    Every second order is the one before, backwards; then the next begins one place further on. So no target
    always follows the same other one.
    """
    for repeat in range(repeats):
        first = repeat // 2 % len(targets)
        order = [*targets[first:], *targets[:first]]
        yield repeat, order[::-1] if repeat % 2 else order
