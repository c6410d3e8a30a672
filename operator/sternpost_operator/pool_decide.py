"""
What is to be done about an EnginePool: pure functions of the object, what it has become, what engines say.

A change of the pods' template reaches one pod at a time. The StatefulSet's partition keeps the others as they
are; it goes down by one when every changed pod is ready and reuses tails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sternpost_core.errors import Fault
from sternpost_core.pool import Adopted, Engine, EnginePool
from sternpost_operator.conditions import (
    Condition,
    Kind,
    Truth,
    seconds_of,
    timestamp,
    write_conditions,
)
from sternpost_operator.engines import Reuse, Said
from sternpost_operator.plan import Apply, Event, EventType, Plan
from sternpost_operator.pool_render import (
    DIGEST_ANNOTATION,
    TEMPLATE_ANNOTATION,
    Texts,
    digest,
    model_digest,
    pod_template,
    pool_labels,
    render,
)
from sternpost_operator.resources import Object, Resource
from sternpost_operator.status_size import fit

CHANGING_SECONDS: Final = 5.0
"""Between two looks at a pool that is not yet as it should be."""

STEADY_SECONDS: Final = 60.0
"""Between two looks at a pool that is."""

ADOPTED_SECONDS: Final = 30.0
"""Between two looks at a pool whose pods are somebody else's: each look asks the server for them."""

ENGINES_MAX: Final = 64
"""Engines that a status names, the first ones."""

ASKED_MAX: Final = 1024
"""Engines that are asked what they reuse: as many as a pool may have."""

ENDED: Final = ("Failed", "Succeeded")
"""Phases of pods that will not run again."""

REVISION_LABEL: Final = "controller-revision-hash"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolObserved:
    """An EnginePool as read, or its faults, with what there is of it in the cluster."""

    pool: EnginePool | None
    faults: tuple[Fault, ...] = ()
    uid: str
    generation: int
    children: Mapping[str, Object] = field(default_factory=dict)
    """The rendered objects that exist, by kind."""
    pods: Sequence[Object] = ()
    said: Mapping[str, Said] = field(default_factory=dict)
    texts: Texts = ()
    budgets: Resource


@dataclass(frozen=True, slots=True)
class EngineSeen:
    """One pod of a pool."""

    pod: str
    address: str
    is_ready: bool
    is_updated: bool
    said: Said


@dataclass(frozen=True, slots=True)
class Change:
    """How far a change of the template has come; `waits_for` is the changed pod that is not warm yet."""

    partition: int
    waits_for: str | None = None
    is_pending: bool = False


def decide_pool(observed: PoolObserved, status: Mapping[str, Any], now: float) -> Plan:
    """Return what is to be done about a pool."""
    pool = observed.pool
    if pool is None:
        return _refuse(observed, status, now)
    seen = engines_seen(observed)
    if isinstance(pool.engines, Adopted):
        return _adopt(observed, pool.engines, seen, status, now)
    return _run(observed, pool, pool.engines, seen, status, now)


def pod_addresses(
    pods: Sequence[Object], port: int, count_max: int = ASKED_MAX, scheme: str = "http"
) -> dict[str, str]:
    """Return the base URLs of the pods that are ready, by name; by default as many as a pool may have."""
    ready = [pod for pod in pods if _is_ready(pod)]
    return {pod["metadata"]["name"]: _url(scheme, pod["status"]["podIP"], port) for pod in ready[:count_max]}


def engines_seen(observed: PoolObserved) -> tuple[EngineSeen, ...]:
    """Return the pool's pods, with what their engines say."""
    stateful_set = observed.children.get("StatefulSet")
    revision = _newest_revision(observed, stateful_set)
    unknown = Said(Reuse.UNKNOWN)
    return tuple(
        EngineSeen(
            pod=pod["metadata"]["name"],
            address=pod.get("status", {}).get("podIP", ""),
            is_ready=_is_ready(pod),
            is_updated=revision is not None
            and pod["metadata"].get("labels", {}).get(REVISION_LABEL) == revision,
            said=observed.said.get(pod["metadata"]["name"], unknown),
        )
        for pod in sorted(observed.pods, key=lambda pod: _ordinal(pod["metadata"]["name"]))
        # A pod that has ended, as one that its node has evicted, stays as a record and is no engine.
        if pod.get("status", {}).get("phase") not in ENDED
    )


