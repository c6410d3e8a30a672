"""One operator: everything made and put together, and run until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry, start_http_server

from sternpost_core.clock import Clock, SystemClock
from sternpost_core.errors import OperatingError, SternpostError
from sternpost_core.gateway_tls import GatewayCertificate
from sternpost_operator.admission import Admission
from sternpost_operator.engines import HttpProbe
from sternpost_operator.fleet import Fleet
from sternpost_operator.framework import watch
from sternpost_operator.gateways import HttpGatewayProbe, gateway_client
from sternpost_operator.health import serve_health
from sternpost_operator.kube import Api, Forbidden, KubeApi, connect
from sternpost_operator.metrics import OperatorMetrics
from sternpost_operator.permissions import missing_rights
from sternpost_operator.probes import probe_client
from sternpost_operator.prometheus import Prometheus, prometheus_client
from sternpost_operator.reconciler import Reconciler, World
from sternpost_operator.resources import BUDGETS, Resource
from sternpost_operator.store import Store
from sternpost_operator.watcher import Watcher, find_budgets
from sternpost_operator.work_queue import WorkQueue

logger = logging.getLogger(__name__)

REQUEST_SECONDS: Final = 10.0
RIGHTS_SECONDS: Final = 300.0
"""Between two looks at whether a right is missing."""

START_SECONDS: Final = 2.0
"""Between two attempts to reach an API server at the start; without one there is nothing to do."""

Pause = Callable[[float], Awaitable[None]]

REFUSALS_MAX: Final = 5
"""Of which the last one is believed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """How an operator is run; a port of 0 is not listened on."""

    kubeconfig: str | None = None
    prometheus_url: str | None = None
    gateway_labels: str = ""
    gateway_port: int = 8080
    health_port: int = 8081
    metrics_port: int = 9090
    workers: int = 4
    separate_namespaces: bool = False
    gateway_certificate: Path | None = None


async def run_operator(settings: OperatorSettings, stop: asyncio.Event) -> None:
    """
    Run until told to stop.

    Raises:
        OperatingError: there is no access to a cluster, or a port cannot be listened on.
    """
    clock, registry = SystemClock(), CollectorRegistry()
    metrics = OperatorMetrics(registry)
    _serve_metrics(settings.metrics_port, registry)
    async with AsyncExitStack() as stack:
        listed = asyncio.Event()
        await stack.enter_async_context(serve_health(settings.health_port, listed.is_set))
        world = await _unless_stopped(stop, _make_world(settings, clock, metrics, stack))
        if world is None:
            return
        watcher = Watcher(world.api, world.store, world.queue, clock, metrics, world.budgets, listed)
        admission = Admission(world.store, separate=settings.separate_namespaces)
        loops = [run_informed(watcher, Reconciler(world, admission)) for _ in range(settings.workers)]
        loops += [watcher.run(), world.fleet.run(), _watch_rights(world)]
        await run_beside(watch(watcher, settings.kubeconfig, stop), loops)


async def _unless_stopped(stop: asyncio.Event, making: Coroutine[Any, Any, World]) -> World | None:
    """Return what is made; None where it is told to stop before, as while no API server answers."""
    made, stopped = asyncio.create_task(making), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((made, stopped), return_when=asyncio.FIRST_COMPLETED)
        return made.result() if made.done() else None
    finally:
        made.cancel()
        stopped.cancel()
        await asyncio.gather(made, stopped, return_exceptions=True)


async def run_informed(watcher: Watcher, reconciler: Reconciler) -> None:
    """Run a reconciler as soon as everything has been listed, until it is cancelled."""
    # Whoever decides by a part of what there is takes a kill back whose switch it has not seen yet.
    await watcher.complete()
    await reconciler.run()


async def run_beside(main: Awaitable[None], loops: Iterable[Coroutine[Any, Any, None]]) -> None:
    """
    Run loops that never end by themselves for as long as `main` runs.

    Raises:
        ExceptionGroup: a loop has failed, for a reason that nobody has foreseen. Everything ends with it: an
            operator that only seems to work is worse than one that is started again.
    """
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(loop) for loop in loops]
        try:
            await main
        finally:
            for task in tasks:
                task.cancel()


async def _make_world(
    settings: OperatorSettings, clock: Clock, metrics: OperatorMetrics, stack: AsyncExitStack
) -> World:
    client = await connect(settings.kubeconfig)
    stack.push_async_callback(client.close)
    api = KubeApi(
        client, REQUEST_SECONDS, lambda verb, resource: metrics.api_calls.labels(verb, resource).inc()
    )
    budgets = await choose_budgets(api)
    store, queue = Store(), WorkQueue(clock)
    probe = await stack.enter_async_context(probe_client())
    file = settings.gateway_certificate
    certificate = GatewayCertificate(file) if file is not None else None
    client_of_gateways = await stack.enter_async_context(gateway_client(certificate))
    gateways = HttpGatewayProbe(client_of_gateways, certificate)
    scheme = "http" if certificate is None else "https"
    prometheus = await stack.enter_async_context(prometheus_client())
    return World(
        api=api,
        store=store,
        queue=queue,
        clock=clock,
        engines=HttpProbe(probe),
        gateways=gateways,
        fleet=Fleet(api, gateways, queue, settings.gateway_labels, settings.gateway_port, scheme),
        figures=Prometheus(prometheus),
        metrics=metrics,
        prometheus_url=settings.prometheus_url,
        budgets=budgets,
    )


async def choose_budgets(api: Api, pause: Pause = asyncio.sleep) -> Resource:
    """Ask which disruption budgets the server has, for as long as it does not answer; `pause` waits."""
    refusals = 0
    while True:
        try:
            return await find_budgets(api)
        except Forbidden as error:
            refusals += 1
            logger.error("%s", error)
            # A server that has just started may not know anybody's rights yet; one that goes on means it.
            if refusals >= REFUSALS_MAX:
                return BUDGETS
        except SternpostError as error:
            logger.warning("waiting for the API server: %s", error)
        await pause(START_SECONDS)


async def _watch_rights(world: World) -> None:
    """Say again and again which rights are missing, for as long as any is."""
    while True:
        try:
            missing = await missing_rights(world.api)
        except SternpostError as error:
            logger.warning("whether a right is missing could not be found out: %s", error)
        else:
            world.metrics.missing_rights.set(len(missing))
            for right in missing:
                logger.error("the operator lacks the right to %s", right)
        await asyncio.sleep(RIGHTS_SECONDS)


def _serve_metrics(port: int, registry: CollectorRegistry) -> None:
    if not port:
        return
    try:
        start_http_server(port, registry=registry)
    except OSError as error:
        raise OperatingError(f"--metrics-port {port} cannot be listened on: {error}") from error
