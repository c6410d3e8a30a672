"""The load, and the engines that it reaches: both in one event loop, so that one clock times all."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from sternpost_fakes.engine import FakeEngine
from sternpost_fakes.fake_http import Seen

TAIL: Final = " ".join(f"rule-{number}" for number in range(300))
"""A tail of 300 of the fake engine's tokens, which are words."""

CLIENTS: Final = 12
"""Requests in flight; each client sends its next when it has its answer."""

PAUSE_SECONDS: Final = 0.06
"""Between two requests of one client: the rate stays below what two shared cores can do."""

READ_MARK: Final = b'"op":"read"'
SEEN_MAX: Final = 20_000
"""Requests that an engine remembers; older ones are of earlier trials."""


@dataclass(slots=True)
class TimedEngine(FakeEngine):
    """A fake engine that notes when a request that reads the suffix store arrives."""

    reads: list[float] = field(default_factory=list)

    async def handle(self, seen: Seen) -> Any:
        """Answer one request."""
        if READ_MARK in seen.body.replace(b" ", b""):
            self.reads.append(time.monotonic())
        del self.server.seen[:-SEEN_MAX]
        return await super(TimedEngine, self).handle(seen)


@dataclass(slots=True)
class Load:
    """Sends chats through gateways until stopped; `seconds` holds how long each answer took, by its start."""

    gateways: Sequence[str]
    model: str
    answered: int = 0
    failed: int = 0
    seconds: list[tuple[float, float]] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    async def run(self) -> None:
        """Send until cancelled."""
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client, asyncio.TaskGroup() as group:
            for index in range(CLIENTS):
                group.create_task(self._send_forever(client, self.gateways[index % len(self.gateways)]))

    async def _send_forever(self, client: httpx.AsyncClient, gateway: str) -> None:
        while True:
            started = time.monotonic()
            try:
                response = await client.post(gateway + "/v1/chat/completions", json=self._chat())
                failed = response.status_code != httpx.codes.OK
            except httpx.HTTPError:
                failed = True
            self.failed += failed
            self.answered += not failed
            self.seconds.append((started, time.monotonic() - started))
            await asyncio.sleep(PAUSE_SECONDS)

    def _chat(self) -> dict[str, Any]:
        question = f"question {next(self._numbers)}"
        messages = [
            {"role": "system", "content": "You are a deckhand."},
            {"role": "user", "content": question},
            {"role": "system", "content": TAIL},
        ]
        return {"model": self.model, "messages": messages}


@asynccontextmanager
async def running(load: Load) -> Any:
    """Let a load run for the length of a block."""
    task = asyncio.create_task(load.run())
    try:
        yield load
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
