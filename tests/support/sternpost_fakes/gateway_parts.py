"""The parts of a gateway without a network: for tests of the pipeline alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from prometheus_client import CollectorRegistry

from sternpost_core.clock import Clock
from sternpost_core.policy_match import PolicySet
from sternpost_fakes.clock import FakeClock
from sternpost_gateway.admit import Admission
from sternpost_gateway.builder import TailBuilder
from sternpost_gateway.callers import Callers
from sternpost_gateway.engine_api import EngineApi
from sternpost_gateway.engine_keys import EngineKeys
from sternpost_gateway.fleet import Engine, Health
from sternpost_gateway.forward import Forward
from sternpost_gateway.kills import KillTable
from sternpost_gateway.metrics import Metrics
from sternpost_gateway.model_list import ModelList
from sternpost_gateway.pipeline import Parts
from sternpost_gateway.prompts import make_prompts
from sternpost_gateway.router import Strategies
from sternpost_gateway.routing import by_least_cost, make_routing
from sternpost_gateway.settings import Settings
from sternpost_gateway.shadow.sampler import Live, ShadowSampler
from sternpost_gateway.shadow.verdicts import Verdicts
from sternpost_gateway.tails import Tails
from sternpost_gateway.trips import Trips
from sternpost_gateway.upstream import Upstream, UpstreamRequest, UpstreamResponse
from sternpost_gateway.versions import Versions
from sternpost_gateway.warmer import Warmer

ENGINE = Engine("http://engine")
SETTINGS = Settings(policies=Path("policies"), engines=(ENGINE.url,))


Control = (
    Callable[[httpx.Request], httpx.Response]
    | Callable[[httpx.Request], Coroutine[None, None, httpx.Response]]
)
"""Answers control calls."""


def no_network(request: httpx.Request) -> httpx.Response:
    """Answer every control call as an engine that has failed."""
    return httpx.Response(500)


@dataclass(slots=True)
class FakeResponse:
    """An answer that is there already."""

    status: int = 200
    headers: Sequence[tuple[bytes, bytes]] = ((b"content-type", b"application/json"),)
    pieces: list[bytes] = field(default_factory=lambda: [b"{}"])
    closed: bool = False

    async def read(self) -> bytes:
        """Return the next piece."""
        return self.pieces.pop(0) if self.pieces else b""

    def close(self) -> None:
        """Note that the exchange is over."""
        self.closed = True


@dataclass(slots=True)
class FakeUpstream:
    """Answers every request, or raises what it is given; keeps what it was sent."""

    error: Exception | None = None
    sent: list[UpstreamRequest] = field(default_factory=list)
    responses: list[FakeResponse] = field(default_factory=list)

    async def send(self, request: UpstreamRequest) -> UpstreamResponse:
        """Answer, or fail."""
        self.sent.append(request)
        if self.error is not None:
            raise self.error
        self.responses.append(FakeResponse())
        return self.responses[-1]

    async def close(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a gateway's parts are made for; each has a default that asks nothing of a test."""

    clock: Clock = field(default_factory=FakeClock)
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    engines: Sequence[Engine] = (ENGINE,)
    settings: Settings = SETTINGS
    strategies: Callable[[random.Random], Strategies] = by_least_cost
    control: Control = no_network
    policies: Callable[[], PolicySet] = lambda: PolicySet(())
    kills: Callable[[], KillTable] = KillTable


def make_parts(
    upstream: Upstream,
    registry: CollectorRegistry,
    strategies: Callable[[random.Random], Strategies] = by_least_cost,
) -> Parts:
    """Return the parts of a gateway with one ready engine behind `upstream`."""
    parts = make_parts_for(Surroundings(strategies=strategies), upstream, Metrics(registry))
    parts.fleet.probed(ENGINE, Health.UP)
    return parts


def make_parts_for(around: Surroundings, upstream: Upstream, metrics: Metrics) -> Parts:
    """Return the parts of a gateway whose engines are not ready yet."""
    clock, chance, settings = around.clock, around.chance, around.settings
    tails = Tails(clock)
    routing = make_routing(
        around.engines, tails, clock, chance, strategies=around.strategies, cold=settings.cold
    )
    client = httpx.AsyncClient(transport=httpx.MockTransport(around.control))
    api = EngineApi(client, settings.timeouts)
    builder = TailBuilder(api, tails, metrics, routing.budget, routing.fleet)
    verdicts = Verdicts(clock, None)
    return Parts(
        settings=settings,
        secret=b"s" * 32,
        clock=clock,
        policies=around.policies,
        kills=around.kills,
        rollouts=dict,
        callers=Callers(),
        admission=Admission(settings.limits, chance),
        gate=routing.gate,
        fleet=routing.fleet,
        prompts=make_prompts(api, clock, Versions(None), routing.estimates.tokens),
        tails=tails,
        trips=Trips(clock, None),
        builder=builder,
        models=ModelList(api, routing.fleet),
        warmer=Warmer(tails, builder, routing.fleet),
        verdicts=verdicts,
        shadow=ShadowSampler(
            api=api,
            fleet=routing.fleet,
            verdicts=verdicts,
            budget=routing.shadow_budget,
            metrics=metrics,
            chance=chance,
            limits=settings.cold,
            live=Live(around.policies, around.kills),
        ),
        router=routing.router,
        forward=Forward(
            upstream,
            EngineKeys(settings.credentials, lambda: settings.engine_key),
            settings.timeouts.first_byte_seconds,
        ),
        metrics=metrics,
    )
