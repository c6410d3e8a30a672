"""
The kill switch by signal, for when there is neither network nor disk to be relied on.

SIGUSR1 turns suffix reads off for all policies; SIGUSR2 takes that back, and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from sternpost_core.errors import OperatingError
from sternpost_core.kill import KillLevel
from sternpost_gateway.kills import Kills, Source

logger = logging.getLogger(__name__)

LEVELS: Final[Mapping[signal.Signals, KillLevel]] = {
    signal.SIGUSR1: KillLevel.NO_SUFFIX_READS,
    signal.SIGUSR2: KillLevel.NONE,
}
"""What each signal sets."""


@contextmanager
def kill_signals(kills: Kills) -> Iterator[None]:
    """Act on the signals for the length of a block; only the process's main thread can."""
    loop = asyncio.get_running_loop()
    installed: list[signal.Signals] = []
    try:
        for number in LEVELS:
            loop.add_signal_handler(number, take_signal, kills, number)
            installed.append(number)
    except (RuntimeError, ValueError):
        logger.warning("not in the main thread: no kill switch by signal")
    try:
        yield
    finally:
        for number in installed:
            loop.remove_signal_handler(number)


def take_signal(kills: Kills, number: signal.Signals) -> None:
    """Set what a signal sets; the sender is not known."""
    try:
        kills.latch(LEVELS[number], None, f"{number.name} received", "signal", Source.SIGNAL)
    except OperatingError as error:
        logger.error("the signal's level would not survive a restart: %s", error)
