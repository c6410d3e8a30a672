"""Engines as processes of their own, which can be killed and frozen; `main` is the program that each runs."""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

import httpx

from sternpost_fakes.engine import FakeEngine
from sternpost_running.kubernetes import die_with_parent, program_environment, wait_for
from sternpost_running.ports import free_ports

HOST: Final = "127.0.0.1"
STARTED_SECONDS_MAX: Final = 30.0


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """An engine in a process of its own."""

    url: str
    process: subprocess.Popen[bytes]


@contextmanager
def running_engine_processes(count: int, *flags: str) -> Iterator[list[EngineProcess]]:
    """Run engines for the length of a block; the flags are those of `main`, but for the port."""
    with ExitStack() as stack:
        engines = [stack.enter_context(_running(port, flags)) for port in free_ports(count)]
        for engine in engines:
            wait_for(partial(_answers, engine.url), "the engine answers", STARTED_SECONDS_MAX)
        yield engines


@contextmanager
def _running(port: int, flags: Sequence[str]) -> Iterator[EngineProcess]:
    command = [sys.executable, "-m", "sternpost_running.engine_process", "--port", str(port), *flags]
    process = subprocess.Popen(command, preexec_fn=die_with_parent, env=program_environment())
    try:
        yield EngineProcess(f"http://{HOST}:{port}", process)
    finally:
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"{url}/health", trust_env=False).status_code == 200
    return False


async def serve(engine: FakeEngine, port: int) -> None:
    """Serve until the program ends."""
    engine.server.host, engine.server.port = HOST, port
    await engine.server.start()
    await asyncio.Event().wait()


def main() -> None:
    """Read the flags and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--words", type=int, default=3, help="of an answer, one event each")
    parser.add_argument("--delay-seconds", type=float, default=0.0, help="between two words of a stream")
    flags = parser.parse_args()
    words = tuple(f"word{number}" for number in range(flags.words))
    engine = FakeEngine(words=words, delay_seconds=flags.delay_seconds, batch=f"batch-{flags.port}")
    asyncio.run(serve(engine, flags.port))


if __name__ == "__main__":
    main()
