"""Sending a workload through a router, and what came of it."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from bench.routing.workloads import Conversation, Workload

REQUEST_SECONDS_MAX: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """
    What one workload came to.

    `reuse_share` of the prompt tokens was found by the engines, `oracle_share` was held by any of them at the
    moment; `imbalance` is the busiest engine's work over the mean.
    """

    requests: int
    failed: int
    reuse_share: float
    oracle_share: float
    imbalance: float
    ttft_p50: float
    ttft_p95: float

    @property
    def gap(self) -> float:
        """Return what the oracle would have found beyond what was found."""
        return max(0.0, self.oracle_share - self.reuse_share)


@dataclass(frozen=True, slots=True)
class Ports:
    """Where the mock engines' control port, the engines and the router listen."""

    control: int
    engines: tuple[int, ...]
    router: int


async def drive(workload: Workload, ports: Ports) -> Outcome:
    """Send a workload and measure it; the engines begin empty."""
    timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS_MAX)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        control = f"http://127.0.0.1:{ports.control}"
        began = time.monotonic()
        happening = asyncio.ensure_future(_happen(session, control, workload, ports, began))
        results = await asyncio.gather(
            *(_converse(session, ports.router, one, began) for one in workload.conversations)
        )
        await happening
        async with session.get(f"{control}/totals") as response:
            totals = await response.json()
    return _outcome([seconds for turns in results for seconds in turns], totals)


async def reset(workload: Workload, ports: Ports) -> None:
    """Empty the engines, and let those be down that are to be."""
    async with aiohttp.ClientSession() as session:
        control = f"http://127.0.0.1:{ports.control}"
        await _post(session, f"{control}/reset")
        for engine in workload.down:
            await _post(session, f"{control}/engine/{ports.engines[engine]}/down")


async def _happen(
    session: aiohttp.ClientSession, control: str, workload: Workload, ports: Ports, began: float
) -> None:
    for event in workload.events:
        await asyncio.sleep(max(0.0, began + event.at - time.monotonic()))
        state = "up" if event.up else "down"
        await _post(session, f"{control}/engine/{ports.engines[event.engine]}/{state}")


async def _converse(
    session: aiohttp.ClientSession, port: int, conversation: Conversation, began: float
) -> list[float | None]:
    """Hold a conversation; return each turn's time to first token, None for one that failed."""
    await asyncio.sleep(max(0.0, began + conversation.at - time.monotonic()))
    messages = [{"role": "system", "content": conversation.system}]
    seconds: list[float | None] = []
    for turn in conversation.turns:
        messages.append({"role": "user", "content": turn})
        first, answer = await _ask(session, port, conversation.session, messages)
        seconds.append(first)
        messages.append({"role": "assistant", "content": answer})
    return seconds


async def _ask(
    session: aiohttp.ClientSession, port: int, name: str, messages: Sequence[Mapping[str, str]]
) -> tuple[float | None, str]:
    body = {"model": "mock", "messages": list(messages), "stream": True, "max_tokens": 8}
    began, first, answer = time.monotonic(), None, ""
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    try:
        async with session.post(url, json=body, headers={"x-session-id": name}) as response:
            async for line in response.content:
                if first is None and line.startswith(b"data:"):
                    first = time.monotonic() - began
                answer += _content(line)
            return (first, answer) if response.status == 200 else (None, answer)
    except (aiohttp.ClientError, TimeoutError):
        return None, answer


def _content(line: bytes) -> str:
    if not line.startswith(b"data: {"):
        return ""
    choices = json.loads(line[6:]).get("choices") or [{}]
    return str(choices[0].get("delta", {}).get("content") or "")


async def _post(session: aiohttp.ClientSession, url: str) -> None:
    async with session.post(url) as response:
        response.raise_for_status()


def _outcome(seconds: Sequence[float | None], totals: Sequence[Mapping[str, Any]]) -> Outcome:
    answered = sorted(item for item in seconds if item is not None)
    prompt = sum(engine["prompt_tokens"] for engine in totals) or 1
    busy = [engine["busy_seconds"] for engine in totals]
    return Outcome(
        requests=len(seconds),
        failed=len(seconds) - len(answered),
        reuse_share=sum(engine["reused_tokens"] for engine in totals) / prompt,
        oracle_share=sum(engine["oracle_tokens"] for engine in totals) / prompt,
        imbalance=max(busy) / (statistics.fmean(busy) or 1.0),
        ttft_p50=answered[len(answered) // 2] if answered else float("inf"),
        ttft_p95=answered[int(len(answered) * 0.95)] if answered else float("inf"),
    )
