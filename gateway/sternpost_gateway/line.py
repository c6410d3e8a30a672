"""
The line behind a leader: who waits for the blocks that it computes, and who goes when they are there.

An engine computes whatever waits for it in one step, at whose end all of it begins to be answered. Followers
that come at once thus all wait for the sum of what each of them has still to compute. One after the other
they wait for no more than that, and on the average for little more than half of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

STEP_SECONDS_MIN: Final = 0.1
"""Who has less than so much to compute goes at once: engines gain from what they compute together, and a
turn costs a way there and back."""

TURN_FACTOR: Final = 2.0
"""A turn whose end nobody sees is over after so many times its predicted prefill. Small prompts take longer
than their tokens say, and who comes too early is computed together with who comes next."""

LINE_SECONDS_MAX: Final = 5.0
"""Who has stood in line for so long goes, whoever is computing."""


class Line:
    """Who follows one leader, in the order in which they came."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[bool]] = []
        self._turns = asyncio.Lock()

    def end(self, *, succeeded: bool) -> None:
        """Note that the leader has computed its blocks, or has failed to."""
        for ended in self._waiting:
            if not ended.done():
                ended.set_result(succeeded)

    async def ended(self) -> bool:
        """Wait for the leader; return whether it has computed its blocks."""
        ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(ended)
        try:
            return await ended
        finally:
            self._waiting.remove(ended)

    async def turn(self, seconds: float) -> Callable[[], None]:
        """
        Wait until the one before has computed its prompt, or should have; return what ends this turn.

        `seconds` is the predicted prefill of what the leader has not computed; a turn whose end is not seen
        ends by itself after `TURN_FACTOR` times as long.
        """
        if seconds < STEP_SECONDS_MIN:
            return no_turn
        try:
            async with asyncio.timeout(LINE_SECONDS_MAX):
                await self._turns.acquire()
        except TimeoutError:
            return no_turn
        return self._once(seconds)

    def _once(self, seconds: float) -> Callable[[], None]:
        # A stack runs what it holds once, however often it is closed.
        turn = ExitStack()
        turn.callback(self._turns.release)
        turn.callback(asyncio.get_running_loop().call_later(TURN_FACTOR * seconds, turn.close).cancel)
        return turn.close


def no_turn() -> None:
    """End a turn that nobody waits for."""
