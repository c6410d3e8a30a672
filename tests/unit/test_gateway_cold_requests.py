"""Long prompts through a whole gateway."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from sternpost_fakes.engine import running_engine
from sternpost_fakes.gateway import RunningGateway, eventually, running_gateway
from sternpost_gateway.cold_limiter import ColdLimits
from sternpost_gateway.settings import Settings

GATE = "sternpost_gateway_gate_total"


def narrow(settings: Settings) -> Settings:
    """Return settings under which one prompt of some hundred tokens fills an engine."""
    return replace(settings, cold=ColdLimits(cold_tokens=200, batched_tokens=100))


async def ask(gateway: RunningGateway, text: str, **headers: str) -> httpx.Response:
    """Ask for a stream; the prompt begins with `text`, so that two texts share nothing."""
    body: dict[str, Any] = {
        "model": "m",
        "messages": [{"role": "user", "content": text + " word" * 200}],
        "stream": True,
    }
    return await gateway.client.post("/v1/chat/completions", json=body, headers=headers)


async def test_long_prompt_that_finds_no_room_is_told_so(tmp_path: Path) -> None:
    """A client that waits for four tenths of a second has its 429 after one, in OpenAI's shape."""
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], settings=narrow) as gateway,
    ):
        engine.faults.hang = True
        first = asyncio.ensure_future(ask(gateway, "first"))
        await eventually(lambda: len(engine.chats) == 1)
        refused = await ask(gateway, "second", **{"x-stainless-read-timeout": "0.4"})
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        error = refused.json()["error"]

        assert (429, "gateway_cold_limit", "rate_limit_error") == (
            refused.status_code,
            error["code"],
            error["type"],
        )
        assert 1 <= int(refused.headers["retry-after"]) <= 5
        assert (1, 1) == (len(engine.chats), gateway.metric(GATE, outcome="waited_too_long"))


async def test_equal_long_prompts_are_computed_once_first(tmp_path: Path) -> None:
    """Four that arrive together reach the engine one first, and three when that has begun to answer."""
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], settings=narrow) as gateway,
    ):
        engine.first_delay_seconds = 0.3
        requests = [asyncio.ensure_future(ask(gateway, "same" * 1000)) for _ in range(4)]
        await eventually(lambda: len(engine.chats) >= 1)
        await asyncio.sleep(0.1)
        alone = len(engine.chats)
        answers = await asyncio.gather(*requests)

        assert ([200] * 4, 1, 4) == ([answer.status_code for answer in answers], alone, len(engine.chats))
        assert (1, 3) == (gateway.metric(GATE, outcome="cold"), gateway.metric(GATE, outcome="followed"))


async def test_gates_are_shown(tmp_path: Path) -> None:
    """Each engine's gate has its gauges."""
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], settings=narrow) as gateway,
    ):
        engine.faults.hang = True
        waiting = [asyncio.ensure_future(ask(gateway, text)) for text in ("one", "two")]
        await eventually(lambda: len(engine.chats) == 1)
        page = (await gateway.client.get("/metrics")).text
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

        shown = {
            name: float(line.rpartition(" ")[2])
            for name in ("cold_in_flight", "cold_waiting", "cold_limit")
            for line in page.splitlines()
            if line.startswith(f"sternpost_gateway_{name}{{")
        }
        assert {"cold_in_flight": 1.0, "cold_waiting": 1.0, "cold_limit": 1.0} == shown
