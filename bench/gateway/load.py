"""One run of the load generator, and what the gateway computed meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.gateway.upstream import CHAT_PATH
from sternpost_core.errors import OperatingError

SCRIPT: Final = Path(__file__).with_name("post.lua")
GENERATOR: Final = "wrk"
ANSWER_SECONDS_MAX: Final = 30.0
"""For one answer; a gateway that is asked for more than it can do takes seconds for each."""

FACTORS: Final = (1, 4, 16)
"""How many times as long a run may take; a gateway's first answer can take longer than a run."""

SPARE_SECONDS: Final = 60.0
"""Beyond a run's own time until the generator must have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What is measured: which bodies are sent, over how many connections at once."""

    name: str
    bodies: Path
    connections: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """
    One run: `requests` were answered and `failed` were not; p50 and p99 are seconds of whole answers.

    `cpu_seconds` is what the gateway's processes computed meanwhile, 0 where there was none.
    """

    requests: int
    failed: int
    seconds: float
    p50: float
    p99: float
    cpu_seconds: float

    @property
    def rate(self) -> float:
        """Return the answers per second."""
        return self.requests / self.seconds

    @property
    def rate_per_core(self) -> float:
        """Return the answers per second of the gateway's CPU time; infinite where it took none."""
        return self.requests / self.cpu_seconds if self.cpu_seconds else float("inf")


async def measure(url: str, cell: Cell, seconds: int, cpu_seconds: Callable[[], float]) -> Sample:
    """
    Load `url` for some seconds, and for longer where nothing is answered in so short a time.

    `cpu_seconds` returns what the gateway has computed so far.

    Raises:
        OperatingError: the generator failed, or nothing was answered.
    """
    for factor in FACTORS:
        before = cpu_seconds()
        output = await _generate(_command(url, cell, factor * seconds), factor * seconds + SPARE_SECONDS)
        sample = sample_of(output, cpu_seconds() - before)
        if sample.requests > 0:
            return sample
    raise OperatingError(f"{cell.name}: nothing was answered")


def sample_of(output: str, cpu_seconds: float) -> Sample:
    """
    Read what the generator printed.

    Raises:
        OperatingError: it printed no figures.
    """
    try:
        found: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    except (ValueError, IndexError):
        raise OperatingError(f"{GENERATOR} printed no figures") from None
    return Sample(
        requests=found["requests"] - found["failed"],
        failed=found["failed"],
        seconds=found["seconds"],
        p50=found["p50"],
        p99=found["p99"],
        cpu_seconds=cpu_seconds,
    )


def _command(url: str, cell: Cell, seconds: int) -> list[str]:
    return [
        *(GENERATOR, "--threads", "1", "--connections", str(cell.connections)),
        *("--duration", f"{seconds}s", "--timeout", f"{ANSWER_SECONDS_MAX:.0f}s"),
        *("--script", str(SCRIPT), url, "--", CHAT_PATH, str(cell.bodies)),
    ]


async def _generate(command: list[str], seconds_max: float) -> str:
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
    except FileNotFoundError:
        raise OperatingError(f"the load generator {GENERATOR} is not installed") from None
    try:
        async with asyncio.timeout(seconds_max):
            output, errors = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise OperatingError(f"{GENERATOR} did not end in time") from None
    if process.returncode:
        raise OperatingError(f"{GENERATOR} failed: {errors.decode(errors='replace').strip()[-300:]}")
    return output.decode()
