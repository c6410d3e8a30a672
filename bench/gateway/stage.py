"""The mock engine and all gateways as processes, and who runs on which core."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.gateway.arms import Arm, pinned
from bench.gateway.ports import free_ports, url_of
from bench.routing.routers import running


@dataclass(frozen=True, slots=True)
class Engines:
    """The mock engine's base URLs: where it answers, and where its streams stop and stay open."""

    url: str
    holding_url: str


@dataclass(frozen=True, slots=True)
class Standing:
    """A gateway that runs: its base URL and its process group."""

    url: str
    group: int


@asynccontextmanager
async def running_engines(folder: Path) -> AsyncIterator[Engines]:
    """Run the mock engine for the length of a block, on any core but the gateways'."""
    port, holding_port = free_ports(2)
    command = [sys.executable, "-m", "bench.gateway.upstream", str(port), str(holding_port)]
    async with running(off_gateway_core(command), folder / "engine.log", f"{url_of(port)}/health"):
        yield Engines(url_of(port), url_of(holding_port))


@asynccontextmanager
async def running_arm(arm: Arm, engine: str, folder: Path) -> AsyncIterator[Standing]:
    """Run a gateway for the length of a block, on the gateways' core."""
    (port,) = free_ports(1)
    command = pinned(arm.command(port, engine), gateway_core())
    async with running(command, folder / f"{arm.name}.log", f"{url_of(port)}/v1/models") as group:
        yield Standing(url_of(port), group)


@asynccontextmanager
async def running_arms(arms: Sequence[Arm], engine: str, folder: Path) -> AsyncIterator[dict[str, Standing]]:
    """Run several gateways, started one after the other."""
    async with AsyncExitStack() as stack:
        yield {arm.name: await stack.enter_async_context(running_arm(arm, engine, folder)) for arm in arms}


def gateway_core() -> int | None:
    """Return the core that gateways run on, None on a machine with only one."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[0] if len(cores) > 1 else None


def off_gateway_core(command: Sequence[str]) -> list[str]:
    """Return a command that runs on the other cores."""
    cores = sorted(os.sched_getaffinity(0))[1:]
    return ["taskset", "--cpu-list", ",".join(map(str, cores)), *command] if cores else list(command)