def _newest_revision(observed: PoolObserved, stateful_set: Object | None) -> str | None:
    """Return the revision of the template that is wanted, or None while the server does not know it yet."""
    pool = observed.pool
    engine = pool.engines if pool else None
    if pool is None or not isinstance(engine, Engine) or stateful_set is None:
        return None
    if not _has_template(pool, engine, observed.texts, stateful_set) or not _is_observed(stateful_set):
        return None
    revision = stateful_set.get("status", {}).get("updateRevision")
    return str(revision) if revision else None


def _has_template(pool: EnginePool, engine: Engine, texts: Texts, stateful_set: Object) -> bool:
    annotations = stateful_set["metadata"].get("annotations", {})
    return bool(annotations.get(TEMPLATE_ANNOTATION) == digest(pod_template(pool, engine, texts)))


def plan_change(
    pool: EnginePool,
    engine: Engine,
    texts: Texts,
    stateful_set: Object | None,
    seen: Sequence[EngineSeen],
) -> Change:
    """Return the partition from now on."""
    if stateful_set is None:
        return Change(0)
    if not _has_template(pool, engine, texts, stateful_set):
        # Nothing changes yet: the first pod is let go when the server knows the new template.
        return Change(engine.replicas, is_pending=True)
    partition = min(_partition(stateful_set), engine.replicas)
    if not _is_observed(stateful_set):
        return Change(partition, is_pending=partition > 0)
    there = {one.pod: one for one in seen}
    let_go = [f"{pool.name}-{number}" for number in range(partition, engine.replicas)]
    # A pod that is away is being made anew: the next one is not let go before it is there, and warm.
    cold = next((name for name in let_go if name not in there or not _is_warm(there[name], seen)), None)
    if partition == 0 or cold is not None:
        return Change(partition, cold if partition > 0 or _is_changing(seen) else None)
    return Change(partition - 1)


def _run(
    observed: PoolObserved,
    pool: EnginePool,
    engine: Engine,
    seen: Sequence[EngineSeen],
    status: Mapping[str, Any],
    now: float,
) -> Plan:
    change = plan_change(pool, engine, observed.texts, observed.children.get("StatefulSet"), seen)
    wanted = render(pool, engine, observed.uid, change.partition, observed.budgets, observed.texts)
    applies = tuple(apply for apply in wanted if not _is_applied(apply, observed.children))
    warming = _warming(change, status, now)
    epoch, models = _epoch(engine, status)
    conditions = [
        Condition(Kind.ACCEPTED, Truth.TRUE, "Valid"),
        _ready(seen, engine.replicas),
        _progressing(change, seen, engine.replicas),
        _degraded(seen, warming, engine.warm_seconds, now),
    ]
    written = {
        **_common(observed, seen, status, conditions, now),
        "updatedReplicas": sum(one.is_updated for one in seen),
        "epoch": epoch,
        "modelDigest": models,
        "partition": change.partition,
        "selector": _selector(pool_labels(pool.name)),
        **({"warming": warming} if warming else {}),
    }
    is_steady = not applies and change.partition == 0 and conditions[1].truth is Truth.TRUE
    return Plan(
        status=fit(written, "engines"),
        applies=applies,
        events=_events(conditions, status, epoch),
        again_seconds=STEADY_SECONDS if is_steady else CHANGING_SECONDS,
    )


def _adopt(
    observed: PoolObserved,
    adopted: Adopted,
    seen: Sequence[EngineSeen],
    status: Mapping[str, Any],
    now: float,
) -> Plan:
    conditions = [
        Condition(Kind.ACCEPTED, Truth.TRUE, "Valid"),
        _ready(seen, len(seen)),
        Condition(Kind.PROGRESSING, Truth.FALSE, "Adopted", "the pods are run by somebody else"),
        _degraded(seen, None, 0, now),
    ]
    written = {
        **_common(observed, seen, status, conditions, now),
        "epoch": _count(status.get("epoch")),
        "selector": _selector(adopted.match_labels),
    }
    return Plan(
        status=fit(written, "engines"),
        events=_events(conditions, status, _count(status.get("epoch"))),
        again_seconds=ADOPTED_SECONDS,
    )


