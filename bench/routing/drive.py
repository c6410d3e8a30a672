"""Sending a workload through a router, and what came of it."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import aiohttp

from bench.routing.stage import Stage
from bench.routing.workloads import Conversation, Event, Workload
from sternpost_gateway.bench.stats import percentile

REQUEST_SECONDS_MAX: Final = 60.0
WORDS_OUT: Final = 8

WARM_UP: Final = 8
"""Requests before the first that counts: connections are open, and code has run."""

TIMER_SECONDS: Final = 0.01
LATE_SHARE: Final = 0.95
"""How often the clients look how late their timers are, and which of those figures is told."""

DATA: Final = b"data:"
END: Final = b"[DONE]"


class Ended(StrEnum):
    """How a request ended."""

    WHOLE = "whole"
    CUT = "cut"
    """Something of the answer had come: nobody may ask another engine for the rest."""

    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """
    One request.

    `seconds` passed to the first token, None where none came. Of `prompt_tokens` the engine held
    `cached_tokens`, and any engine at the moment `oracle_tokens`; 0 where it did not say.
    """

    ended: Ended
    seconds: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    oracle_tokens: int = 0


Turns = Sequence[Turn]

Ask = Callable[[str, Sequence[Mapping[str, str]]], Awaitable[tuple[Turn, str]]]
"""Asks in a session, and returns what came of it and the text of the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """
    What one workload came to: the turns of each conversation, in the workload's order.

    `imbalance` is the work of the busiest engine over the mean, of those that were there all the time. The
    shares are of one core: what the router, the engines and the clients computed. By `lateness` seconds the
    clients' own timers were late, at the 95th percentile: so long whoever wants a core has to wait for one.
    """

    conversations: Sequence[Turns]
    imbalance: float
    router_share: float = 0.0
    engines_share: float = 0.0
    clients_share: float = 0.0
    lateness: float = 0.0

    def turns(self) -> Iterator[Turn]:
        """Yield all turns."""
        return (turn for turns in self.conversations for turn in turns)

    def count(self, ended: Ended) -> int:
        """Return how many requests ended so."""
        return sum(turn.ended is ended for turn in self.turns())

    @property
    def requests(self) -> int:
        """Return how many requests there were."""
        return sum(len(turns) for turns in self.conversations)


def first_tokens(conversations: Sequence[Turns], share: float) -> float:
    """Return a percentile of the times to first token, infinite where there is none."""
    seconds = [turn.seconds for turns in conversations for turn in turns if turn.seconds is not None]
    return percentile(seconds, share) if seconds else float("inf")


def reuse(conversations: Sequence[Turns]) -> float:
    """Return the share of the prompt tokens that the engines held."""
    return _share(conversations, lambda turn: turn.cached_tokens)


def gap(conversations: Sequence[Turns]) -> float:
    """Return the share of the prompt tokens that other engines held than those that were asked."""
    return _share(conversations, lambda turn: turn.oracle_tokens - turn.cached_tokens)


async def drive(workload: Workload, stage: Stage, router: str, router_cpu: Callable[[], float]) -> Outcome:
    """Send a workload to a router and measure it; the engines begin empty."""
    timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS_MAX)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        client = Client(session, router, stage.model)
        for number in range(WARM_UP):
            await client.ask(f"warm-{number}", [{"role": "user", "content": f"warm up {number}"}])
        await stage.empty()
        spent = (time.monotonic(), router_cpu(), stage.cpu_seconds(), _own_cpu())
        began = asyncio.get_running_loop().time()
        late: list[float] = []
        watching = asyncio.ensure_future(_watch_timers(late))
        happening = asyncio.ensure_future(happen(stage.happen, workload, began))
        conversations = await asyncio.gather(
            *(converse(client.ask, one, began) for one in workload.conversations)
        )
        await happening
        watching.cancel()
        after = (time.monotonic(), router_cpu(), stage.cpu_seconds(), _own_cpu())
    seconds, *computed = (later - earlier for earlier, later in zip(spent, after, strict=True))
    changing = {event.engine for event in workload.events} | set(workload.down)
    work = [done for engine, done in enumerate(await stage.work()) if engine not in changing]
    return Outcome(
        conversations=conversations,
        imbalance=max(work) / (statistics.fmean(work) or 1.0),
        router_share=computed[0] / seconds,
        engines_share=computed[1] / seconds,
        clients_share=computed[2] / seconds,
        lateness=percentile(late, LATE_SHARE) if late else 0.0,
    )


