"""A gateway in a process of its own, for what only a whole process has: signals, and a sudden end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

START_SECONDS_MAX = 20.0
"""Within which a gateway must listen, and have found its engine ready."""

FOUND = "is ready: its probe found it up"


@asynccontextmanager
async def gateway_process(
    directory: Path, engine: str, *flags: str, engine_is_up: bool = True
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """
    Run the command in a process of its own; yield it and its URL. At the end it is killed.

    A gateway listens before it has asked any engine; until then it has none, in each of its workers.
    """
    policies = directory / "policies"
    policies.mkdir(exist_ok=True)
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sternpost_core", "gateway", "--policies", str(policies), "--engine", engine),
        *("--port", "0", "--drain-delay-seconds", "0.2", *flags),
        stderr=asyncio.subprocess.PIPE,
    )
    assert started.stderr is not None
    try:
        async with asyncio.timeout(START_SECONDS_MAX):
            url = await _come_up(started.stderr, _workers(flags) if engine_is_up else 0)
        yield started, url
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()
        # What is left is read, so that the pipe is closed with the process.
        await started.stderr.read()


async def _come_up(log: asyncio.StreamReader, workers: int) -> str:
    """Read a log until the gateway listens and so many workers have found their engine; return its URL."""
    url, found = "", 0
    while not url or found < workers:
        line = (await log.readline()).decode()
        assert line, "the process has ended"
        url = url or line.partition("listening on ")[2].partition(" ")[0]
        found += FOUND in line
    return url


def _workers(flags: Sequence[str]) -> int:
    numbers = [int(value) for name, value in pairwise(flags) if name == "--workers"]
    return numbers[-1] if numbers else 1
