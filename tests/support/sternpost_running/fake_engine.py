"""A fake engine as a program, for pods that only have to answer health checks and questions about reuse."""

from __future__ import annotations

import argparse
import asyncio

from sternpost_fakes.engine import FakeEngine


async def serve(engine: FakeEngine, host: str, port: int) -> None:
    """Serve until the program ends."""
    engine.server.host, engine.server.port = host, port
    await engine.server.start()
    await asyncio.Event().wait()


def main() -> None:
    """Read the flags and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--unsupported", action="store_true")
    flags = parser.parse_args()
    asyncio.run(serve(FakeEngine(supported=not flags.unsupported, batch=flags.host), flags.host, flags.port))


if __name__ == "__main__":
    main()
