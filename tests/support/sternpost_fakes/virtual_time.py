"""
An event loop whose time passes only when nothing is left to do at the present moment.

What sleeps for an hour takes no time to test, and the same steps come in the same order each time. A program
in which everything waits for something that will never happen ends with an error instead of hanging.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple, Unpack

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")

EPOCH = 1_700_000_000.0
"""The Unix time at which virtual time begins."""


class Stuck(AssertionError):
    """Every task waits, and no timer runs."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """The event loop; `now` is its time in seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        """Return the virtual time."""
        return self.now

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Arguments]], Result], *args: *Arguments
    ) -> asyncio.Future[Result]:
        """Call at once: another thread would take real time, for which virtual time does not wait."""
        done: asyncio.Future[Result] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001
            # As an executor does: it is the waiting task's to raise.
            done.set_exception(error)
        return done


class _JumpingSelector(selectors.SelectSelector):
    """Lets the time that it would have waited pass at once."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready, and move the time on if nothing is."""
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise Stuck("everything waits, and no timer runs")
            self._loop.now += timeout
        return ready


class VirtualClock:
    """Implements `sternpost_core.clock.Clock` by a loop's time; `offset` moves the date alone."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.offset = EPOCH
        self._loop = loop

    def monotonic(self) -> float:
        """Return the loop's time."""
        return self._loop.now

    def time(self) -> float:
        """Return the Unix time, jumps included."""
        return self._loop.now + self.offset


def run_virtual(main: Callable[[VirtualClock], Coroutine[Any, Any, Result]]) -> Result:
    """Run a coroutine in virtual time to its end."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main(VirtualClock(loop)))
    finally:
        pending = asyncio.all_tasks(loop)
        for task in pending:
            task.cancel()
        if pending:
            loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        loop.close()
