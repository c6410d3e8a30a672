"""A whole run in virtual time: a gateway, engines, clients and faults, all from one seed."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx

from sternpost_core.kill import KillLevel
from sternpost_core.policy import (
    Bypass,
    Correction,
    Layout,
    Match,
    Policy,
    Prompt,
    Recompute,
    Shadow,
    SuffixCache,
    Tail,
    TailSource,
    Tenancy,
    TenantSource,
    TenantSourceKind,
)
from sternpost_core.policy_match import PolicySet
from sternpost_fakes.gateway_parts import Surroundings, make_parts_for
from sternpost_fakes.sim_checks import overfull
from sternpost_fakes.sim_client import Ask, Told, ask
from sternpost_fakes.sim_engine import Machine, SimEngine
from sternpost_fakes.sim_faults import Fault, Source, World, draw_faults
from sternpost_fakes.sim_network import SimNetwork
from sternpost_fakes.virtual_time import VirtualClock, run_virtual
from sternpost_gateway.cold_limiter import ColdLimits
from sternpost_gateway.engine_api import EngineApi
from sternpost_gateway.fleet import Engine
from sternpost_gateway.kills import Kills
from sternpost_gateway.metrics import Metrics
from sternpost_gateway.pipeline import Parts, Pipeline
from sternpost_gateway.prober import Prober
from sternpost_gateway.settings import Settings, Timeouts
from sternpost_gateway.transition import AT_ONCE, Pace

TENANTS = ("acme", "globex", "initech")
BUSY_SECONDS = 20.0
"""For which requests come, and faults begin."""

SETTLE_SECONDS = 100.0
"""After the last request, by when everything must be over."""

FIRST_PROBE_SECONDS = 0.1

COLD = ColdLimits(cold_tokens=200, batched_tokens=400, sequences=32)

MACHINE = Machine()

TIMEOUTS = Timeouts(first_byte_seconds=20.0, idle_seconds=20.0)

POLICY = Policy(
    name="support",
    pool="",
    namespace="agents",
    match=Match(models=("qwen",)),
    tenancy=Tenancy(tenant_source=TenantSource(TenantSourceKind.HEADER, "x-tenant-id")),
    prompt=Prompt(layout=Layout.FIXED_TAIL, tail=Tail(source=TailSource.LAST_SYSTEM_MESSAGE, min_tokens=16)),
    suffix_cache=SuffixCache(
        recompute=Recompute(last=4, match=0), correction=Correction.NONE, bypass=Bypass(min_tail_share=0.0)
    ),
    shadow=Shadow(sample_rate=0.0),
)

REPLAYED = replace(POLICY, shadow=Shadow(sample_rate=0.5))
"""The policy with replays of many of the requests that reuse a tail."""

Change = Callable[[Parts], Parts]
"""Changes a gateway before it runs: what a planted fault does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run consists of, apart from what its seed decides."""

    seed: int
    asks: Sequence[Ask] = ()
    faults: Sequence[Fault] = ()
    engines: int = 3
    machine: Machine = MACHINE
    cold: ColdLimits = COLD
    change: Change = lambda parts: parts
    policy: Policy = POLICY
    pace: Pace = AT_ONCE


@dataclass(slots=True)
class Level:
    """A kill level that somebody has set, and when."""

    at: float
    level: KillLevel
    by_http: bool


@dataclass(slots=True)
class Run:
    """What happened."""

    plan: Plan
    told: list[Told] = field(default_factory=list)
    engines: list[SimEngine] = field(default_factory=list)
    levels: list[Level] = field(default_factory=list)
    overfull: list[str] = field(default_factory=list)
    parts: Parts | None = None

    def set_level(self, at: float, level: KillLevel, by_http: bool) -> None:
        """Note a kill level that somebody sets."""
        self.levels.append(Level(at, level, by_http))

    def digest(self) -> str:
        """Return the digest of all that clients and engines saw; another run of the plan has the same."""
        hashed = hashlib.sha256()
        for told in sorted(self.told, key=lambda item: item.ask.number):
            line = f"{told.ask.number} {told.outcome} {told.first} {told.ended} {len(told.text)}\n"
            hashed.update(line.encode())
        for engine in self.engines:
            for seen in engine.seen:
                hashed.update(f"{engine.url} {seen.at} {seen.request_id} {seen.computed_tokens}\n".encode())
        return hashed.hexdigest()


def drawn_plan(seed: int) -> Plan:
    """Return the plan that a seed decides."""
    chance = random.Random(seed)
    engines = chance.randint(2, 4)
    return Plan(
        seed=seed,
        asks=draw_asks(chance, chance.randint(12, 24)),
        faults=draw_faults(chance, engines, BUSY_SECONDS),
        engines=engines,
        policy=REPLAYED,
        pace=Pace(chance.choice([0.0, 2.0]), chance.choice([0.0, 6.0])),
    )


def draw_asks(chance: random.Random, count: int) -> list[Ask]:
    """Return so many requests: turns of sessions, bursts behind one prefix, and long prompts of their own."""
    asks: list[Ask] = []
    while len(asks) < count:
        at, tenant = chance.uniform(0.0, BUSY_SECONDS), chance.choice(TENANTS)
        system = words(f"s{chance.randrange(3)}", chance.choice([20, 60, 250]))
        tail = words("t", 40) if chance.random() < 0.6 else ""
        size = chance.choice([1, 1, 2, 5])
        for number in range(size):
            user = words(f"u{len(asks)}", chance.choice([3, 10, 300 if chance.random() < 0.3 else 5]))
            asks.append(
                Ask(
                    number=len(asks),
                    at=at + (number * 2.0 if size == 2 else 0.0),
                    tenant=tenant,
                    session=f"session-{chance.randrange(12)}",
                    system=system,
                    user=user,
                    tail=tail,
                    stream=chance.random() < 0.8,
                    leaves_after=chance.uniform(0.01, 2.0) if chance.random() < 0.1 else None,
                )
            )
    return asks


def words(name: str, count: int) -> str:
    """Return a text of so many words, of which two names share none."""
    return " ".join(f"{name}w{number}" for number in range(count))


def simulate(plan: Plan, metrics: Metrics) -> Run:
    """Run a plan in virtual time; two runs of one plan are equal."""
    return run_virtual(lambda clock: _run(plan, metrics, clock))


async def _run(plan: Plan, metrics: Metrics, clock: VirtualClock) -> Run:
    run = Run(plan)
    vocabulary: dict[str, int] = {}
    run.engines = [
        SimEngine(f"http://engine-{number}:8000", vocabulary, plan.machine) for number in range(plan.engines)
    ]
    network = SimNetwork({engine.url: engine for engine in run.engines}, clock, TIMEOUTS)
    kills = Kills(clock, None, pace=plan.pace)
    source = Source(plan.policy, kills, clock)
    source.tell()
    parts = plan.change(make_parts_for(_around(plan, clock, network, source, kills), network, metrics))
    network.on_send = lambda: run.overfull.extend(overfull(parts, plan.cold))
    run.parts = parts
    world = World(run.engines, source, kills, clock, run.set_level)
    api = EngineApi(httpx.AsyncClient(transport=httpx.MockTransport(network.control)), TIMEOUTS)
    background = [
        asyncio.ensure_future(Prober(api, parts.fleet, metrics, TIMEOUTS, clock).run()),
        asyncio.ensure_future(source.poll(random.Random(plan.seed))),
    ]
    # The first probes are over when the first request comes.
    await asyncio.sleep(FIRST_PROBE_SECONDS)
    pipeline = Pipeline(parts)
    work = [
        *(asyncio.ensure_future(world.suffer(fault)) for fault in plan.faults),
        *(asyncio.ensure_future(ask(pipeline, request, clock, run.told)) for request in plan.asks),
    ]
    await asyncio.wait(work, timeout=BUSY_SECONDS + SETTLE_SECONDS)
    await asyncio.wait_for(parts.builder.idle(), SETTLE_SECONDS)
    for task in (*background, *work):
        task.cancel()
    await asyncio.gather(*background, *work, return_exceptions=True)
    await parts.shadow.close()
    await parts.prompts.close()
    return run


def _around(
    plan: Plan, clock: VirtualClock, network: SimNetwork, source: Source, kills: Kills
) -> Surroundings:
    engines = tuple(Engine(url) for url in network.engines)
    settings = Settings(
        policies=Path("policies"),
        engines=tuple(network.engines),
        timeouts=TIMEOUTS,
        cold=plan.cold,
    )
    return Surroundings(
        clock=clock,
        chance=random.Random(plan.seed),
        engines=engines,
        settings=settings,
        control=network.control,
        policies=lambda: PolicySet((source.policy,)),
        kills=lambda: kills.table,
    )
