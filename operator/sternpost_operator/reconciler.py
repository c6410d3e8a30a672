"""
Looks at one object at a time: gathers what bears on it, lets a pure function decide, carries the plan out.

Decisions are made from the store, so a look that changes nothing costs no request. Every write of a status
names the version that it was decided from; when somebody else was faster, the object is read again and
decided anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sternpost_core.clock import Clock
from sternpost_core.errors import Fault, OperatingError, PolicyError, SternpostError
from sternpost_core.kill import CacheKillSwitch, KillLevel, effective_level, parse_kill_switch
from sternpost_core.policy import Policy
from sternpost_core.pool import PORT_DEFAULT, Adopted, EnginePool, parse_pool
from sternpost_operator.admission import Admission
from sternpost_operator.analysis import WINDOW_SECONDS
from sternpost_operator.conditions import Condition, Kind, Truth, timestamp, write_conditions
from sternpost_operator.dependents import dependents
from sternpost_operator.engines import EngineProbe, Reuse, Said
from sternpost_operator.figures import Figures
from sternpost_operator.fleet import Fleet
from sternpost_operator.gateways import GatewayProbe, GatewayReport
from sternpost_operator.kube import Api, Conflict, Forbidden, NotFound, Refused
from sternpost_operator.metrics import OperatorMetrics
from sternpost_operator.plan import Apply, Event, EventType, Plan
from sternpost_operator.policy_decide import (
    COMMAND_ANNOTATION,
    PolicyObserved,
    decide_policy,
    wants_figures,
)
from sternpost_operator.policy_status import read_rollout
from sternpost_operator.pool_decide import PoolObserved, decide_pool, pod_addresses
from sternpost_operator.prometheus import FigureSource, FiguresUnavailable
from sternpost_operator.queries import Spans, step_span
from sternpost_operator.resources import (
    BUDGETS,
    EVENTS,
    MANAGED_BY,
    MANAGED_LABEL,
    OWN,
    PODS,
    POLICIES,
    POOLS,
    SERVICES,
    STATEFUL_SETS,
    SWITCHES,
    Key,
    Object,
    Resource,
    key_of,
)
from sternpost_operator.store import Store
from sternpost_operator.switch_decide import SwitchObserved, decide_switch
from sternpost_operator.work_queue import WorkQueue

logger = logging.getLogger(__name__)

REPORTER: Final = "sternpost-operator"
EVENT_MESSAGE_LENGTH_MAX: Final = 1024
NO_URL: Final = "neither spec.rollout.analysis.prometheus.url nor --prometheus-url says where figures are"
RESOURCES: Final = {resource.kind: resource for resource in OWN}


class NotOwned(OperatingError):
    """Somebody else has made an object of the name that one of the operator's own would have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Everything that a reconciler works with."""

    api: Api
    store: Store
    queue: WorkQueue
    clock: Clock
    engines: EngineProbe
    gateways: GatewayProbe
    fleet: Fleet
    figures: FigureSource
    metrics: OperatorMetrics
    prometheus_url: str | None = None
    budgets: Resource = BUDGETS


