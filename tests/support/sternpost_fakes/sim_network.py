"""The way from a gateway to engines in virtual time: requests, answers and control calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from sternpost_fakes.engine import usage_of
from sternpost_fakes.sim_engine import CONNECT_SECONDS, EngineDied, SimEngine, Work
from sternpost_fakes.virtual_time import VirtualClock
from sternpost_gateway.errors import (
    ConnectFailed,
    Disconnected,
    FirstByteTimeout,
    UpstreamCut,
    UpstreamStalled,
)
from sternpost_gateway.settings import Timeouts
from sternpost_gateway.upstream import UpstreamRequest, UpstreamResponse

PROBE_SECONDS = 1.0


@dataclass(slots=True)
class SimResponse:
    """An answer on its way."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    source: AsyncIterator[bytes]
    idle_seconds: float

    async def read(self) -> bytes:
        """Return the next piece."""
        try:
            async with asyncio.timeout(self.idle_seconds):
                return await anext(self.source, b"")
        except EngineDied as error:
            raise UpstreamCut("the engine's answer ended before it was complete") from error
        except TimeoutError as error:
            raise UpstreamStalled("the engine's answer stalled before it was complete") from error

    def close(self) -> None:
        """Do nothing: nothing is held."""


@dataclass(slots=True)
class SimNetwork:
    """Reaches the engines by their URLs, as `Upstream` and as what answers control calls."""

    engines: dict[str, SimEngine]
    clock: VirtualClock
    timeouts: Timeouts
    on_send: Callable[[], None] = lambda: None

    async def close(self) -> None:
        """Do nothing."""

    async def send(self, request: UpstreamRequest) -> UpstreamResponse:
        """Send a request and wait until its answer begins."""
        engine = self._engine(request.url)
        self.on_send()
        await asyncio.sleep(CONNECT_SECONDS)
        if not engine.alive:
            raise ConnectFailed("the engine cannot be reached")
        assert isinstance(request.body, bytes), "the simulated clients send what is looked into"
        body = json.loads(request.body)
        work = engine.arrive(body, dict(request.headers)[b"x-request-id"].decode(), self.clock.monotonic())
        if engine.failing:
            return SimResponse(500, ((b"content-type", b"application/json"),), _once(b"{}"), 1.0)
        try:
            async with asyncio.timeout(self.timeouts.first_byte_seconds):
                return await self._answer(engine, body, work)
        except EngineDied as error:
            raise Disconnected("the engine ended the connection before it answered") from error
        except TimeoutError:
            raise FirstByteTimeout("the engine did not answer in time") from None

    async def control(self, request: httpx.Request) -> httpx.Response:
        """Answer a control call."""
        engine = self._engine(str(request.url))
        await asyncio.sleep(CONNECT_SECONDS)
        if not engine.alive:
            raise httpx.ConnectError("refused")
        if engine.hanging:
            await asyncio.sleep(PROBE_SECONDS)
            raise httpx.ReadTimeout("no answer")
        try:
            return await self._control(engine, request)
        except EngineDied:
            raise httpx.ReadError("gone") from None

    async def _control(self, engine: SimEngine, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path == "/health":
            return httpx.Response(200)
        if path == "/sternpost/v1/info":
            return httpx.Response(200, json=_info(engine))
        if path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "qwen"}]})
        body = json.loads(request.content)
        if path == "/tokenize":
            return httpx.Response(200, json={"tokens": list(engine.render(body))})
        if "return_token_ids" in body or "prompt_logprobs" in body:
            return httpx.Response(200, json=await engine.replay(body, self.clock.monotonic()))
        report = await engine.build(body, self.clock.monotonic())
        return httpx.Response(200, json={"usage": usage_of(report.computed_tokens, 1, report)})

    async def _answer(self, engine: SimEngine, body: dict[str, Any], work: Work) -> UpstreamResponse:
        if body.get("stream"):
            # As vLLM does: a stream's headers come before anything is computed.
            kind, source = b"text/event-stream", _computed(engine, body, work)
        else:
            report = await engine.prefill(work)
            work.seen.began = True
            kind, source = b"application/json", engine.pieces(body, report)
        return SimResponse(200, ((b"content-type", kind),), source, self.timeouts.idle_seconds)

    def _engine(self, url: str) -> SimEngine:
        parts = urlsplit(url)
        return self.engines[f"{parts.scheme}://{parts.netloc}"]


async def _computed(engine: SimEngine, body: dict[str, Any], work: Work) -> AsyncIterator[bytes]:
    report = await engine.prefill(work)
    work.seen.began = True
    async for piece in engine.pieces(body, report):
        yield piece


async def _once(piece: bytes) -> AsyncIterator[bytes]:
    yield piece


def _info(engine: SimEngine) -> dict[str, Any]:
    return {
        "v": 1,
        "version": "0.1.0",
        "engine": engine.batch,
        "supported": True,
        "reason": None,
        "epoch": 0,
        "tail_tokens_min": 4,
        "tail_tokens_max": 4096,
    }
