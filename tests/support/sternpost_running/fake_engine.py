"""
A fake engine as a program, for pods of pools whose engines need no model.

Environment variables, which an EnginePool can give it, make its suffix reads slower, wrong or fail: that is
how a canary turns bad that is not the control's fault.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from sternpost_fakes.engine import FakeEngine, Faults
from sternpost_fakes.fake_http import Reply, Seen

READ_DELAY: Final = "READ_DELAY_SECONDS"
READ_FAILURE: Final = "READ_FAILS_EVERY"
READ_ERROR: Final = "READS_ARE_WRONG"
READ_MARK: Final = b'"op":"read"'
DRAIN_SECONDS: Final = 0.5
"""For so long it serves on after SIGTERM, as engines finish what they have begun."""

SALT_HEADER: Final = "x-engine-salt"
"""By which it tells a test which salt has reached it."""

BROKEN: Final = Reply(status=500, pieces=(b'{"error":{"message":"the copy failed","type":"server_error"}}',))


@dataclass(slots=True)
class SteeredEngine(FakeEngine):
    """A fake engine each of whose suffix reads takes longer, or of which every so many fail; 0: none."""

    read_delay_seconds: float = 0.0
    read_fails_every: int = 0
    reads: int = 0

    async def handle(self, seen: Seen) -> Reply:
        """Answer one request."""
        # A program runs for long, and nobody asks it what it has seen.
        self.server.seen.clear()
        if READ_MARK in seen.body:
            self.reads += 1
            await asyncio.sleep(self.read_delay_seconds)
            if self.read_fails_every and self.reads % self.read_fails_every == 0:
                return BROKEN
        reply = await super(SteeredEngine, self).handle(seen)
        return replace(reply, headers=(*reply.headers, (SALT_HEADER, _salt_of(seen.body))))


def _salt_of(body: bytes) -> str:
    return str(json.loads(body).get("cache_salt", "")) if body else ""


async def serve(engine: FakeEngine, host: str, port: int) -> None:
    """Serve until told to end."""
    engine.server.host, engine.server.port = host, port
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await engine.server.start()
    await stop.wait()
    await asyncio.sleep(DRAIN_SECONDS)


def make_engine(flags: argparse.Namespace, environment: Mapping[str, str]) -> SteeredEngine:
    """Return the engine that flags and environment describe."""
    return SteeredEngine(
        supported=not flags.unsupported,
        faults=Faults(wrong_tails=READ_ERROR in environment),
        batch=flags.host,
        read_delay_seconds=float(environment.get(READ_DELAY, 0)),
        read_fails_every=int(environment.get(READ_FAILURE, 0)),
    )


def main() -> None:
    """Read the flags and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--unsupported", action="store_true")
    flags = parser.parse_args()
    asyncio.run(serve(make_engine(flags, os.environ), flags.host, flags.port))


if __name__ == "__main__":
    main()
