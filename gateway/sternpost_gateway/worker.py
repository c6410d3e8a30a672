"""
What a process does because it is one of several that share a port.

Each worker is a gateway by itself, with a share of what one gateway takes on. It answers its siblings over a
socket of its own, and it takes requests only when it knows what is switched off and has found an engine.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from sternpost_gateway.cold_limiter import ColdLimits
from sternpost_gateway.fleet import Fleet
from sternpost_gateway.kills import Kills
from sternpost_gateway.settings import Limits, Settings, Worker
from sternpost_gateway.siblings import Siblings, socket_path

READY_SECONDS_MAX: Final = 2.0
"""For which a worker waits for its first ready engine; then it serves, and says that there is none."""

READY_POLL_SECONDS: Final = 0.02
AGREE_SECONDS: Final = 1.0
"""Between two looks at the epochs that other workers have reached."""

SIBLING_BACKLOG: Final = 16


def share_of(settings: Settings) -> Settings:
    """Return the settings of one of the workers: what bounds a whole gateway is divided among them."""
    return replace(
        settings,
        limits=_limits_share(settings.limits, settings.workers),
        cold=_cold_share(settings.cold, settings.workers),
    )


def _limits_share(limits: Limits, count: int) -> Limits:
    return replace(
        limits,
        in_flight_max=_divided(limits.in_flight_max, count),
        connections_max=_divided(limits.connections_max, count),
        bodies_bytes_max=_divided(limits.bodies_bytes_max, count),
        retry_min=_divided(limits.retry_min, count),
    )


def _cold_share(cold: ColdLimits, count: int) -> ColdLimits:
    return replace(
        cold,
        batched_tokens=_divided(cold.batched_tokens, count),
        sequences=_divided(cold.sequences, count),
    )


def _divided(whole: int, count: int) -> int:
    return max(1, whole // count)


class SiblingServer(uvicorn.Server):
    """A server beside the one that minds the signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the server of the clients."""
        yield


@asynccontextmanager
async def answering_siblings(own: ASGIApp, worker: Worker, kills: Kills) -> AsyncIterator[None]:
    """
    Answer the other workers for the length of a block, with what is in force at its beginning.

    Raises:
        OperatingError: other workers have been busy with an order for too long.
    """
    server = SiblingServer(
        uvicorn.Config(
            own,
            loop="none",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
        )
    )
    async with Siblings(worker).turn():
        serving = asyncio.create_task(server.serve(sockets=[_listen(worker)]), name="siblings")
        while not (server.started or serving.done()):
            await asyncio.sleep(0)
        kills.reload()
    try:
        yield
    finally:
        server.should_exit = True
        await serving


async def first_engine(fleet: Fleet) -> None:
    """Wait for a ready engine, for a limited time."""
    for _ in range(int(READY_SECONDS_MAX / READY_POLL_SECONDS)):
        if fleet.ready_views():
            return
        await asyncio.sleep(READY_POLL_SECONDS)


async def keep_agreed(kills: Kills) -> None:
    """Keep up with the epochs that other workers have reached; runs until it is cancelled."""
    while True:
        await asyncio.sleep(AGREE_SECONDS)
        kills.agree()


def _listen(worker: Worker) -> socket.socket:
    """Return the socket for siblings, in the place of that of an earlier process."""
    path = socket_path(worker, worker.index)
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen(SIBLING_BACKLOG)
    return listening
