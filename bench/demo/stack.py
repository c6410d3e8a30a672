"""`sternpost up` as a child process: started, waited for, watched and ended, whatever happens in between."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

from bench.demo.progress import Progress
from sternpost_core.errors import OperatingError

HOST: Final = "127.0.0.1"

GATEWAY_PORT: Final = 8080
ENGINE_PORT: Final = 8100
"""The ports that `sternpost up` would take by itself; where one is in use, the next free one is taken."""

PORTS_TRIED_MAX: Final = 200

READY_SECONDS_MAX: Final = 180.0
"""Two engines on two shared cores load within a minute."""

STOP_SECONDS_MAX: Final = 60.0
"""`sternpost up` gives the gateway 35 s and the engines 15 s to end in order."""

READY_PREFIX: Final = "ready: "
LOG: Final = "up.log"
LINE_BYTES_MAX: Final = 1 << 20

PR_SET_PDEATHSIG: Final = 1
"""From <linux/prctl.h>: sets the signal that a process gets when its parent ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSettings:
    """What is started: how many engines, on which model (None for the small one), and where its files go."""

    engines: int
    model: Path | None
    logs: Path
    state: Path
    port: int
    engine_port_base: int

    @property
    def gateway(self) -> str:
        """The gateway's origin."""
        return f"http://{HOST}:{self.port}"

    @property
    def engine_origins(self) -> tuple[str, ...]:
        """The engines' own origins."""
        return tuple(f"http://{HOST}:{self.engine_port_base + number}" for number in range(self.engines))

    @property
    def admin_token(self) -> Path:
        """The file that `sternpost up` writes the admin paths' token to."""
        return self.state / "admin-token"


class Stack:
    """The running `sternpost up`."""

    def __init__(self, process: Process, log: TextIO, progress: Progress) -> None:
        self._process = process
        self._log = log
        self._progress = progress
        self._ready = asyncio.Event()
        self._relay = asyncio.create_task(self._relay_lines())

    async def wait_ready(self) -> None:
        """
        Wait for the ready line.

        Raises:
            OperatingError: it did not come in time, or the process ended first.
        """
        ready = asyncio.create_task(self._ready.wait())
        try:
            async with asyncio.timeout(READY_SECONDS_MAX):
                await asyncio.wait({ready, self._relay}, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError as error:
            raise OperatingError(f"`sternpost up` was not ready within {READY_SECONDS_MAX:.0f} s") from error
        finally:
            ready.cancel()
        if not self._ready.is_set():
            raise OperatingError(
                f"`sternpost up` ended before it was ready; its words are in {self._log.name}"
            )

    async def wait_ended(self) -> None:
        """
        Wait until the process ends by itself, which it should not.

        Raises:
            OperatingError: always, once it has.
        """
        status = await self._process.wait()
        raise OperatingError(f"`sternpost up` ended with status {status}; its words are in {self._log.name}")

    async def stop(self) -> None:
        """End the process, in order if it can, and return when it has ended."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await self._process.wait()
                await self._relay
        except TimeoutError:
            self._progress.tell(f"`sternpost up` did not end within {STOP_SECONDS_MAX:.0f} s and is killed")
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        finally:
            self._relay.cancel()

    async def _relay_lines(self) -> None:
        assert self._process.stdout is not None, "the process was started with a pipe"
        async for data in self._process.stdout:
            line = data.decode("utf-8", errors="replace").rstrip()
            print(line, file=self._log, flush=True)
            self._progress.tell(f"up: {line}")
            if line.startswith(READY_PREFIX):
                self._ready.set()


@contextlib.asynccontextmanager
async def running(command: Sequence[str], logs: Path, progress: Progress) -> AsyncIterator[Stack]:
    """
    Start `sternpost up` by its command, hand it over once it is ready, and end it.

    Raises:
        OperatingError: it did not get ready.
    """
    with (logs / LOG).open("w", encoding="utf-8") as log:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            limit=LINE_BYTES_MAX,
            # A Ctrl-C reaches this program alone, which then ends the other one, in order.
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
        stack = Stack(process, log, progress)
        try:
            await stack.wait_ready()
            yield stack
        finally:
            progress.tell("ending `sternpost up`")
            await stack.stop()


def up_command(settings: StackSettings) -> list[str]:
    """Return the command."""
    command = [sys.executable, "-m", "sternpost_core", "up", "--engines", str(settings.engines)]
    command += ["--port", str(settings.port), "--engine-port-base", str(settings.engine_port_base)]
    command += ["--logs", str(settings.logs), "--state", str(settings.state)]
    return command if settings.model is None else [*command, "--model", str(settings.model)]


def free_ports(start: int, count: int) -> int:
    """
    Return the first port, from `start` on, that begins `count` free ones in a row.

    Raises:
        OperatingError: there are none among the ports that are tried.
    """
    for first in range(start, start + PORTS_TRIED_MAX):
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    raise OperatingError(
        f"no {count} free ports in a row from {start} to {start + PORTS_TRIED_MAX - 1}; free some"
    )


def _is_free(port: int) -> bool:
    with _socket() as listener:
        try:
            listener.bind((HOST, port))
        except OSError:
            return False
    return True


@contextlib.contextmanager
def _socket() -> Iterator[socket.socket]:
    with socket.socket() as listener:
        # As servers do: the ports of connections that ended just now are free.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        yield listener


def end_with_parent() -> None:
    """Let a child end with this program, however that ends; for `preexec_fn`."""
    # Even a SIGKILL of this program then ends the child, and with it whatever it started.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() == 1:
            os.kill(os.getpid(), signal.SIGTERM)
