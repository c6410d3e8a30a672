"""A gateway in a process of its own, for what only a whole process has: signals, and a sudden end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

START_SECONDS_MAX = 20.0
"""Within which a gateway must listen."""


@asynccontextmanager
async def gateway_process(
    directory: Path, engine: str, *flags: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Run the command in a process of its own; yield it and its URL. At the end it is killed."""
    policies = directory / "policies"
    policies.mkdir(exist_ok=True)
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sternpost_core", "gateway", "--policies", str(policies), "--engine", engine),
        *("--port", "0", "--drain-delay-seconds", "0.2", *flags),
        stderr=asyncio.subprocess.PIPE,
    )
    assert started.stderr is not None
    try:
        url = ""
        async with asyncio.timeout(START_SECONDS_MAX):
            while not url:
                line = (await started.stderr.readline()).decode()
                assert line, "the process has ended"
                url = line.partition("listening on ")[2].partition(" ")[0]
        yield started, url
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()
        # What is left is read, so that the pipe is closed with the process.
        await started.stderr.read()
