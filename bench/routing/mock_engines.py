"""
Mock engines in one process: `python -m bench.routing.mock_engines PORT...`.

Each speaks vLLM's API on a port of its own. Prefills run one after the other, each for a step's fixed time
and at a fixed rate, less what the cache holds; words come at a fixed pace. The control port, the first one,
tells the totals, empties everything, and lets engines come and go: one that goes closes its port and all that
is connected to it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web

from bench.routing.cache import BlockCache, chain_of, oracle

HOST: Final = "127.0.0.1"
PREFILL_RATE: Final = 10_000.0
"""Tokens per second, 1 ms for ten: a mid-size model on one GPU."""

STEP_SECONDS: Final = 0.01
"""What every prefill takes, however little it computes: one forward of such a model."""

WORD_SECONDS: Final = 0.01
CACHE_TOKENS: Final = 60_000
WORDS_OUT: Final = 8
BODY_BYTES_MAX: Final = 16 * 1024 * 1024


@dataclass(slots=True, eq=False)
class MockEngine:
    """One engine."""

    port: int
    cache: BlockCache = field(default_factory=lambda: BlockCache(CACHE_TOKENS))
    busy_seconds: float = 0.0
    alive: bool = False
    runner: web.AppRunner | None = None
    prefilling: asyncio.Lock = field(default_factory=asyncio.Lock)
    running: int = 0


class Pool:
    """All engines; each sees the others' caches for the oracle's sake only."""

    def __init__(self, ports: Sequence[int]) -> None:
        self.engines = {port: MockEngine(port) for port in ports}

    async def start(self, engine: MockEngine) -> None:
        """Let an engine listen, with nothing in its cache."""
        if engine.alive:
            return
        engine.alive, engine.prefilling = True, asyncio.Lock()
        engine.cache.clear()
        # A client that leaves ends its request.
        engine.runner = web.AppRunner(
            self.app(engine), access_log=None, handler_cancellation=True, shutdown_timeout=0.0
        )
        await engine.runner.setup()
        await web.TCPSite(engine.runner, HOST, engine.port).start()

    async def die(self, engine: MockEngine) -> None:
        """Close an engine's port and every connection to it at once."""
        if not engine.alive or engine.runner is None:
            return
        engine.alive = False
        for site in list(engine.runner.sites):
            await site.stop()
        for handler in engine.runner.server.connections if engine.runner.server else ():
            if handler.transport is not None:
                handler.transport.abort()
        await engine.runner.cleanup()

    def app(self, engine: MockEngine) -> web.Application:
        """Return an engine's own application."""

        async def health(request: web.Request) -> web.Response:
            return web.Response()

        async def models(request: web.Request) -> web.Response:
            return web.json_response({"object": "list", "data": [{"id": "mock", "object": "model"}]})

        async def metrics(request: web.Request) -> web.Response:
            text = f"vllm:num_requests_running {engine.running}\nvllm:num_requests_waiting 0\n"
            return web.Response(text=text)

        async def chat(request: web.Request) -> web.StreamResponse:
            return await self._chat(engine, request)

        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.add_routes(
            [
                web.get("/health", health),
                web.get("/v1/models", models),
                web.get("/metrics", metrics),
                web.post("/v1/chat/completions", chat),
            ]
        )
        return app

    def control(self) -> web.Application:
        """Return the application of the control port."""

        async def totals(request: web.Request) -> web.Response:
            return web.json_response([_totals(engine) for engine in self.engines.values()])

        async def reset(request: web.Request) -> web.Response:
            for engine in self.engines.values():
                engine.cache.clear()
                engine.busy_seconds = 0.0
            return web.Response()

        async def alive(request: web.Request) -> web.Response:
            engine = self.engines[int(request.match_info["port"])]
            await (self.start if request.match_info["alive"] == "up" else self.die)(engine)
            return web.Response()

        app = web.Application()
        app.add_routes(
            [
                web.get("/totals", totals),
                web.post("/reset", reset),
                web.post("/engine/{port}/{alive}", alive),
            ]
        )
        return app

    async def _chat(self, engine: MockEngine, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        engine.running += 1
        try:
            return await _answer(request, await self.prefill(engine, body))
        finally:
            engine.running -= 1

    async def prefill(self, engine: MockEngine, body: Any) -> Prompt:
        """Compute a prompt when those before it are computed; return what was held of it."""
        chain, tokens = chain_of(body)
        best = oracle([other.cache for other in self.engines.values() if other.alive], chain)
        engine.cache.coming.update(chain)
        try:
            async with engine.prefilling:
                held = engine.cache.held(chain)
                seconds = STEP_SECONDS + (tokens - held) / PREFILL_RATE
                engine.busy_seconds += seconds + WORDS_OUT * WORD_SECONDS
                await asyncio.sleep(seconds)
                engine.cache.store(chain)
        finally:
            engine.cache.coming.subtract(chain)
        return Prompt(tokens, held, max(best, held))


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt's tokens, those that its engine held, and those that any engine held when it came."""

    tokens: int
    held: int
    best: int

    def usage(self) -> dict[str, Any]:
        """Return the usage of an answer to it."""
        return {
            "prompt_tokens": self.tokens,
            "completion_tokens": WORDS_OUT,
            "total_tokens": self.tokens + WORDS_OUT,
            "prompt_tokens_details": {"cached_tokens": self.held, "oracle_tokens": self.best},
        }


async def _answer(request: web.Request, prompt: Prompt) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for number in range(WORDS_OUT):
        if number:
            await asyncio.sleep(WORD_SECONDS)
        await response.write(_event([{"index": 0, "delta": {"content": "word "}, "finish_reason": None}]))
    await response.write(_event([], prompt.usage()) + b"data: [DONE]\n\n")
    await response.write_eof()
    return response


def _event(choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> bytes:
    chunk = {
        "id": "mock-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "mock",
        "choices": choices,
    }
    return b"data: " + json.dumps({**chunk, "usage": usage} if usage else chunk).encode() + b"\n\n"


def _totals(engine: MockEngine) -> dict[str, float]:
    return {"port": engine.port, "busy_seconds": engine.busy_seconds}


async def serve(ports: Sequence[int]) -> None:
    """Serve the control port and one port for each engine until cancelled."""
    control, *engines = ports
    pool = Pool(engines)
    for engine in pool.engines.values():
        await pool.start(engine)
    runner = web.AppRunner(pool.control(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, HOST, control).start()
    print("serving", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve([int(argument) for argument in sys.argv[1:]]))
