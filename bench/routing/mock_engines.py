"""
Mock engines in one process: `python -m bench.routing.mock_engines PORT...`.

Each speaks vLLM's API on a port of its own. Prefills run one after the other at a fixed rate, less what the
cache holds; words come at a fixed pace. The control port, the first one, tells the totals, empties
everything, and lets engines come and go.
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
PREFILL_RATE: Final = 20_000.0
"""Tokens per second: a mid-size model on one GPU."""

WORD_SECONDS: Final = 0.01
CACHE_TOKENS: Final = 60_000
WORDS_OUT: Final = 8
BODY_BYTES_MAX: Final = 16 * 1024 * 1024


@dataclass(slots=True)
class Totals:
    """What an engine has done."""

    requests: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    oracle_tokens: int = 0
    busy_seconds: float = 0.0


@dataclass(slots=True, eq=False)
class MockEngine:
    """One engine."""

    port: int
    cache: BlockCache = field(default_factory=lambda: BlockCache(CACHE_TOKENS))
    totals: Totals = field(default_factory=Totals)
    alive: bool = True
    prefill: asyncio.Lock = field(default_factory=asyncio.Lock)
    running: int = 0


class Pool:
    """All engines; each sees the others' caches for the oracle's sake only."""

    def __init__(self, ports: Sequence[int]) -> None:
        self.engines = {port: MockEngine(port) for port in ports}

    def app(self, engine: MockEngine) -> web.Application:
        """Return an engine's own application."""

        async def health(request: web.Request) -> web.Response:
            return web.Response(status=200 if engine.alive else 503)

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
                engine.totals = Totals()
                engine.alive = True
            return web.Response()

        async def alive(request: web.Request) -> web.Response:
            engine = self.engines[int(request.match_info["port"])]
            engine.alive = request.match_info["alive"] == "up"
            engine.cache.clear()
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
        if not engine.alive:
            _drop(request)
            return web.Response(status=503)
        engine.running += 1
        try:
            prompt_tokens, held = await self._prefill(engine, body)
            return await _answer(engine, request, prompt_tokens, held)
        finally:
            engine.running -= 1

    async def _prefill(self, engine: MockEngine, body: Any) -> tuple[int, int]:
        chain, prompt_tokens = chain_of(body)
        totals = engine.totals
        totals.requests += 1
        totals.prompt_tokens += prompt_tokens
        living = [other.cache for other in self.engines.values() if other.alive]
        totals.oracle_tokens += oracle(living, chain)
        engine.cache.coming.update(chain)
        try:
            async with engine.prefill:
                held = engine.cache.held(chain)
                seconds = (prompt_tokens - held) / PREFILL_RATE
                await asyncio.sleep(seconds)
                engine.cache.store(chain)
        finally:
            engine.cache.coming.subtract(chain)
        totals.reused_tokens += held
        totals.busy_seconds += seconds + WORDS_OUT * WORD_SECONDS
        return prompt_tokens, held


async def _answer(
    engine: MockEngine, request: web.Request, prompt_tokens: int, held: int
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for number in range(WORDS_OUT):
        if number:
            await asyncio.sleep(WORD_SECONDS)
        if not engine.alive:
            _drop(request)
            return response
        await response.write(_event([{"index": 0, "delta": {"content": "word "}, "finish_reason": None}]))
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": WORDS_OUT,
        "total_tokens": prompt_tokens + WORDS_OUT,
        "prompt_tokens_details": {"cached_tokens": held},
    }
    await response.write(_event([], usage) + b"data: [DONE]\n\n")
    await response.write_eof()
    return response


def _drop(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


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
    totals = engine.totals
    return {
        "port": engine.port,
        "requests": totals.requests,
        "prompt_tokens": totals.prompt_tokens,
        "reused_tokens": totals.reused_tokens,
        "oracle_tokens": totals.oracle_tokens,
        "busy_seconds": totals.busy_seconds,
    }


async def serve(ports: Sequence[int]) -> None:
    """Serve the control port and one port for each engine until cancelled."""
    control, *engines = ports
    pool = Pool(engines)
    apps = [(control, pool.control()), *((port, pool.app(engine)) for port, engine in pool.engines.items())]
    runners = []
    for port, app in apps:
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, HOST, port).start()
        runners.append(runner)
    print("serving", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve([int(argument) for argument in sys.argv[1:]]))
