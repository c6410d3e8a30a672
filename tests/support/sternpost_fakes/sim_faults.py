"""What goes wrong in a simulated run, drawn from its seed, and when."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from sternpost_core.kill import KillLevel
from sternpost_core.policy import Policy
from sternpost_fakes.sim_engine import SimEngine
from sternpost_fakes.virtual_time import VirtualClock
from sternpost_gateway.kills import Kills

POLL_SECONDS = 5.0
POLL_JITTER = 0.2
"""How often a gateway asks for its policies although nothing was reported."""


class FaultKind(StrEnum):
    """The kinds of faults."""

    DIES = "dies"
    HANGS = "hangs"
    FAILS = "fails"
    SLOWS = "slows"
    LIES = "lies"
    RESTARTS = "restarts"
    ROLLOUT = "rollout"
    WATCH_SILENT = "watch_silent"
    KILL = "kill"
    KILL_HTTP = "kill_http"
    KILL_FORCED = "kill_forced"
    CLOCK_JUMPS = "clock_jumps"
    SPOILS = "spoils"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: from when on, for how long, on which engine, and of which kill level."""

    kind: FaultKind
    at: float
    seconds: float
    engine: int
    level: KillLevel


LEVELS = (
    KillLevel.NO_SUFFIX_READS,
    KillLevel.NEW_EPOCH,
    KillLevel.NO_REWRITE,
    KillLevel.NO_AFFINITY,
    KillLevel.PLAIN_PROXY,
)


def draw_faults(chance: random.Random, engines: int, seconds: float) -> list[Fault]:
    """Return one to three faults."""
    return [
        Fault(
            chance.choice(list(FaultKind)),
            chance.uniform(1.0, seconds),
            chance.uniform(0.5, seconds / 2),
            chance.randrange(engines),
            chance.choice(LEVELS),
        )
        for _ in range(chance.randint(1, 3))
    ]


@dataclass(slots=True)
class Source:
    """Where the gateway's policy comes from: a watch that may fall silent, and a poll that does not."""

    policy: Policy
    kills: Kills
    clock: VirtualClock
    silent: bool = False

    def set_level(self, level: KillLevel) -> None:
        """Change the policy, as somebody does at the API server."""
        self.policy = replace(self.policy, kill_level=level)
        if not self.silent:
            self.tell()

    def tell(self) -> None:
        """Let the gateway know."""
        self.kills.configure([self.policy], [])

    async def poll(self, chance: random.Random) -> None:
        """Let the gateway know again and again, until cancelled."""
        while True:
            await asyncio.sleep(POLL_SECONDS * chance.uniform(1 - POLL_JITTER, 1 + POLL_JITTER))
            self.tell()


@dataclass(slots=True)
class World:
    """Everything that faults act on."""

    engines: list[SimEngine]
    source: Source
    kills: Kills
    clock: VirtualClock
    on_level: Callable[[float, KillLevel, bool], None]

    async def suffer(self, fault: Fault) -> None:
        """Let one fault happen and pass."""
        await asyncio.sleep(max(0.0, fault.at - self.clock.monotonic()))
        engine = self.engines[fault.engine]
        match fault.kind:
            case FaultKind.DIES | FaultKind.RESTARTS:
                await self._restart(engine, 0.2 if fault.kind is FaultKind.RESTARTS else fault.seconds)
            case FaultKind.ROLLOUT:
                for one in self.engines:
                    await self._restart(one, fault.seconds / 4)
                    await asyncio.sleep(3.0)
            case FaultKind.HANGS | FaultKind.FAILS | FaultKind.LIES | FaultKind.SPOILS:
                names = {"hangs": "hanging", "fails": "failing", "lies": "lying", "spoils": "spoilt"}
                name = names[fault.kind.value]
                setattr(engine, name, True)
                await asyncio.sleep(fault.seconds)
                setattr(engine, name, False)
            case FaultKind.SLOWS:
                engine.slowness = 10.0
                await asyncio.sleep(fault.seconds)
                engine.slowness = 1.0
            case FaultKind.WATCH_SILENT:
                self.source.silent = True
                await asyncio.sleep(fault.seconds)
                self.source.silent = False
            case FaultKind.KILL | FaultKind.KILL_HTTP | FaultKind.KILL_FORCED:
                await self._kill(fault)
            case FaultKind.CLOCK_JUMPS:
                self.clock.offset += 3600.0 if fault.engine % 2 else -3600.0

    async def _restart(self, engine: SimEngine, seconds: float) -> None:
        engine.die()
        await asyncio.sleep(seconds)
        if not engine.alive:
            engine.start()

    async def _kill(self, fault: Fault) -> None:
        by_http, forced = fault.kind is not FaultKind.KILL, fault.kind is FaultKind.KILL_FORCED
        self._set(fault.level, by_http, forced)
        await asyncio.sleep(fault.seconds)
        self._set(KillLevel.NONE, by_http, forced)

    def _set(self, level: KillLevel, by_http: bool, forced: bool) -> None:
        self.on_level(self.clock.monotonic(), level, by_http)
        if by_http:
            self.kills.latch(level, None, "drill", "simulator", forced=forced)
        else:
            self.source.set_level(level)
