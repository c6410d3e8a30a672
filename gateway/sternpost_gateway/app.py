"""
The composition root: every part of the gateway is built here, once, and handed what it needs.

Importing this package does nothing, and building an application starts nothing: what runs in the background
starts and ends with the application's lifespan.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from sternpost_core.clock import Clock
from sternpost_core.errors import OperatingError
from sternpost_core.keys import SECRET_BYTES_MIN
from sternpost_core.rollout import FOR_ALL, NOT_BEGUN
from sternpost_gateway.admin import Admin, Lifecycle
from sternpost_gateway.admit import Admission
from sternpost_gateway.builder import TailBuilder
from sternpost_gateway.callers import Callers, make_callers
from sternpost_gateway.cluster.source import ClusterConfig
from sternpost_gateway.config import Config, ConfigSource, PolicyDirectory
from sternpost_gateway.dialer import Dialer
from sternpost_gateway.discovery import DnsDiscovery, Members, OnEngines, resolve
from sternpost_gateway.engine_api import EngineApi
from sternpost_gateway.engine_keys import EngineKeys
from sternpost_gateway.engine_paths import is_for_engines
from sternpost_gateway.fleet import Engine, Fleet
from sternpost_gateway.forward import Forward
from sternpost_gateway.kill_file import KillFile
from sternpost_gateway.kill_signals import kill_signals
from sternpost_gateway.kills import Kills, KillTable, Latch, OnLatch
from sternpost_gateway.kv_event_reader import KvEventReader
from sternpost_gateway.metrics import Metrics
from sternpost_gateway.model_list import ModelList
from sternpost_gateway.own_paths import own_paths
from sternpost_gateway.pipeline import Parts, Pipeline
from sternpost_gateway.prober import Prober
from sternpost_gateway.prompts import make_prompts
from sternpost_gateway.router import Strategies
from sternpost_gateway.routing import Routing, by_least_cost, make_routing
from sternpost_gateway.secret_files import secret_text
from sternpost_gateway.settings import Cluster, Settings, Worker
from sternpost_gateway.shadow.sampler import Live, ShadowSampler
from sternpost_gateway.shadow.verdicts import Demotion, Verdicts
from sternpost_gateway.shared_admin import SharedAdmin, shared_page
from sternpost_gateway.siblings import Siblings
from sternpost_gateway.state_files import read_file, write_file
from sternpost_gateway.tails import TailKey, Tails
from sternpost_gateway.top.page import Series, read_page
from sternpost_gateway.tracing import NO_TRACING, Tracing
from sternpost_gateway.transition import Pace, freeze_while_stale
from sternpost_gateway.trips import Trip, Trips
from sternpost_gateway.tunnel import TUNNEL
from sternpost_gateway.tunnels import Tunnels
from sternpost_gateway.ui.history import History
from sternpost_gateway.ui.routes import Ui
from sternpost_gateway.upstream import Upstream
from sternpost_gateway.versions import Versions
from sternpost_gateway.warmer import Warmer, may_warm
from sternpost_gateway.watched_files import WatchedFiles
from sternpost_gateway.worker import answering_siblings, first_engine, keep_agreed

logger = logging.getLogger(__name__)

Job = Callable[[], Coroutine[Any, Any, None]]
"""Starts something that runs in the background until it is cancelled."""

MakeMetrics = Callable[[CollectorRegistry], Metrics]
"""Returns what a gateway counts in, shown by a registry."""

NO_FILES: Final[Mapping[str, WatchedFiles[Any]]] = {}
"""Of a gateway without TLS."""

SECRET_FILE: Final = "salt.key"
SECRET_BYTES: Final = 32
"""The length of a salt secret that is made here."""


def create_app(
    settings: Settings,
    *,
    clock: Clock,
    registry: CollectorRegistry,
    upstream: Upstream,
    control: httpx.AsyncClient,
    chance: random.Random,
    lifecycle: Lifecycle,
    tracing: Tracing = NO_TRACING,
    make_metrics: MakeMetrics = Metrics,
    strategies: Callable[[random.Random], Strategies] = by_least_cost,
    files: Mapping[str, WatchedFiles[Any]] = NO_FILES,
    dialer: Dialer | None = None,
) -> ASGIApp:
    """
    Build the gateway; `files`, by what they are for, are kept current while it runs.

    Raises:
        PolicyError: the policies cannot go live; with every fault.
        OperatingError: the salt secret cannot be read or kept.
    """
    metrics = make_metrics(registry)
    pace = Pace(settings.timeouts.unkill_step_seconds, settings.timeouts.kill_ramp_seconds)
    kills = Kills(clock, settings.state, _on_latch(metrics), pace)
    versions = Versions(settings.own_state)
    tails = Tails(clock)
    routing = _routing(settings, tails, clock, chance, strategies, metrics)
    trips = Trips(clock, settings.own_state, _on_trip(metrics))
    members = Members(routing.fleet.engines, _on_engines(routing.fleet, trips))
    keys, key_files = _engine_keys(settings)
    on_config, on_engines = _on_config(kills, metrics, versions, keys), members.source("cluster")
    source, keep_current = _config_source(settings, clock, chance, on_config, on_engines, keys)
    api = EngineApi(control, settings.timeouts, keys.own)
    prompts = make_prompts(api, clock, versions, routing.estimates.tokens, settings.token_estimate)
    builder = TailBuilder(api, tails, metrics, routing.budget, routing.fleet)
    verdicts = Verdicts(clock, settings.own_state, _on_demotion(metrics))
    live = Live(lambda: source.config.policies, lambda: kills.table)
    parts = Parts(
        settings=settings,
        secret=load_secret(settings),
        clock=clock,
        policies=live.policies,
        rollouts=lambda: source.config.rollouts,
        kills=live.kills,
        callers=make_callers(settings, clock),
        admission=Admission(settings.limits, chance),
        gate=routing.gate,
        fleet=routing.fleet,
        prompts=prompts,
        tails=tails,
        trips=trips,
        builder=builder,
        models=ModelList(api, routing.fleet),
        warmer=Warmer(tails, builder, routing.fleet),
        verdicts=verdicts,
        shadow=ShadowSampler(
            api, routing.fleet, verdicts, routing.shadow_budget, metrics, chance, settings.cold, live
        ),
        router=routing.router,
        forward=Forward(upstream, keys, settings.timeouts.first_byte_seconds),
        metrics=metrics,
        tracing=tracing,
    )
    admin = _admin(parts, source, kills, _load_kill_file(settings.kill_file, kills), registry, lifecycle)
    jobs = _jobs(parts, keep_current, api, admin)
    jobs |= _outer_jobs(settings, routing, members, {**files, **key_files})
    routes = [*admin.routes(), *_ui(admin, settings.worker).routes()]
    own = own_paths(routes, lambda app: _running(app, parts, kills, jobs, api, upstream))
    return _entrance(parts, own, dialer or Dialer(settings.timeouts))


def _routing(
    settings: Settings,
    tails: Tails,
    clock: Clock,
    chance: random.Random,
    strategies: Callable[[random.Random], Strategies],
    metrics: Metrics,
) -> Routing:
    return make_routing(
        tuple(Engine(url.rstrip("/")) for url in settings.engines),
        tails,
        clock,
        chance,
        strategies=strategies,
        cold=settings.cold,
        budget_share=1.0 / settings.workers,
        shadow_share=settings.shadow_share,
        on_outcome=metrics.gated,
    )


def _admin(
    parts: Parts,
    source: ConfigSource,
    kills: Kills,
    kill_file: KillFile | None,
    registry: CollectorRegistry,
    lifecycle: Lifecycle,
) -> Admin:
    return Admin(
        fleet=parts.fleet,
        prompts=parts.prompts,
        source=source,
        kills=kills,
        kill_file=kill_file,
        trips=parts.trips,
        verdicts=parts.verdicts,
        gate=parts.gate,
        warmer=parts.warmer,
        metrics=parts.metrics,
        registry=registry,
        clock=parts.clock,
        lifecycle=lifecycle,
        token=parts.settings.admin_token,
    )


def _ui(admin: Admin, worker: Worker | None) -> Ui:
    """Return the page of the whole gateway, whichever worker is asked for it."""

    async def take() -> tuple[Series, ...]:
        if worker is None:
            return admin.series()
        return read_page(await shared_page(Siblings(worker)))

    return Ui(History(socket.gethostname(), take, admin.clock))


def _load_kill_file(path: Path | None, kills: Kills) -> KillFile | None:
    """Return the kill file, read for the first time, None if there is to be none."""
    if path is None:
        return None
    kill_file = KillFile(path, kills)
    kill_file.load()
    return kill_file


def load_secret(settings: Settings) -> bytes:
    """
    Return the secret of the cache salts: the one given, else the one kept in the state directory.

    Gateways that serve the same engines share KV only when they share the secret.

    Raises:
        OperatingError: the kept secret cannot be read or written.
    """
    if settings.salt_secret is not None:
        return settings.salt_secret
    if settings.state is None:
        logger.warning("without --salt-key-file and --state, cached KV is unreachable after a restart")
        return secrets.token_bytes(SECRET_BYTES)
    path = settings.state / SECRET_FILE
    kept = read_file(path)
    if kept is None:
        kept = secrets.token_bytes(SECRET_BYTES)
        write_file(path, kept)
    if len(kept) < SECRET_BYTES_MIN:
        raise OperatingError(
            f"{path} holds fewer than {SECRET_BYTES_MIN} bytes; remove it to have it made anew"
        )
    return kept


def _config_source(
    settings: Settings,
    clock: Clock,
    chance: random.Random,
    on_config: Callable[[Config], None],
    on_engines: OnEngines,
    keys: EngineKeys,
) -> tuple[ConfigSource, Job]:
    """
    Return where the configuration comes from, once it is there, and what keeps it current.

    Raises:
        PolicyError: there is nothing to begin with.
    """
    if settings.policies is not None:
        directory = PolicyDirectory(settings.policies, clock, on_config)
        directory.load()
        return directory, lambda: directory.watch(settings.timeouts.poll_seconds)
    place = settings.cluster or Cluster()
    # The Kubernetes client takes time and memory to load: only gateways of a cluster need it.
    from sternpost_gateway.cluster.api import KubernetesApi
    from sternpost_gateway.cluster.pool_secrets import PoolSecrets

    api = KubernetesApi(place.kubeconfig)
    undecided = NOT_BEGUN if place.rollouts else FOR_ALL
    cluster = ClusterConfig(
        api, clock, chance, place.namespace, undecided, settings.state, on_config, on_engines
    )
    cluster.load()

    async def keep_current() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(cluster.watch())
                group.create_task(PoolSecrets(api, keys).run())
        finally:
            await api.aclose()

    return cluster, keep_current


def _entrance(parts: Parts, own: Starlette, dialer: Dialer) -> ASGIApp:
    """Send what is for engines straight into the pipeline; routing is for the gateway's own endpoints."""
    pipeline, tunnels, worker = Pipeline(parts), Tunnels(parts, dialer), parts.settings.worker
    shared = own if worker is None else SharedAdmin(own, Siblings(worker))

    async def entrance(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and is_for_engines(scope["path"]):
            await pipeline(scope, receive, send)
        elif scope["type"] == TUNNEL:
            await tunnels(scope)
        else:
            await shared(scope, receive, send)

    return entrance


def _engine_keys(settings: Settings) -> tuple[EngineKeys, dict[str, WatchedFiles[Any]]]:
    """Return what engines are shown, and the file of the flags' key, if there is one."""
    path = settings.engine_key_file
    if path is None:
        return EngineKeys(settings.credentials, lambda: settings.engine_key), {}
    flag = "--engine-key-file"
    watched = WatchedFiles(flag, [path], lambda: secret_text(flag, path, 1))
    return EngineKeys(settings.credentials, lambda: watched.value), {"engines' key": watched}


def _on_config(
    kills: Kills, metrics: Metrics, versions: Versions, keys: EngineKeys
) -> Callable[[Config], None]:
    def take(config: Config) -> None:
        keys.configure(config.pools)
        epochs = {name: rollout.epoch for name, rollout in config.rollouts.items()}
        kills.configure(config.policies.policies, config.switches, epochs)
        versions.agree(config.policies.policies)
        metrics.show_levels(kills.table)

    return take


def _on_engines(fleet: Fleet, trips: Trips) -> OnEngines:
    def take(engines: Sequence[Engine]) -> None:
        _, gone = fleet.set_engines(engines)
        for engine in gone:
            trips.forget(engine)

    return take


def _on_latch(metrics: Metrics) -> OnLatch:
    def count(latch: Latch, table: KillTable) -> None:
        metrics.kills.labels(latch.level.value, latch.source.value).inc()
        metrics.show_levels(table)

    return count


def _on_trip(metrics: Metrics) -> Callable[[Trip], None]:
    return lambda trip: metrics.trips.labels(trip.engine.url).inc()


def _on_demotion(metrics: Metrics) -> Callable[[Demotion], None]:
    return lambda demotion: metrics.demotions.labels(demotion.tail.policy).inc()


@asynccontextmanager
async def _running(
    own: ASGIApp, parts: Parts, kills: Kills, jobs: Mapping[str, Job], api: EngineApi, upstream: Upstream
) -> AsyncIterator[None]:
    """Hold what the application needs while it runs."""
    worker = parts.settings.worker
    async with AsyncExitStack() as stack:
        stack.enter_context(kill_signals(kills))
        if worker is not None:
            await stack.enter_async_context(answering_siblings(own, worker, kills))
            parts.metrics.show_levels(kills.table)
        parts.metrics.in_flight.set_function(lambda: parts.admission.in_flight)
        # Released in reverse: first what starts requests, then what they travel on.
        stack.push_async_callback(parts.tracing.close)
        stack.push_async_callback(upstream.close)
        stack.push_async_callback(api.close)
        stack.push_async_callback(parts.prompts.versions.save)
        stack.push_async_callback(parts.builder.close)
        stack.push_async_callback(parts.warmer.close)
        stack.push_async_callback(parts.shadow.close)
        stack.push_async_callback(parts.prompts.close)
        await stack.enter_async_context(_background(jobs))
        if worker is not None:
            await first_engine(parts.fleet)
        yield


def _jobs(parts: Parts, keep_current: Job, api: EngineApi, admin: Admin) -> dict[str, Job]:
    """Return what keeps beliefs fresh, by name."""
    timeouts, kills, kill_file = parts.settings.timeouts, admin.kills, admin.kill_file
    jobs: dict[str, Job] = {
        "configuration": keep_current,
        "prober": Prober(api, parts.fleet, parts.metrics, timeouts, parts.clock).run,
        "warmer": lambda: parts.warmer.run(lambda key: is_warm(parts, key)),
        "versions": parts.prompts.versions.keep_saved,
        "transition": lambda: freeze_while_stale(kills.delay, admin.config_age, parts.clock.monotonic),
    }
    jobs |= _caller_jobs(parts.callers)
    if parts.settings.worker is not None:
        jobs["agreement"] = lambda: keep_agreed(kills)
    if kill_file:
        jobs["kill file"] = lambda: kill_file.watch(timeouts.kill_file_seconds)
    return jobs


def _caller_jobs(callers: Callers) -> dict[str, Job]:
    """Return what keeps up with the keys of clients and of their tokens' issuer, by name."""
    jobs: dict[str, Job] = {}
    if callers.keys is not None:
        jobs["client keys"] = callers.keys.watch
    if callers.tokens is not None:
        jobs["token keys"] = callers.tokens.run
    return jobs


def _outer_jobs(
    settings: Settings, routing: Routing, members: Members, files: Mapping[str, WatchedFiles[Any]]
) -> dict[str, Job]:
    """Return what finds engines, what hears of their caches, and what keeps up with files, by name."""
    jobs: dict[str, Job] = {name: watched.watch for name, watched in files.items()}
    if settings.engine_names:
        names = DnsDiscovery(settings.engine_names, resolve, settings.timeouts.dns_period_seconds)
        jobs["discovery"] = lambda: names.run(members.source("names"))
    if settings.kv_events:
        reader = KvEventReader(routing.fleet, routing.index, routing.estimates, settings.kv_events)
        jobs["KV events"] = reader.run
    return jobs


@asynccontextmanager
async def _background(jobs: Mapping[str, Job]) -> AsyncIterator[None]:
    """Run the jobs; the death of any of them is logged at once, not at the end."""
    tasks = [asyncio.create_task(job(), name=name) for name, job in jobs.items()]
    for task in tasks:
        task.add_done_callback(_log_death)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _log_death(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.critical("the background task %r has died", task.get_name(), exc_info=task.exception())


def is_warm(parts: Parts, key: TailKey) -> bool:
    """Say whether a tail is to be on every engine: its policy says so, and it may be read."""
    policy = next((one for one in parts.policies().policies if one.full_name == key.policy), None)
    return policy is not None and policy.warm and may_warm(parts.kills(), key)
