"""Two vLLM engines on this machine's cores as the stage: what they hold is theirs to say."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.common.engine_api import Engine, metric_sum
from bench.common.engine_process import EngineSettings, running_engine
from bench.common.process_group import group_cpu_seconds
from bench.demo.progress import Progress
from bench.routing.workloads import Event, Size, Workload
from sternpost_core.clock import SystemClock
from sternpost_core.errors import OperatingError

ENGINES: Final = 2
SIZE: Final = Size(count=0.2, tokens=0.12, seconds=4.0)
"""What a small model computes on one core: some 1,500 of its tokens a second, five to a mock engine's two."""

QUERIES: Final = "vllm:prefix_cache_queries_total"
HITS: Final = "vllm:prefix_cache_hits_total"
"""Prompt tokens that were looked for in the prefix store, and those that were found."""

ARGUMENTS: Final = ("--block-size", "32")


@dataclass(slots=True)
class RealStage:
    """Running engines; `counted` is what each had computed when it was emptied."""

    engines: Sequence[Engine]
    size: Size = SIZE
    counted: list[float] = field(default_factory=list)

    @property
    def urls(self) -> Sequence[str]:
        """Return the engines' base URLs."""
        return [str(engine.http.base_url).rstrip("/") for engine in self.engines]

    @property
    def model(self) -> str:
        """Return the name that all of them serve."""
        return self.engines[0].model

    def can_run(self, workload: Workload) -> bool:
        """Say whether all engines are there all the time: they take a minute to load."""
        return not workload.events and not workload.down

    async def begin(self, workload: Workload) -> None:
        """Do nothing: all engines are up."""

    async def empty(self) -> None:
        """Have the engines hold nothing, and begin to count."""
        for engine in self.engines:
            await engine.forget_prefixes()
        self.counted = [await _computed(engine) for engine in self.engines]

    async def happen(self, event: Event) -> None:
        """
        Refuse.

        Raises:
            OperatingError: always.
        """
        raise OperatingError("real engines do not come and go here")

    async def work(self) -> Sequence[float]:
        """Return how many prompt tokens each engine has computed since it was emptied."""
        now = [await _computed(engine) for engine in self.engines]
        return [later - earlier for earlier, later in zip(self.counted, now, strict=True)]

    def cpu_seconds(self) -> float:
        """Return the CPU time that the engines have had, all their processes together."""
        return sum(group_cpu_seconds(engine.pid) for engine in self.engines)


@asynccontextmanager
async def real_stage(model: Path, folder: Path) -> AsyncIterator[RealStage]:
    """
    Run engines without the plugin for the length of a block, started one after the other.

    Raises:
        OperatingError: one did not get ready.
    """
    clock = SystemClock()
    progress = Progress(clock, clock.monotonic(), sys.stdout)
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(
                running_engine(
                    EngineSettings(name=f"engine-{number}", model=model, plain=True, arguments=ARGUMENTS),
                    folder,
                    progress,
                )
            )
            for number in range(ENGINES)
        ]
        yield RealStage(engines)


async def _computed(engine: Engine) -> float:
    return computed_tokens((await engine.http.get("/metrics")).text)


def computed_tokens(page: str) -> float:
    """Return the prompt tokens that an engine has computed, by its page of metrics."""
    return metric_sum(page, QUERIES) - metric_sum(page, HITS)
