"""Cases seen in the field in which requests wait at an engine's gate, sent through a whole gateway."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from sternpost_fakes.cases import CASES, CHAT
from sternpost_fakes.engine import running_engine
from sternpost_fakes.gateway import RunningGateway, eventually, running_gateway
from sternpost_gateway.cold_limiter import ColdLimits
from sternpost_gateway.settings import Settings

GONE_SECONDS_MAX = 1.0
"""Within which an engine must learn that nobody waits any more."""

REFUSED_SECONDS_MAX = 0.05
"""Within which a refusal must be there; of several the fastest counts, as machines may be busy."""

WAITING = "sternpost_gateway_cold_waiting"
GATE = "sternpost_gateway_gate_total"


def body_of(number: str, request: str, text: str = "") -> bytes:
    """Return the body of a case's request; `text`, in front of its last message, tells equal ones apart."""
    found = json.loads((CASES / "faults" / f"{number}.json").read_text())["requests"]
    body = next(item["body"] for item in found if item["id"] == request)
    last = body["messages"][-1]
    messages = [*body["messages"][:-1], {**last, "content": text + last["content"]}]
    return json.dumps({**body, "messages": messages}, separators=(",", ":")).encode()


def one_at_a_time(settings: Settings) -> Settings:
    """Return settings under which every prompt is cold and fills an engine; the queue holds some."""
    return replace(settings, cold=ColdLimits(cold_tokens=1, batched_tokens=1))


async def send(gateway: RunningGateway, body: bytes) -> httpx.Response:
    """Send a chat."""
    return await gateway.client.post(CHAT, content=body, headers={"content-type": "application/json"})


async def waiting(gateway: RunningGateway) -> int:
    """Return how many requests wait at gates, as a scrape tells it."""
    page = (await gateway.client.get("/metrics")).text
    return sum(int(float(line.split()[-1])) for line in page.splitlines() if line.startswith(WAITING + "{"))


async def until_waiting(gateway: RunningGateway, count: int) -> None:
    """Wait until so many requests wait."""
    async with asyncio.timeout(5):
        while await waiting(gateway) != count:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("request_id", ["r1", "r2"], ids=["stream", "whole"])
async def test_025_leaving_before_the_first_token_reaches_the_engine(tmp_path: Path, request_id: str) -> None:
    """Although no byte was ever sent to the client, the engine is told within a second."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        engine.faults.hang = True
        asking = asyncio.ensure_future(send(gateway, body_of("025", request_id)))
        await eventually(lambda: len(engine.chats) == 1)
        asking.cancel()

        await eventually(lambda: engine.server.aborts == 1, GONE_SECONDS_MAX)
        await eventually(lambda: gateway.metric("sternpost_gateway_in_flight") == 0)
        assert 1 == gateway.metric("sternpost_gateway_requests_total", outcome="client_gone")


async def test_025_leaving_the_queue_never_reaches_the_engine(tmp_path: Path) -> None:
    """A request that waits for room is taken out when its client leaves; whoever comes next is served."""
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], settings=one_at_a_time) as gateway,
    ):
        engine.faults.hang = True
        first = asyncio.ensure_future(send(gateway, body_of("025", "r1")))
        await eventually(lambda: len(engine.chats) == 1)
        queued = asyncio.ensure_future(send(gateway, body_of("025", "r3")))
        await until_waiting(gateway, 1)
        queued.cancel()
        await until_waiting(gateway, 0)
        engine.faults.hang = False
        first.cancel()
        after = await send(gateway, body_of("025", "r2"))

        assert 200 == after.status_code
        contents = [json.loads(seen.body)["messages"][0]["content"] for seen in engine.chats]
        assert ["think", "think"] == contents
        await eventually(lambda: gateway.metric("sternpost_gateway_in_flight") == 0)


async def test_040_full_queue_is_told_at_once_and_by_its_own_code(tmp_path: Path) -> None:
    """429 within 50 ms, a time to come back that differs, and a sign that it was not the engine."""
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], settings=one_at_a_time) as gateway,
    ):
        engine.faults.hang = True
        held = [asyncio.ensure_future(send(gateway, body_of("025", "r1", text))) for text in ("a", "b")]
        await until_waiting(gateway, 1)
        refused, seconds = [], []
        for number in range(12):
            begun = time.monotonic()
            refused.append(await send(gateway, body_of("040", "r3", str(number))))
            seconds.append(time.monotonic() - begun)
        for task in held:
            task.cancel()

        answers = {
            (one.status_code, one.json()["error"]["code"], one.headers["x-gateway-shed"]) for one in refused
        }
        assert {(429, "gateway_cold_limit", "1")} == answers
        retry_after = {int(one.headers["retry-after"]) for one in refused}
        assert retry_after <= {1, 2, 3, 4, 5} and len(retry_after) > 1
        assert min(seconds) < REFUSED_SECONDS_MAX
        assert 12 == gateway.metric(GATE, outcome="queue_full") and 1 == len(engine.chats)
        assert 12 == gateway.metric("sternpost_gateway_requests_total", outcome="gateway_cold_limit")
