"""The engines that routers are tried in front of: what a run asks of them, and the mock ones."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import aiohttp

from bench.common.process_group import group_cpu_seconds
from bench.gateway.ports import free_ports
from bench.routing.routers import HOST, running
from bench.routing.workloads import WHOLE, Event, Size, Workload

MOCKS: Final = 4


class Stage(Protocol):
    """The engines of a run."""

    @property
    def urls(self) -> Sequence[str]:
        """Return the engines' base URLs."""

    @property
    def model(self) -> str:
        """Return the name that all of them serve."""

    @property
    def size(self) -> Size:
        """Return how much of a workload they can do."""

    def can_run(self, workload: Workload) -> bool:
        """Say whether everything that the workload has happen can."""

    async def begin(self, workload: Workload) -> None:
        """Let those engines be down that are to be."""

    async def empty(self) -> None:
        """Have the engines hold nothing, and begin to count."""

    async def happen(self, event: Event) -> None:
        """Let an engine come or go."""

    async def work(self) -> Sequence[float]:
        """Return how much each engine has done since it was emptied, in any unit."""

    def cpu_seconds(self) -> float:
        """Return the CPU time that the engines have had."""


@dataclass(frozen=True, slots=True)
class MockStage:
    """Mock engines in one process, which leads the group `group` and is controlled at the URL `control`."""

    control: str
    ports: Sequence[int]
    group: int
    http: aiohttp.ClientSession = field(repr=False)
    model: str = "mock"
    size: Size = WHOLE

    @property
    def urls(self) -> Sequence[str]:
        """Return the engines' base URLs."""
        return [f"http://{HOST}:{port}" for port in self.ports]

    def can_run(self, workload: Workload) -> bool:
        """Say yes: mock engines come and go as one likes."""
        return True

    async def begin(self, workload: Workload) -> None:
        """Let those engines be down that are to be, and all others up."""
        for engine in range(len(self.ports)):
            await self.happen(Event(0.0, engine, engine not in workload.down))

    async def empty(self) -> None:
        """Have the engines hold nothing, and begin to count."""
        await self._post("reset")

    async def happen(self, event: Event) -> None:
        """Let an engine come or go, with everything that is connected to it."""
        await self._post(f"engine/{self.ports[event.engine]}/{'up' if event.up else 'down'}")

    async def work(self) -> Sequence[float]:
        """Return for how many seconds each engine has been at work."""
        async with self.http.get(f"{self.control}/totals") as response:
            totals: Sequence[Mapping[str, Any]] = await response.json()
        return [engine["busy_seconds"] for engine in totals]

    def cpu_seconds(self) -> float:
        """Return the CPU time that the process has had."""
        return group_cpu_seconds(self.group)

    async def _post(self, path: str) -> None:
        async with self.http.post(f"{self.control}/{path}") as response:
            response.raise_for_status()


@asynccontextmanager
async def mock_stage(folder: Path) -> AsyncIterator[MockStage]:
    """Run mock engines for the length of a block."""
    control_port, *ports = await asyncio.to_thread(free_ports, MOCKS + 1)
    control = f"http://{HOST}:{control_port}"
    command = [sys.executable, "-m", "bench.routing.mock_engines", *map(str, (control_port, *ports))]
    async with (
        running(command, folder / "mocks.log", f"{control}/totals") as group,
        aiohttp.ClientSession() as http,
    ):
        yield MockStage(control, ports, group, http)
