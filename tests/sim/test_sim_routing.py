"""The benchmark's workloads through a whole gateway in virtual time, where no machine is in the figures."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp, Message

from bench.routing.drive import Ended, Outcome, Reading, Turn, converse, first_tokens, gap, happen, reuse
from bench.routing.mock_engines import WORD_SECONDS, WORDS_OUT, MockEngine, Pool
from bench.routing.report import GAP_MAX, IMBALANCE_MAX, NO_REUSE_RATIO_MAX
from bench.routing.workloads import WHOLE, WORKLOADS, Event
from sternpost_fakes.gateway_parts import Surroundings, make_parts_for
from sternpost_fakes.virtual_time import VirtualClock, run_virtual
from sternpost_gateway.engine_api import EngineApi
from sternpost_gateway.errors import ConnectFailed, Disconnected, UpstreamCut
from sternpost_gateway.fleet import Engine
from sternpost_gateway.metrics import Metrics
from sternpost_gateway.pipeline import Pipeline
from sternpost_gateway.prober import Prober
from sternpost_gateway.route import LeastCost, LeastLoaded, Rendezvous, Strategy
from sternpost_gateway.router import Strategies
from sternpost_gateway.settings import Timeouts
from sternpost_gateway.upstream import UpstreamRequest, UpstreamResponse

PORTS = (1, 2, 3, 4)
SEED = 11
SEEDS = range(11, 16)
"""What is judged on the average of several draws of a workload: one request more or less decides no mark."""

HOP_SECONDS = 0.0005
STRATEGIES: dict[str, type[LeastCost] | type[LeastLoaded] | None] = {
    "sternpost": LeastCost,
    "least_loaded": LeastLoaded,
    "rendezvous": None,
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Engines die here: nobody needs to read of each."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@dataclass(slots=True)
class Streaming:
    """An answer whose words come one after the other, for as long as its engine lives."""

    engine: MockEngine
    usage: Mapping[str, Any]
    status: int = 200
    headers: Sequence[tuple[bytes, bytes]] = ((b"content-type", b"text/event-stream"),)
    words: int = 0

    async def read(self) -> bytes:
        """Return the next word, and the usage behind the last one."""
        if self.words > WORDS_OUT:
            return b""
        await asyncio.sleep(WORD_SECONDS if self.words else 0.0)
        if not self.engine.alive:
            raise UpstreamCut("the engine's answer ended before it was complete")
        self.words += 1
        if self.words <= WORDS_OUT:
            return _event({"choices": [{"index": 0, "delta": {"content": "word "}}]})
        return _event({"choices": [], "usage": self.usage}) + b"data: [DONE]\n\n"

    def close(self) -> None:
        """Do nothing: nothing is held."""


@dataclass(slots=True)
class Engines:
    """The mock engines without their HTTP: what a gateway sends arrives, unless the engine is dead."""

    pool: Pool = field(default_factory=lambda: Pool(PORTS))
    computing: dict[int, set[asyncio.Task[Any]]] = field(
        default_factory=lambda: {port: set() for port in PORTS}
    )

    async def close(self) -> None:
        """Do nothing."""

    async def send(self, request: UpstreamRequest) -> UpstreamResponse:
        """Compute a prompt, and begin its answer."""
        assert isinstance(request.body, bytes), "a body that was read is sent whole"
        engine = self.at(request.url)
        await asyncio.sleep(HOP_SECONDS)
        if not engine.alive:
            raise ConnectFailed("the engine cannot be reached")
        task = asyncio.ensure_future(self.pool.prefill(engine, json.loads(request.body)))
        self.computing[engine.port].add(task)
        try:
            prompt = await task
        except asyncio.CancelledError:
            if engine.alive:
                raise
            raise Disconnected("the engine ended the connection before it answered") from None
        finally:
            task.cancel()
            self.computing[engine.port].discard(task)
        return Streaming(engine, prompt.usage())

    async def happen(self, event: Event) -> None:
        """Let an engine come, with nothing in its cache, or die with all that it is computing."""
        engine = self.pool.engines[PORTS[event.engine]]
        engine.alive = event.up
        if event.up:
            engine.cache.clear()
            engine.prefilling = asyncio.Lock()
        for task in tuple(self.computing[engine.port]):
            task.cancel()

    def control(self, request: httpx.Request) -> httpx.Response:
        """Answer what a gateway asks about an engine."""
        if not self.at(str(request.url)).alive:
            raise httpx.ConnectError("refused")
        if request.url.path == "/health":
            return httpx.Response(200)
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "mock"}]})
        return httpx.Response(404)

    def at(self, url: str) -> MockEngine:
        """Return the engine at a URL."""
        return self.pool.engines[urlsplit(url).port or 0]


@dataclass(frozen=True, slots=True)
class VirtualClient:
    """Asks a gateway through its ASGI entrance."""

    app: ASGIApp

    async def ask(self, name: str, messages: Sequence[Mapping[str, str]]) -> tuple[Turn, str]:
        """Return what came of a request, and the text of its answer."""
        body = json.dumps({"model": "mock", "messages": list(messages), "stream": True}).encode()
        began, reading = asyncio.get_running_loop().time(), Reading()
        pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            if not pending:
                await asyncio.get_running_loop().create_future()
            return pending.pop()

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                reading.accepted = message["status"] == 200
            for line in message.get("body", b"").splitlines(keepends=True):
                reading.take(line, asyncio.get_running_loop().time() - began)

        with suppress(Exception):
            # An exception closes the connection: what has come so far says how it ended.
            await self.app(_scope(name, len(body)), receive, send)
        return reading.turn(), reading.text


@cache
def run(name: str, router: str, seed: int = SEED) -> Outcome:
    """Run a workload of the benchmark through a gateway with a strategy."""
    return run_virtual(lambda clock: _run(name, router, seed, clock))


async def _run(name: str, router: str, seed: int, clock: VirtualClock) -> Outcome:
    workload, engines = WORKLOADS[name](random.Random(seed), WHOLE), Engines()
    for number in range(len(PORTS)):
        await engines.happen(Event(0.0, number, number not in workload.down))
    around = Surroundings(
        clock=clock,
        engines=tuple(Engine(f"http://engine:{port}") for port in PORTS),
        strategies=lambda chance: Strategies(
            affinity=_strategy(router, chance), least_loaded=LeastLoaded(chance)
        ),
    )
    metrics = Metrics(CollectorRegistry())
    parts = make_parts_for(around, engines, metrics)
    api = EngineApi(httpx.AsyncClient(transport=httpx.MockTransport(engines.control)), Timeouts())
    probing = asyncio.ensure_future(Prober(api, parts.fleet, metrics, Timeouts(), clock).run())
    await asyncio.sleep(6.0)
    client, began = VirtualClient(Pipeline(parts)), asyncio.get_running_loop().time()
    happening = asyncio.ensure_future(happen(engines.happen, workload, began))
    turns = await asyncio.gather(*(converse(client.ask, one, began) for one in workload.conversations))
    await happening
    probing.cancel()
    await parts.prompts.close()
    changing = {event.engine for event in workload.events} | set(workload.down)
    work = [
        engine.busy_seconds
        for number, engine in enumerate(engines.pool.engines.values())
        if number not in changing
    ]
    return Outcome(conversations=turns, imbalance=max(work) / statistics.fmean(work))


def _strategy(router: str, chance: random.Random) -> Strategy:
    kind = STRATEGIES[router]
    return Rendezvous() if kind is None else kind(chance)


def _scope(session: str, length: int) -> dict[str, Any]:
    headers = {
        "content-type": "application/json",
        "content-length": str(length),
        "x-session-id": session,
    }
    return {
        "type": "http",
        "method": "POST",
        "path": "/v1/chat/completions",
        "raw_path": b"/v1/chat/completions",
        "query_string": b"",
        "headers": [(key.encode(), value.encode()) for key, value in headers.items()],
    }


def _event(event: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"


@pytest.mark.parametrize("name", WORKLOADS)
def test_reuse_is_near_the_oracle_and_engines_share_the_work(name: str) -> None:
    """Whatever the workload, and while engines come and go; nothing fails of which no byte had come."""
    found = [run(name, "sternpost", seed) for seed in SEEDS]

    assert statistics.fmean(gap(one.conversations) for one in found) <= GAP_MAX
    assert statistics.fmean(one.imbalance for one in found) <= IMBALANCE_MAX
    assert 0 == sum(one.count(Ended.FAILED) for one in found)


@pytest.mark.parametrize("share", [0.5, 0.95], ids=["median", "slowest"])
def test_without_reuse_affinity_costs_next_to_nothing(share: float) -> None:
    """Beside least-loaded routing, which has nothing else to look at."""
    ours, theirs = (
        first_tokens(run("no_reuse", router).conversations, share) for router in ("sternpost", "least_loaded")
    )

    assert ours <= NO_REUSE_RATIO_MAX * theirs


def test_a_miss_finds_the_engine_that_has_least_to_do() -> None:
    """Two choices by chance leave an engine idle while prompts queue at another."""
    ours, theirs = (
        statistics.fmean(first_tokens(run("no_reuse", router, seed).conversations, 0.95) for seed in SEEDS)
        for router in ("sternpost", "least_loaded")
    )

    assert ours <= 0.9 * theirs


@pytest.mark.parametrize("name", ["sessions", "hot_prefix", "no_reuse", "pod_joins", "pod_dies"])
def test_first_tokens_come_no_later_than_with_rendezvous_alone(name: str) -> None:
    """A rank that knows no load is slower on the whole, and finds no more."""
    ours, theirs = (run(name, router).conversations for router in ("sternpost", "rendezvous"))
    means = [
        statistics.fmean(turn.seconds for turns in one for turn in turns if turn.seconds is not None)
        for one in (ours, theirs)
    ]

    assert means[0] <= 1.03 * means[1]
    assert reuse(ours) >= reuse(theirs) - GAP_MAX


def test_least_loaded_alone_is_far_from_the_oracle() -> None:
    """What the marks would say of a router that knows nothing of caches."""
    assert gap(run("sessions", "least_loaded").conversations) > 5 * GAP_MAX
