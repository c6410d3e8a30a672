"""One background task for each engine of a pool that changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from sternpost_gateway.fleet import Engine

logger = logging.getLogger(__name__)


async def run_per_engine(
    engines: Callable[[], Sequence[Engine]],
    work: Callable[[Engine], Coroutine[Any, Any, None]],
    period_seconds: float,
    on_gone: Callable[[Engine], None] = lambda engine: None,
) -> None:
    """
    Run `work` for each engine for as long as it is in the pool, until cancelled.

    The pool is looked at once in a period. Work that has ended is begun again; `on_gone` is told when an
    engine's work is over for good.
    """
    tasks: dict[Engine, asyncio.Task[None]] = {}
    try:
        while True:
            _follow(tasks, engines(), work, on_gone)
            await asyncio.sleep(period_seconds)
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)


def _follow(
    tasks: dict[Engine, asyncio.Task[None]],
    engines: Sequence[Engine],
    work: Callable[[Engine], Coroutine[Any, Any, None]],
    on_gone: Callable[[Engine], None],
) -> None:
    for engine in set(tasks).difference(engines):
        tasks.pop(engine).cancel()
        on_gone(engine)
    for engine in engines:
        task = tasks.get(engine)
        if task is None or task.done():
            if task is not None and not task.cancelled() and task.exception() is not None:
                logger.error(
                    "work on engine %s has failed, and begins again", engine.url, exc_info=task.exception()
                )
            tasks[engine] = asyncio.create_task(work(engine), name=f"{work.__qualname__} {engine.url}")
