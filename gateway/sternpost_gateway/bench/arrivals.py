"""When sessions begin, and sending a workload's sessions at those moments."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from random import Random

from sternpost_gateway.bench.sample import Sample
from sternpost_gateway.bench.workload import Arrivals, Bursts, Closed, Poisson, Session, Traced

Converse = Callable[[Session], Awaitable[list[Sample]]]
"""Holds one session and returns its samples."""


def moments(arrivals: Arrivals, sessions: Sequence[Session], chance: Random) -> list[float] | None:
    """Return when each session begins, in seconds from the first; None where clients decide themselves."""
    match arrivals:
        case Closed():
            return None
        case Poisson(per_second):
            return _summed([chance.expovariate(per_second) for _ in sessions])
        case Bursts(size, seconds):
            return [number // int(size) * seconds for number in range(len(sessions))]
        case Traced(speed):
            first = min((session.at or 0.0 for session in sessions), default=0.0)
            return [((session.at or 0.0) - first) / speed for session in sessions]


async def hold_sessions(
    sessions: Sequence[Session], arrivals: Arrivals, chance: Random, converse: Converse
) -> list[Sample]:
    """Hold all sessions as they arrive and return their samples, session by session."""
    begin = moments(arrivals, sessions, chance)
    if begin is None:
        assert isinstance(arrivals, Closed), "only a closed loop has no moments"
        held = await _hold_closed(sessions, int(arrivals.at_once), converse)
    else:
        held = await asyncio.gather(
            *(_hold_at(session, at, converse) for session, at in zip(sessions, begin, strict=True))
        )
    return [sample for samples in held for sample in samples]


async def _hold_at(session: Session, at: float, converse: Converse) -> list[Sample]:
    await asyncio.sleep(at)
    return await converse(session)


async def _hold_closed(sessions: Sequence[Session], at_once: int, converse: Converse) -> list[list[Sample]]:
    waiting = deque(enumerate(sessions))
    held: dict[int, list[Sample]] = {}

    async def be_client() -> None:
        while waiting:
            place, session = waiting.popleft()
            held[place] = await converse(session)

    await asyncio.gather(*(be_client() for _ in range(at_once)))
    return [held[place] for place in sorted(held)]


def _summed(gaps: Sequence[float]) -> list[float]:
    total, found = 0.0, []
    for gap in gaps:
        total += gap
        found.append(total)
    return found