def _refuse(observed: PoolObserved, status: Mapping[str, Any], now: float) -> Plan:
    """Say what is wrong, and leave everything else as it is: what runs goes on."""
    message = "; ".join(str(fault) for fault in observed.faults)
    conditions = [
        Condition(Kind.ACCEPTED, Truth.FALSE, "Invalid", message),
        Condition(
            Kind.READY, Truth.FALSE, "Invalid", "the object is not accepted; what runs goes on as it is"
        ),
        Condition(Kind.PROGRESSING, Truth.FALSE, "Invalid"),
        Condition(Kind.DEGRADED, Truth.TRUE, "Invalid"),
    ]
    written = {
        **status,
        "observedGeneration": observed.generation,
        "conditions": write_conditions(conditions, status, observed.generation, now),
    }
    events = _events(conditions, status, _count(status.get("epoch")))
    return Plan(status=fit(written, "engines"), events=events, again_seconds=STEADY_SECONDS)


def _common(
    observed: PoolObserved,
    seen: Sequence[EngineSeen],
    status: Mapping[str, Any],
    conditions: Sequence[Condition],
    now: float,
) -> dict[str, Any]:
    return {
        "observedGeneration": observed.generation,
        "replicas": len(seen),
        "readyReplicas": sum(one.is_ready for one in seen),
        "engines": [_engine_to_mapping(one) for one in seen[:ENGINES_MAX]],
        "conditions": write_conditions(conditions, status, observed.generation, now),
    }


def _engine_to_mapping(one: EngineSeen) -> dict[str, Any]:
    texts = {"address": one.address, "reason": one.said.reason}
    present = {key: text for key, text in texts.items() if text}
    return {"pod": one.pod, "ready": one.is_ready, "reuse": one.said.reuse.value, **present}


def _ready(seen: Sequence[EngineSeen], wanted: int) -> Condition:
    ready = sum(one.is_ready for one in seen)
    reusing = sum(one.is_ready and one.said.reuse in (Reuse.READY, Reuse.OFF) for one in seen)
    if wanted == 0:
        return Condition(Kind.READY, Truth.FALSE, "NoEngines", "no engine is wanted, or none is found")
    if ready < wanted:
        return Condition(Kind.READY, Truth.FALSE, "EnginesNotReady", f"{ready} of {wanted} engines are ready")
    if reusing < ready:
        message = f"{reusing} of {ready} engines that are ready reuse tails; see status.engines"
        return Condition(Kind.READY, Truth.FALSE, "NoReuse", message)
    return Condition(Kind.READY, Truth.TRUE, "EnginesReady", f"{ready} engines are ready")


def _progressing(change: Change, seen: Sequence[EngineSeen], wanted: int) -> Condition:
    if change.is_pending or change.partition > 0 or change.waits_for:
        updated = sum(one.is_updated for one in seen)
        waits = f"; {change.waits_for} is not warm yet" if change.waits_for else ""
        message = f"{updated} of {wanted} engines have the newest template{waits}"
        return Condition(Kind.PROGRESSING, Truth.TRUE, "Changing", message)
    if len(seen) != wanted:
        message = f"there are {len(seen)} pods, {wanted} are wanted"
        return Condition(Kind.PROGRESSING, Truth.TRUE, "Scaling", message)
    return Condition(Kind.PROGRESSING, Truth.FALSE, "UpToDate")


def _degraded(
    seen: Sequence[EngineSeen], warming: Mapping[str, Any] | None, warm_seconds: int, now: float
) -> Condition:
    since = seconds_of(warming["since"]) if warming else None
    if warming and since is not None and now - since > warm_seconds:
        message = f"{warming['pod']} is not warm after {warm_seconds} s; the change goes no further"
        return Condition(Kind.DEGRADED, Truth.TRUE, "WarmTimeout", message)
    unsupported = next((one for one in seen if one.said.reuse is Reuse.UNSUPPORTED), None)
    if unsupported is not None:
        message = f"{unsupported.pod} cannot reuse tails: {unsupported.said.reason}"
        return Condition(Kind.DEGRADED, Truth.TRUE, "ReuseUnsupported", message)
    return Condition(Kind.DEGRADED, Truth.FALSE, "AsExpected")


