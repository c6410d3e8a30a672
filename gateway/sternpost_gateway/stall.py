"""A limit on how long one write to a client may take, without a timer for each of a stream's pieces."""

from __future__ import annotations

import asyncio


class Stall:
    """
    Cancels the task whose write takes longer than `seconds`; one timer serves all writes of an exchange.

    A write stands between `begin` and `end`, and only one at a time. `close` is due when no more will follow.
    """

    __slots__ = ("_has_cancelled", "_seconds", "_since", "_task", "_timer")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: float | None = None
        self._task: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._has_cancelled = False

    def begin(self) -> None:
        """Count from now on, for the task that runs."""
        loop = asyncio.get_running_loop()
        self._task, self._since = asyncio.current_task(), loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self._seconds, self._look)

    def end(self) -> None:
        """Count no more."""
        self._since = None

    def close(self) -> None:
        """Let go of the timer."""
        self._since = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def takes_back(self) -> bool:
        """Take back a cancellation that came from here; say whether it was the only one."""
        if not self._has_cancelled or self._task is None:
            return False
        self._has_cancelled = False
        return self._task.uncancel() == 0

    def _look(self) -> None:
        self._timer = None
        if self._since is None or self._task is None:
            # The next write will arm it again.
            return
        loop = asyncio.get_running_loop()
        left = self._since + self._seconds - loop.time()
        if left > 0.0:
            self._timer = loop.call_later(left, self._look)
        else:
            self._has_cancelled = True
            self._task.cancel()