class Reconciler:
    """Takes keys from the queue, one after the other; several may run over one world."""

    def __init__(self, world: World, admission: Admission) -> None:
        self._world = world
        self._admission = admission
        self._looks: Mapping[str, Callable[[Object], Any]] = {
            POLICIES.kind: self._look_at_policy,
            POOLS.kind: self._look_at_pool,
            SWITCHES.kind: self._look_at_switch,
        }

    async def run(self) -> None:
        """Work until it is cancelled."""
        while True:
            await self.work(await self._world.queue.next())

    async def work(self, key: Key) -> None:
        """Look at the object of a key, and say when it is to be looked at again."""
        world = self._world
        started = world.clock.monotonic()
        value = world.store.get(key)
        if value is None or "deletionTimestamp" in value["metadata"]:
            # What a pool has rendered goes with it: the server follows the owner references.
            world.queue.forget(key)
            self._show_phase(key, None)
            return
        outcome = await self._reconcile(key, value)
        world.metrics.reconciles.labels(key.kind, outcome).inc()
        world.metrics.reconcile_seconds.labels(key.kind).observe(world.clock.monotonic() - started)
        world.metrics.queue_length.set(len(world.queue))

    async def _reconcile(self, key: Key, value: Object) -> str:
        queue = self._world.queue
        try:
            plan = await self._looks[key.kind](value)
            await self._carry_out(key, value, plan)
        except Conflict:
            await self._read_again(key)
            queue.failed(key)
            return "conflict"
        except Forbidden as error:
            logger.error("%s: %s", key, error)
            await self._say_degraded(key, value, "MissingPermission", error)
            queue.failed(key)
            return "forbidden"
        except (Refused, NotOwned) as error:
            logger.warning("%s: %s", key, error)
            await self._say_degraded(key, value, type(error).__name__, error)
            queue.failed(key)
            return "failed"
        except SternpostError as error:
            logger.warning("%s: %s", key, error)
            queue.failed(key)
            return "failed"
        except Exception:
            # One object that nobody has foreseen must not stop the care for all others.
            logger.exception("%s: an unforeseen error", key)
            queue.failed(key)
            return "error"
        queue.done(key)
        queue.add(key, plan.again_seconds)
        self._show_phase(key, plan.status.get("phase"))
        return "done"

    def _show_phase(self, key: Key, phase: str | None) -> None:
        if key.kind == POLICIES.kind:
            self._world.metrics.show_phase(f"{key.namespace}/{key.name}", phase)

    async def _look_at_policy(self, value: Object) -> Plan:
        world, now = self._world, self._world.clock.time()
        metadata, status = value["metadata"], value.get("status", {})
        policy, faults = self._admission.judge(value)
        pool = self._pool_of(policy) if policy else None
        level = self._kill_level(policy) if policy else KillLevel.NONE
        figures, reason = await self._figures(policy, status, now) if policy else (None, "")
        observed = PolicyObserved(
            policy=policy,
            faults=faults,
            generation=metadata.get("generation", 0),
            command=str(metadata.get("annotations", {}).get(COMMAND_ANNOTATION, "")),
            pool=pool,
            kill_level=level,
            figures=figures,
            no_figures=reason,
            versions=world.fleet.versions(policy.full_name) if policy else (),
        )
        return decide_policy(observed, status, world.clock.time())

    async def _figures(
        self, policy: Policy, status: Mapping[str, Any], now: float
    ) -> tuple[Figures | None, str]:
        """Return the figures, or why there are none."""
        state = read_rollout(status)
        url = policy.rollout.analysis.prometheus_url or self._world.prometheus_url
        if not wants_figures(state, now):
            return None, ""
        if url is None:
            return None, NO_URL
        spans = Spans(window=int(WINDOW_SECONDS), step=step_span(now - state.step_since))
        try:
            return await self._world.figures.figures(url, policy.full_name, spans), ""
        except FiguresUnavailable as error:
            return None, str(error)

    def _pool_of(self, policy: Policy) -> Object | None:
        return self._world.store.get(Key(POOLS.kind, policy.namespace, policy.pool))

    def _kill_level(self, policy: Policy) -> KillLevel:
        levels = [policy.kill_level]
        for value in self._world.store.of_kind(SWITCHES.kind):
            # A switch that cannot be read kills nothing here; gateways keep the last good one.
            switch, _ = _read_switch(value)
            if switch is not None and switch.selects(policy.namespace, policy.name):
                levels.append(switch.level)
        return effective_level(levels)

    async def _look_at_pool(self, value: Object) -> Plan:
        world, metadata = self._world, value["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        pool, faults = _read_pool(value)
        pods = await self._pods(pool) if pool else []
        observed = PoolObserved(
            pool=pool,
            faults=faults,
            uid=metadata["uid"],
            generation=metadata.get("generation", 0),
            children=self._children(namespace, name),
            pods=pods,
            said=await self._said(pool, pods) if pool else {},
            texts=self._texts(pool) if pool else (),
            budgets=world.budgets,
        )
        return decide_pool(observed, value.get("status", {}), world.clock.time())

    def _children(self, namespace: str, name: str) -> dict[str, Object]:
        kinds = (STATEFUL_SETS.kind, SERVICES.kind, self._world.budgets.kind)
        found = {kind: self._world.store.get(Key(kind, namespace, name)) for kind in kinds}
        return {kind: child for kind, child in found.items() if child is not None}

    def _texts(self, pool: EnginePool) -> tuple[str, ...]:
        """Return the ConfigMaps that accepted policies of a pool name for calibration."""
        store = self._world.store
        values = (
            store.get(key) for key in dependents(store, Key(POOLS.kind, pool.namespace, pool.name), None)
        )
        policies = (self._admission.judge(value)[0] for value in values if value is not None)
        caches = (policy.suffix_cache for policy in policies if policy is not None)
        names = {cache.calibration.config_map for cache in caches if cache is not None}
        return tuple(sorted(name for name in names if name))

    async def _pods(self, pool: EnginePool) -> list[Object]:
        if not isinstance(pool.engines, Adopted):
            return self._world.store.of_pool(PODS.kind, pool.namespace, pool.name)
        labels = ",".join(f"{key}={value}" for key, value in sorted(pool.engines.match_labels.items()))
        return await self._world.api.list_all(PODS, labels=labels, namespace=pool.namespace)

    async def _said(self, pool: EnginePool, pods: list[Object]) -> Mapping[str, Said]:
        port = pool.engines.port if isinstance(pool.engines, Adopted) else PORT_DEFAULT
        addresses = pod_addresses(pods, port)
        if pool.pool_fraction == 0 and not isinstance(pool.engines, Adopted):
            return dict.fromkeys(addresses, Said(Reuse.OFF, "suffixStore.poolFraction is 0"))
        return await self._world.engines.ask(addresses)

    async def _look_at_switch(self, value: Object) -> Plan:
        metadata = value["metadata"]
        switch, faults = _read_switch(value)
        observed = SwitchObserved(
            switch=switch,
            faults=faults,
            generation=metadata.get("generation", 0),
            reports=await self._reports() if switch else {},
        )
        return decide_switch(observed, value.get("status", {}), self._world.clock.time())

    async def _reports(self) -> Mapping[str, GatewayReport]:
        return await self._world.gateways.ask(await self._world.fleet.addresses())

    async def _carry_out(self, key: Key, value: Object, plan: Plan) -> None:
        for apply in plan.applies:
            await self._check_owner(apply)
            applied = await self._world.api.apply(apply.resource, apply.value)
            self._world.store.put(applied, apply.resource.kind)
        if dict(plan.status) != value.get("status", {}):
            written = await self._world.api.replace_status(RESOURCES[key.kind], value, plan.status)
            self._world.store.put(written, key.kind)
            for dependent in dependents(self._world.store, key, value):
                self._world.queue.add(dependent)
        # Events follow the status: one that could not be written has decided nothing yet.
        for event in plan.events:
            await self._tell(key, value, event)

    async def _check_owner(self, apply: Apply) -> None:
        """
        Look whose object it is that would be made, or changed, where it is not known as an own one.

        Raises:
            NotOwned: somebody else's, which may serve somebody, and which would go when the pool goes.
            ApiFailed: the server does not say.
        """
        key = key_of(apply.value, apply.resource.kind)
        if self._world.store.get(key) is not None:
            return
        try:
            found = await self._world.api.get(apply.resource, key.namespace, key.name)
        except NotFound:
            return
        if found["metadata"].get("labels", {}).get(MANAGED_LABEL) != MANAGED_BY:
            raise NotOwned(f"there is a {key} already, without the label {MANAGED_LABEL}={MANAGED_BY}")

    async def _tell(self, key: Key, value: Object, event: Event) -> None:
        now = timestamp(self._world.clock.time())
        namespace = key.namespace or "default"
        body = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"generateName": f"{key.name[:200]}.", "namespace": namespace},
            "involvedObject": {
                "apiVersion": RESOURCES[key.kind].api_version,
                "kind": key.kind,
                "name": key.name,
                "uid": value["metadata"].get("uid", ""),
                **({"namespace": key.namespace} if key.namespace else {}),
            },
            "type": event.type.value,
            "reason": event.reason,
            "message": event.message[:EVENT_MESSAGE_LENGTH_MAX],
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "source": {"component": REPORTER},
        }
        try:
            await self._world.api.create(EVENTS, body)
        except SternpostError as error:
            # An event is a courtesy; the status says the same.
            logger.warning("%s: no event could be written: %s", key, error)

    async def _read_again(self, key: Key) -> None:
        try:
            value = await self._world.api.get(RESOURCES[key.kind], key.namespace, key.name)
        except NotFound:
            self._world.store.drop(key)
        except SternpostError as error:
            logger.warning("%s: %s", key, error)
        else:
            self._world.store.put(value, key.kind)

    async def _say_degraded(
        self, key: Key, value: Object, reason: str, error: Forbidden | Refused | NotOwned
    ) -> None:
        """Say in the status what is in the way, such as a missing right, unless it is the way to say so."""
        if not isinstance(error, NotOwned) and "/status" in error.permission:
            return
        status, generation = value.get("status", {}), value["metadata"].get("generation", 0)
        degraded = Condition(Kind.DEGRADED, Truth.TRUE, reason, str(error))
        (written,) = write_conditions([degraded], status, generation, self._world.clock.time())
        others = [one for one in status.get("conditions", []) if one["type"] != Kind.DEGRADED.value]
        said = {**status, "conditions": [*others, written]}
        if said == status:
            return
        try:
            put = await self._world.api.replace_status(RESOURCES[key.kind], value, said)
        except SternpostError as failure:
            logger.warning("%s: %s", key, failure)
            return
        self._world.store.put(put, key.kind)
        await self._tell(key, value, Event(EventType.WARNING, reason, str(error)))


def _read_pool(value: Object) -> tuple[EnginePool | None, tuple[Fault, ...]]:
    try:
        return parse_pool(value), ()
    except PolicyError as error:
        return None, error.faults


def _read_switch(value: Object) -> tuple[CacheKillSwitch | None, tuple[Fault, ...]]:
    try:
        return parse_kill_switch(value), ()
    except PolicyError as error:
        return None, error.faults