def _warming(change: Change, status: Mapping[str, Any], now: float) -> dict[str, Any] | None:
    if change.waits_for is None:
        return None
    before = status.get("warming", {})
    is_same = isinstance(before, Mapping) and before.get("pod") == change.waits_for
    return dict(before) if is_same else {"pod": change.waits_for, "since": timestamp(now)}


def _epoch(engine: Engine, status: Mapping[str, Any]) -> tuple[int, str]:
    """Return the epoch, which grows with every other model, and the digest of the model that it is for."""
    models, before = model_digest(engine), status.get("modelDigest")
    epoch = _count(status.get("epoch"))
    return (epoch if before in (None, models) else epoch + 1), models


def _events(conditions: Sequence[Condition], status: Mapping[str, Any], epoch: int) -> tuple[Event, ...]:
    """Tell about every condition whose truth or reason is new, and about a new epoch."""
    before = {one["type"]: (one["status"], one["reason"]) for one in status.get("conditions", [])}
    changed = [one for one in conditions if before.get(one.kind.value) != (one.truth.value, one.reason)]
    told = [Event(_event_type(one), one.reason, one.message) for one in changed if one.message]
    if epoch > _count(status.get("epoch")):
        message = f"model, revision or adapters have changed: epoch {epoch}; no older KV is read any more"
        told.append(Event(EventType.NORMAL, "NewEpoch", message))
    return tuple(told)


def _event_type(condition: Condition) -> EventType:
    is_bad = condition.truth is (Truth.TRUE if condition.kind is Kind.DEGRADED else Truth.FALSE)
    is_bad = is_bad and condition.kind in (Kind.ACCEPTED, Kind.DEGRADED)
    return EventType.WARNING if is_bad else EventType.NORMAL


def _is_applied(apply: Apply, children: Mapping[str, Object]) -> bool:
    live = children.get(apply.resource.kind)
    if live is None:
        return False
    wanted = apply.value["metadata"]["annotations"][DIGEST_ANNOTATION]
    return bool(live["metadata"].get("annotations", {}).get(DIGEST_ANNOTATION) == wanted)


def _is_warm(engine: EngineSeen, seen: Sequence[EngineSeen]) -> bool:
    """Tell whether a changed pod serves as well as the older ones do."""
    older_reuse = any(not one.is_updated and one.said.reuse is Reuse.READY for one in seen)
    settled = engine.said.reuse is not Reuse.UNKNOWN and not older_reuse
    is_reusing = engine.said.reuse in (Reuse.READY, Reuse.OFF)
    return engine.is_updated and engine.is_ready and (is_reusing or settled)


def _is_changing(seen: Sequence[EngineSeen]) -> bool:
    return not all(one.is_updated for one in seen)


def _is_observed(stateful_set: Object) -> bool:
    status = stateful_set.get("status", {})
    return bool(status.get("observedGeneration", 0) >= stateful_set["metadata"].get("generation", 0))


def _partition(stateful_set: Object) -> int:
    strategy = stateful_set["spec"].get("updateStrategy", {}).get("rollingUpdate") or {}
    return _count(strategy.get("partition"))


def _is_ready(pod: Object) -> bool:
    status = pod.get("status", {})
    conditions = {one["type"]: one["status"] for one in status.get("conditions", [])}
    is_leaving = "deletionTimestamp" in pod["metadata"]
    return conditions.get("Ready") == "True" and bool(status.get("podIP")) and not is_leaving


def _ordinal(name: str) -> int:
    tail = name.rpartition("-")[2]
    return int(tail) if tail.isdigit() else 0


def _url(scheme: str, address: str, port: int) -> str:
    return f"{scheme}://[{address}]:{port}" if ":" in address else f"{scheme}://{address}:{port}"


def _selector(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _count(found: object) -> int:
    return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else 0
