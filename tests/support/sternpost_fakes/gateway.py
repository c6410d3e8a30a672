"""A whole gateway on a real port, in the test's own event loop, with everything about time shortened."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
from prometheus_client import CollectorRegistry

from sternpost_core.clock import SystemClock
from sternpost_gateway.admin import Lifecycle
from sternpost_gateway.app import create_app
from sternpost_gateway.dialer import Dialer
from sternpost_gateway.engine_api import control_client
from sternpost_gateway.pooled_upstream import PooledUpstream
from sternpost_gateway.server import Server, open_socket, server_config
from sternpost_gateway.settings import Settings, Timeouts
from sternpost_gateway.tls import engine_tls
from sternpost_gateway.tracing import NO_TRACING, Tracing

WAIT_SECONDS_MAX = 5.0
"""No condition of a test may take longer."""

QUICK = Timeouts(
    first_byte_seconds=2.0,
    idle_seconds=2.0,
    write_stall_seconds=2.0,
    probe_period_seconds=0.05,
    info_period_seconds=0.2,
    drain_delay_seconds=0.0,
    drain_seconds=1,
    poll_seconds=0.2,
    unkill_step_seconds=0.0,
    kill_ramp_seconds=0.0,
)
"""Timeouts for tests."""

ADMIN_TOKEN = "a token for tests only"

SUPPORT_POLICY = """\
apiVersion: sternpost.dev/v1alpha1
kind: CachePolicy
metadata: {name: support, namespace: agents}
spec:
  match: {models: [qwen]}
  poolRef: {name: qwen}
  tenancy: {isolation: Tenant, tenantFrom: {header: x-tenant-id}, sessionFrom: {header: x-session-id}}
  prompt:
    layout: FixedTail
    tail: {source: LastSystemMessage, minTokens: 256}
  suffixCache:
    recompute: {head: 0, last: 32, match: 0}
"""
"""A policy that reuses tails of model `qwen`."""


@dataclass(frozen=True, slots=True)
class RunningGateway:
    """A gateway that serves; `policies` is its policy directory."""

    url: str
    policies: Path
    registry: CollectorRegistry
    client: httpx.AsyncClient

    def metric(self, name: str, **labels: str) -> float:
        """Return a metric's value, summed over the labels that are not given; 0 if it has none yet."""
        samples = (sample for metric in self.registry.collect() for sample in metric.samples)
        return sum(
            sample.value
            for sample in samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    async def details(self) -> dict[str, object]:
        """Return what `/readyz?verbose` says."""
        response = await self.client.get("/readyz?verbose")
        details: dict[str, object] = response.json()
        return details


@asynccontextmanager
async def running_gateway(
    directory: Path,
    engines: Sequence[str],
    *,
    policy: str = SUPPORT_POLICY,
    settings: Callable[[Settings], Settings] = lambda settings: settings,
    tracing: Tracing = NO_TRACING,
    wait_ready: bool = True,
) -> AsyncIterator[RunningGateway]:
    """Run a gateway for the length of a block; `directory` gets its policies."""
    policies = directory / "policies"
    policies.mkdir(exist_ok=True)
    if policy:
        (policies / "support.yaml").write_text(policy)
    chosen = settings(
        Settings(policies=policies, engines=tuple(engines), port=0, timeouts=QUICK, salt_secret=b"s" * 32)
    )
    registry = CollectorRegistry()
    tls = engine_tls(chosen.engine_tls)
    lifecycle = Lifecycle()
    app = create_app(
        chosen,
        clock=SystemClock(),
        registry=registry,
        upstream=PooledUpstream(chosen.limits, chosen.timeouts, tls),
        control=control_client(tls),
        chance=random.Random(7),
        lifecycle=lifecycle,
        tracing=tracing,
        dialer=Dialer(chosen.timeouts, tls),
        files={"engines' TLS": tls.files},
    )
    listening = open_socket(chosen)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    config = server_config(app, chosen.limits, chosen.timeouts)
    server = Server(config, lifecycle, chosen.timeouts.drain_delay_seconds)
    serving = asyncio.ensure_future(server.serve(sockets=[listening]))
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        running = RunningGateway(url, policies, registry, client)
        try:
            await eventually(lambda: server.started or serving.done())
            if wait_ready:
                await eventually_ready(client, len(engines))
            yield running
        finally:
            server.should_exit = True
            await client.aclose()
            await serving


async def eventually(condition: Callable[[], bool], seconds_max: float = WAIT_SECONDS_MAX) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(seconds_max):
        while not condition():
            await asyncio.sleep(0.005)


async def eventually_ready(client: httpx.AsyncClient, engines: int) -> None:
    """Wait until all engines are ready and have said who they are."""
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while True:
            details = (await client.get("/readyz?verbose")).json()
            known = [item for item in details["engines"] if item["ready"] and item["plugin"] != "unknown"]
            if len(known) == engines:
                return
            await asyncio.sleep(0.01)


def with_timeouts(timeouts: Timeouts) -> Callable[[Settings], Settings]:
    """Return a change of settings that sets the timeouts."""
    return lambda settings: replace(settings, timeouts=timeouts)
