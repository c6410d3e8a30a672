"""
One child process behind its guard: starting it, looking at it, ending it.

A `Lifeline` is made once and lives as long as the program: its end, for whatever reason, ends every child.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sternpost_core.errors import OperatingError
from sternpost_operator.local import guard
from sternpost_operator.local.child import ChildSpec

LOG_BYTES_MAX: Final = 10_000_000
"""A log that is longer when its child starts is set aside, so that two files bound what children leave."""

LOG_TAIL_BYTES_MAX: Final = 20_000
"""How much of a log's end is read for its last lines."""

KILL_SECONDS_MAX: Final = 5.0
"""How long a guard may take to kill its child's group before it is killed itself."""

POLL_SECONDS: Final = 0.05


class Lifeline:
    """A pipe that nobody writes to: each guard has its reading end, this program alone its writing end."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()

    def close(self) -> None:
        """End every child that is left."""
        os.close(self._writer)
        os.close(self.reader)


class ChildProcess:
    """A running or ended child; `pid` is its guard's."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, log_start: int) -> None:
        self._process = process
        self._log = log
        self._log_start = log_start
        self.pid = process.pid

    @property
    def exit_status(self) -> int | None:
        """The child's status, or None while it runs."""
        return self._process.poll()

    def last_lines(self, lines_max: int) -> list[str]:
        """Return the last lines that this process wrote to its log."""
        with self._log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(self._log_start, end - LOG_TAIL_BYTES_MAX))
            text = file.read().decode("utf-8", errors="replace")
        return [line for line in text.splitlines() if line.strip()][-lines_max:]

    async def stop(self, seconds_max: float) -> bool:
        """Ask the child to end, kill it after `seconds_max`, and tell whether it ended by itself."""
        self._signal(signal.SIGTERM)
        if await self._ended_within(seconds_max):
            return True
        await self.kill()
        return False

    async def kill(self) -> None:
        """End the child and all that it started, at once."""
        self._signal(signal.SIGUSR1)
        if not await self._ended_within(KILL_SECONDS_MAX):
            self._signal(signal.SIGKILL)
            await self._ended_within(KILL_SECONDS_MAX)

    def _signal(self, number: signal.Signals) -> None:
        # Popen does not signal a process that it has reaped, so the number cannot reach a stranger.
        self._process.send_signal(number)

    async def _ended_within(self, seconds: float) -> bool:
        deadline = asyncio.get_running_loop().time() + seconds
        while self.exit_status is None:
            if asyncio.get_running_loop().time() >= deadline:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True


def start(child: ChildSpec, environment: Mapping[str, str], lifeline: Lifeline) -> ChildProcess:
    """
    Start the child behind a guard, in a session of its own, with both output streams in its log.

    Raises:
        OperatingError: when the log cannot be written or no process can be made.
    """
    # Neither the environment nor site-packages concern the guard: -I and -S leave both aside.
    command = [sys.executable, "-I", "-S", guard.__file__, str(lifeline.reader), *child.command]
    try:
        _set_aside_long_log(child.log)
        with child.log.open("ab") as log:
            process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(lifeline.reader,),
                start_new_session=True,
            )
            return ChildProcess(process, child.log, log.tell())
    except OSError as error:
        raise OperatingError(f"{child.name} cannot be started: {error}") from error


def _set_aside_long_log(log: Path) -> None:
    if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
        log.replace(log.with_name(f"{log.name}.1"))