async def _watch_timers(late: list[float]) -> None:
    """Note how late a timer is, again and again, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + TIMER_SECONDS
        await asyncio.sleep(TIMER_SECONDS)
        late.append(loop.time() - due)


@dataclass(frozen=True, slots=True)
class Client:
    """Asks a router for streams."""

    session: aiohttp.ClientSession
    router: str
    model: str

    async def ask(self, name: str, messages: Sequence[Mapping[str, str]]) -> tuple[Turn, str]:
        """Return what came of a request, and the text of its answer."""
        body = {
            "model": self.model,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": WORDS_OUT,
            "temperature": 0,
        }
        began, reading = time.monotonic(), Reading()
        try:
            url = f"{self.router}/v1/chat/completions"
            async with self.session.post(url, json=body, headers={"x-session-id": name}) as response:
                reading.accepted = response.status == 200
                async for line in response.content:
                    reading.take(line, time.monotonic() - began)
        except (aiohttp.ClientError, TimeoutError):
            # What has come so far says how it ended.
            pass
        return reading.turn(), reading.text


@dataclass(slots=True)
class Reading:
    """What has come of an answer so far."""

    accepted: bool = False
    complete: bool = False
    seconds: float | None = None
    text: str = ""
    usage: Mapping[str, Any] | None = None

    def take(self, line: bytes, seconds: float) -> None:
        """Take a line of a stream that came after so many seconds."""
        data = line.removeprefix(DATA).strip()
        if not self.accepted or not line.startswith(DATA):
            return
        if data == END:
            self.complete = True
            return
        event = json.loads(data)
        choices = event.get("choices") or [{}]
        content = str(choices[0].get("delta", {}).get("content") or "")
        if content and self.seconds is None:
            self.seconds = seconds
        self.text += content
        self.usage = event.get("usage") or self.usage

    def turn(self) -> Turn:
        """Return the request with what came of it."""
        if self.seconds is None:
            return Turn(ended=Ended.FAILED)
        usage = self.usage or {}
        details = usage.get("prompt_tokens_details") or {}
        return Turn(
            ended=Ended.WHOLE if self.complete else Ended.CUT,
            seconds=self.seconds,
            prompt_tokens=usage.get("prompt_tokens") or 0,
            cached_tokens=details.get("cached_tokens") or 0,
            oracle_tokens=details.get("oracle_tokens") or 0,
        )


async def happen(let: Callable[[Event], Awaitable[None]], workload: Workload, began: float) -> None:
    """Let a workload's events happen, each at its time after `began` by the loop's clock."""
    for event in workload.events:
        await asyncio.sleep(max(0.0, began + event.at - asyncio.get_running_loop().time()))
        await let(event)


async def converse(ask: Ask, conversation: Conversation, began: float) -> Turns:
    """Hold a conversation, each turn as soon as the one before is answered."""
    await asyncio.sleep(max(0.0, began + conversation.at - asyncio.get_running_loop().time()))
    messages = [{"role": "system", "content": conversation.system}]
    turns: list[Turn] = []
    for said in conversation.turns:
        messages.append({"role": "user", "content": said})
        turn, answer = await ask(conversation.session, messages)
        turns.append(turn)
        messages.append({"role": "assistant", "content": answer})
    return turns


def _share(conversations: Sequence[Turns], tokens: Callable[[Turn], int]) -> float:
    turns = [turn for turns in conversations for turn in turns]
    return sum(map(tokens, turns)) / (sum(turn.prompt_tokens for turn in turns) or 1)


def _own_cpu() -> float:
    times = os.times()
    return times.user + times.system
