"""
A `sternpost up` with the real vLLM, for tests: started, waited for, and ended without a process left over.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sternpost_engine.model_fetch import MODEL_NAME
from sternpost_running.ports import free_ports

READY_SECONDS_MAX: Final = 300
"""Loading the small model takes a minute on two cores, longer when they are shared."""

END_SECONDS_MAX: Final = 60
POLL_SECONDS: Final = 0.2
READY_LINE: Final = re.compile(r"^ready: (\S+) \(", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class RunningUp:
    """A running `up`: where it answers, and where its files lie."""

    base_url: str
    """The OpenAI API behind the gateway, with `/v1`."""
    gateway_url: str
    engine_url: str
    model: str
    folder: Path
    """Holds `out` and `err`, and the folder `state`."""

    @property
    def policies(self) -> Path:
        """The folder of policies that the gateway watches."""
        return self.folder / "state" / "policies"

    @property
    def admin_token(self) -> str:
        """The secret of the gateway's admin paths."""
        return (self.folder / "state" / "admin-token").read_text().strip()


@contextlib.contextmanager
def running_up(model: Path, folder: Path) -> Iterator[RunningUp]:
    """
    Run `sternpost up` with one engine, its files in `folder`, and end it by SIGINT.

    Raises:
        AssertionError: when it does not get ready, does not end in order, or leaves a process behind.
    """
    port, engine_port = free_ports(2)
    process = _start(folder, model, port, engine_port)
    try:
        base_url = _wait_until_ready(process, folder)
        yield RunningUp(
            base_url=base_url,
            gateway_url=f"http://127.0.0.1:{port}",
            engine_url=f"http://127.0.0.1:{engine_port}",
            model=MODEL_NAME,
            folder=folder,
        )
    finally:
        status = _end(process)
    assert (0, []) == (status, processes_that_name(folder))


def processes_that_name(folder: Path) -> list[str]:
    """Return the command lines of all living processes that carry the folder in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            # It has ended meanwhile, or is another user's.
            continue
    return found


def _start(folder: Path, model: Path, port: int, engine_port: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "sternpost_core", "up", "--model", str(model), "--port", str(port)]
    command += ["--engine-port-base", str(engine_port), "--state", str(folder / "state")]
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        # Every process below inherits this mark, by which those that are left over would be found.
        environment = {**os.environ, "STERNPOST_TEST_MARK": str(folder)}
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err)


def _wait_until_ready(process: subprocess.Popen[bytes], folder: Path) -> str:
    deadline = time.monotonic() + READY_SECONDS_MAX
    while time.monotonic() < deadline and process.poll() is None:
        if found := READY_LINE.search((folder / "out").read_text()):
            return found[1]
        time.sleep(POLL_SECONDS)
    raise AssertionError("`sternpost up` did not get ready:\n" + (folder / "err").read_text())


def _end(process: subprocess.Popen[bytes]) -> int:
    process.send_signal(signal.SIGINT)
    try:
        return process.wait(timeout=END_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
