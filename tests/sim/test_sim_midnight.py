"""A thousand conversations whose system message changes at midnight, in virtual time."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import httpx
import pytest
from prometheus_client import CollectorRegistry

from sternpost_core.policy_match import PolicySet
from sternpost_core.policy_parse import parse
from sternpost_fakes.cases import CHAT, case, case_policy
from sternpost_fakes.gateway_parts import FakeResponse, FakeUpstream, make_parts
from sternpost_fakes.virtual_time import VirtualClock, run_virtual
from sternpost_gateway.cold_limiter import ColdLimits
from sternpost_gateway.fleet import Engine, Health
from sternpost_gateway.pipeline import Parts, Pipeline
from sternpost_gateway.routing import make_routing
from sternpost_gateway.tails import Tails
from sternpost_gateway.tokens import common_prefix
from sternpost_gateway.upstream import UpstreamRequest, UpstreamResponse

SESSIONS: Final = 1000
ENGINES: Final = tuple(Engine(f"http://engine-{number}") for number in range(4))
PREFILL_RATE: Final = 8000.0
"""Tokens per second that an engine computes, of all its prompts together."""

BYTES_PER_TOKEN: Final = 4
LIMITS: Final = ColdLimits()
HISTORY_BYTES: Final = LIMITS.cold_tokens * BYTES_PER_TOKEN
"""Enough for a prompt to be cold when its beginning has changed."""


@dataclass(slots=True)
class Prefill:
    """What one engine computes: the prompts that it holds, and the cold ones that it has at once."""

    held: dict[str, bytes] = field(default_factory=dict)
    cold: int = 0
    cold_most: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def uncached_tokens(self, session: str, body: bytes) -> float:
        """Return what the engine has to compute of a prompt, and hold the prompt."""
        before = self.held.get(session, b"")
        self.held[session] = body
        return (len(body) - common_prefix(before, body)) / BYTES_PER_TOKEN


@dataclass(slots=True)
class PrefillingUpstream(FakeUpstream):
    """Answers when a prompt has been computed; each engine computes one after the other."""

    engines: dict[str, Prefill] = field(default_factory=lambda: {engine.url: Prefill() for engine in ENGINES})

    async def send(self, request: UpstreamRequest) -> UpstreamResponse:
        """Compute and answer."""
        assert isinstance(request.body, bytes), "a body that was read is sent whole"
        engine = self.engines[request.url.removesuffix(CHAT)]
        session = dict(request.headers)[b"x-session-id"].decode()
        tokens = engine.uncached_tokens(session, request.body)
        is_cold = tokens >= LIMITS.cold_tokens
        engine.cold += is_cold
        engine.cold_most = max(engine.cold_most, engine.cold)
        async with engine.lock:
            await asyncio.sleep(tokens / PREFILL_RATE)
        engine.cold -= is_cold
        return FakeResponse(headers=((b"content-type", b"text/event-stream"),), pieces=[b"data: {}\n\n"])


def gateway(clock: VirtualClock, upstream: FakeUpstream, policy: Mapping[str, Any]) -> Parts:
    """Return the parts of a gateway in front of four engines, in virtual time."""
    registry = CollectorRegistry()
    parts = make_parts(upstream, registry)
    tails = Tails(clock)
    routing = make_routing(ENGINES, tails, clock, random.Random(3))
    for engine in ENGINES:
        routing.fleet.probed(engine, Health.UP)
    return replace(
        parts,
        clock=clock,
        policies=lambda: PolicySet((parse(policy),)),
        gate=routing.gate,
        fleet=routing.fleet,
        router=routing.router,
        tails=tails,
    )


def turns(session: int) -> list[bytes]:
    """Return a conversation's turn before midnight and the one behind it, with a history of its own."""
    bodies: list[bytes] = []
    for request in case("002"):
        body = {**request.decoded, "stream": True}
        system, first, *later = body["messages"]
        words = f"Session {session}: " + f"order {session} " * (HISTORY_BYTES // len(f"order {session} "))
        body["messages"] = [system, {**first, "content": words}, *later]
        bodies.append(json.dumps(body).encode())
    return bodies


async def cross(parts: Parts, *, pause: float) -> list[httpx.Response]:
    """Let all sessions have a turn before midnight, and then all at once the one behind it."""
    transport = httpx.ASGITransport(Pipeline(parts))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway", timeout=None) as client:

        async def ask(session: int, turn: int) -> httpx.Response:
            headers = {"x-session-id": f"s-{session}"}
            return await client.post(CHAT, content=turns(session)[turn], headers=headers)

        for session in range(SESSIONS):
            await ask(session, 0)
        await asyncio.sleep(pause)
        return list(await asyncio.gather(*(ask(session, 1) for session in range(SESSIONS))))


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param((), id="date-stays"),
        pytest.param(({"name": "date", "detect": "Date", "action": "Relocate"},), id="date-moves"),
    ],
)
def test_midnight_starts_no_more_cold_prefills_than_allowed(rules: tuple[dict[str, str], ...]) -> None:
    """No engine ever has more cold prompts than its slots; who has no room is told when to come back."""

    async def main(clock: VirtualClock) -> tuple[list[httpx.Response], list[int]]:
        upstream = PrefillingUpstream()
        answers = await cross(gateway(clock, upstream, case_policy(*rules)), pause=60.0)
        return answers, [engine.cold_most for engine in upstream.engines.values()]

    answers, cold = run_virtual(main)
    outcomes = Counter(answer.status_code for answer in answers)

    assert all(0 < most <= LIMITS.slots_max for most in cold)
    assert {200, 429} == set(outcomes) and SESSIONS == outcomes.total()
    assert outcomes[200] >= len(ENGINES) * LIMITS.slots_max
    assert {"1", "2", "3", "4", "5"} == {
        answer.headers["retry-after"] for answer in answers if answer.status_code == 429
    }
