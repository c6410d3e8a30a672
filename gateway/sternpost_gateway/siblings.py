"""
The worker processes of one gateway, as each of them reaches all: over a socket for each, in a private folder.

What is asked of all at once is asked by one process at a time, so that two orders arrive everywhere in one
order; a worker that starts takes its place in that queue, so that no order falls between its reading what is
in force and its being reached.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from sternpost_core.errors import OperatingError
from sternpost_gateway.settings import Worker

ANSWER_SECONDS_MAX: Final = 2.0
"""For a worker's whole answer; one that takes longer is told as not answering."""

TURN_SECONDS_MAX: Final = 10.0
"""For which one process waits for its turn to ask all."""

TURN_POLL_SECONDS: Final = 0.005
TURN_FILE: Final = "turn"


@dataclass(frozen=True, slots=True)
class Said:
    """What a worker answered; `status` is None where it did not: it hangs or, if not `runs`, is not there."""

    worker: int
    status: int | None = None
    body: bytes = b""
    runs: bool = True


class Siblings:
    """All workers of a gateway, this one included."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def ask(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes = b""
    ) -> tuple[Said, ...]:
        """Ask all workers at once; a worker that does not run, or hangs, has said nothing."""
        asked = (self._ask_one(index, method, target, headers, body) for index in range(self._worker.count))
        return tuple(await asyncio.gather(*asked))

    async def _ask_one(
        self, index: int, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> Said:
        transport = httpx.AsyncHTTPTransport(uds=str(socket_path(self._worker, index)))
        try:
            async with (
                asyncio.timeout(ANSWER_SECONDS_MAX),
                httpx.AsyncClient(transport=transport, base_url="http://worker") as client,
            ):
                answer = await client.request(method, target, headers=dict(headers), content=body)
        except httpx.ConnectError:
            return Said(index, runs=False)
        except (httpx.HTTPError, TimeoutError):
            return Said(index)
        return Said(index, answer.status_code, answer.content)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """
        Hold the turn to ask all workers for the length of a block.

        Raises:
            OperatingError: others have held it for too long.
        """
        descriptor = os.open(self._worker.folder / TURN_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            await _lock(descriptor)
            yield
        finally:
            # Closing gives the turn back, and so does the end of the process.
            os.close(descriptor)


def socket_path(worker: Worker, index: int) -> Path:
    """Return where a worker of the same gateway answers its siblings."""
    return worker.folder / f"worker-{index}.sock"


async def _lock(descriptor: int) -> None:
    try:
        async with asyncio.timeout(TURN_SECONDS_MAX):
            while not _try_lock(descriptor):
                await asyncio.sleep(TURN_POLL_SECONDS)
    except TimeoutError:
        raise OperatingError("the other workers of the gateway are busy with an order; ask again") from None


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
