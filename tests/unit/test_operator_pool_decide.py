"""A pool's pods are changed one at a time, each warm before the next, and its status says how far it is."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from sternpost_core.errors import Fault, PolicyError
from sternpost_core.pool import Engine, parse_pool
from sternpost_fakes.crd_schema import CrdSchema
from sternpost_fakes.policies import SMALLEST_POOL, changed
from sternpost_operator.engines import Reuse, Said
from sternpost_operator.plan import Plan
from sternpost_operator.pool_decide import PoolObserved, decide_pool, pod_addresses
from sternpost_operator.pool_render import TEMPLATE_ANNOTATION, render
from sternpost_operator.resources import BUDGETS, Object
from sternpost_operator.status_size import STATUS_BYTES_MAX, size_of

NOW = 1_800_000_000.0
READY, UNKNOWN, UNSUPPORTED = Said(Reuse.READY), Said(Reuse.UNKNOWN), Said(Reuse.UNSUPPORTED, "hybrid")
THREE = changed(SMALLEST_POOL, "spec.engine.replicas", 3)
SCHEMA = CrdSchema.of("EnginePool")


def pod(ordinal: int, *, ready: bool = True, revision: str = "new") -> dict[str, Any]:
    """Return a pod of the pool."""
    return {
        "metadata": {"name": f"small-{ordinal}", "labels": {"controller-revision-hash": revision}},
        "status": {
            "podIP": f"10.0.0.{ordinal}",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


def children(
    value: dict[str, Any], partition: int, *, template: str = "", seen: bool = True
) -> dict[str, Object]:
    """Return what the pool has rendered, as the server holds it."""
    pool = parse_pool(value)
    assert isinstance(pool.engines, Engine)
    rendered: dict[str, Object] = {
        one.resource.kind: dict(one.value) for one in render(pool, pool.engines, "uid", partition, BUDGETS)
    }
    stateful_set = rendered["StatefulSet"]
    metadata = {**stateful_set["metadata"], "generation": 2}
    if template:
        metadata["annotations"] = {**metadata["annotations"], TEMPLATE_ANNOTATION: template}
    status = {"observedGeneration": 2 if seen else 1, "updateRevision": "new"}
    rendered["StatefulSet"] = {**stateful_set, "metadata": metadata, "status": status}
    return rendered


def observed(value: dict[str, Any], **more: Any) -> PoolObserved:
    """Return an observation of a pool."""
    return PoolObserved(pool=parse_pool(value), uid="uid", generation=1, budgets=BUDGETS, **more)


def partition_of(plan: Plan) -> int:
    """Return the partition that a plan asks for."""
    partition: int = plan.status["partition"]
    return partition


def conditions(plan: Plan) -> dict[str, tuple[str, str]]:
    """Return status and reason by type."""
    return {one["type"]: (one["status"], one["reason"]) for one in plan.status["conditions"]}


def test_new_pool_is_rendered_at_once() -> None:
    """There is nothing to be careful about yet."""
    plan = decide_pool(observed(THREE), {}, NOW)

    assert ["Service", "StatefulSet", "PodDisruptionBudget"] == [one.resource.kind for one in plan.applies]
    assert (0, 0) == (partition_of(plan), plan.status["epoch"])


def test_steady_pool_is_left_alone() -> None:
    """Nothing is applied, and the next look is a minute away."""
    pods = [pod(number) for number in range(3)]
    said = {one["metadata"]["name"]: READY for one in pods}
    plan = decide_pool(observed(THREE, children=children(THREE, 0), pods=pods, said=said), {}, NOW)

    assert ((), 60.0) == (plan.applies, plan.again_seconds)
    assert ("True", "EnginesReady") == conditions(plan)["Ready"]
    assert (3, 3, 3) == tuple(plan.status[key] for key in ("replicas", "readyReplicas", "updatedReplicas"))


def test_status_that_is_decided_again_is_the_same() -> None:
    """A look that finds nothing new writes nothing."""
    seen = observed(THREE, children=children(THREE, 0), pods=[pod(0)], said={"small-0": READY})
    once = decide_pool(seen, {}, NOW)

    assert once.status == decide_pool(seen, once.status, NOW + 100).status
    assert () == decide_pool(seen, once.status, NOW + 100).events


ROLLING = {
    "template-not-applied": (children(THREE, 0, template="old"), ["old"] * 3, {}, 3, None),
    "template-not-yet-seen": (children(THREE, 3, seen=False), ["old"] * 3, {}, 3, None),
    "first-pod-is-let-go": (children(THREE, 3), ["old"] * 3, {}, 2, None),
    "let-go-but-not-changed": (children(THREE, 2), ["old"] * 3, {}, 2, "small-2"),
    "let-go-and-away": (children(THREE, 2), ["old", "old"], {}, 2, "small-2"),
    "warm-but-the-other-away": (children(THREE, 1), ["old", None, "new"], {}, 1, "small-1"),
    "changed-but-cold": (children(THREE, 2), ["old", "old", "new"], {"small-2": UNKNOWN}, 2, "small-2"),
    "changed-without-reuse": (
        children(THREE, 2),
        ["old", "old", "new"],
        {"small-2": UNSUPPORTED},
        2,
        "small-2",
    ),
    "changed-and-warm": (children(THREE, 2), ["old", "old", "new"], {}, 1, None),
    "last-but-one": (children(THREE, 1), ["old", "new", "new"], {}, 0, None),
    "last-is-cold": (children(THREE, 0), ["old", "new", "new"], {}, 0, "small-0"),
    "done": (children(THREE, 0), ["new"] * 3, {}, 0, None),
}


@pytest.mark.parametrize(
    ("live", "revisions", "said", "partition", "waits"), ROLLING.values(), ids=ROLLING.keys()
)
def test_change_goes_pod_by_pod(
    live: dict[str, Object],
    revisions: list[str | None],
    said: Mapping[str, Said],
    partition: int,
    waits: str | None,
) -> None:
    """The partition goes down by one, and only when every changed pod is warm."""
    pods = [pod(number, revision=revision) for number, revision in enumerate(revisions) if revision]
    all_said = {**{one["metadata"]["name"]: READY for one in pods}, **said}
    plan = decide_pool(observed(THREE, children=live, pods=pods, said=all_said), {}, NOW)

    assert (partition, waits) == (partition_of(plan), plan.status.get("warming", {}).get("pod"))


def test_pod_that_does_not_get_warm_stops_the_change() -> None:
    """After the time it is given, the pool is degraded, and the other pods stay as they are."""
    pods = [pod(0, revision="old"), pod(1, revision="old"), pod(2, ready=False)]
    said = {"small-0": READY, "small-1": READY}
    seen = observed(THREE, children=children(THREE, 2), pods=pods, said=said)
    first = decide_pool(seen, {}, NOW)
    late = decide_pool(seen, first.status, NOW + 601)

    assert ("False", "AsExpected") == conditions(first)["Degraded"]
    assert ("True", "WarmTimeout") == conditions(late)["Degraded"]
    assert (2, first.status["warming"]) == (partition_of(late), late.status["warming"])


def test_pool_without_reuse_may_change_too() -> None:
    """Where no older engine reuses tails either, being ready is enough."""
    pods = [pod(0, revision="old"), pod(1, revision="old"), pod(2)]
    said = {one["metadata"]["name"]: UNSUPPORTED for one in pods}
    plan = decide_pool(observed(THREE, children=children(THREE, 2), pods=pods, said=said), {}, NOW)

    assert 1 == partition_of(plan)
    assert ("True", "ReuseUnsupported") == conditions(plan)["Degraded"]


def test_other_model_is_a_new_epoch() -> None:
    """The number grows with every other model, and with nothing else."""
    first = decide_pool(observed(THREE), {}, NOW)
    same = decide_pool(observed(changed(THREE, "spec.engine.replicas", 5)), first.status, NOW)
    other = decide_pool(observed(changed(THREE, "spec.engine.model", "other")), same.status, NOW)

    assert (0, 0, 1) == (first.status["epoch"], same.status["epoch"], other.status["epoch"])
    assert "NewEpoch" in [event.reason for event in other.events]


ADOPTING = {**SMALLEST_POOL, "spec": {"selector": {"matchLabels": {"app": "vllm"}}}}


def test_adopted_pods_are_only_looked_at() -> None:
    """Nothing is rendered; what the engines say is in the status."""
    plan = decide_pool(observed(ADOPTING, pods=[pod(0)], said={"small-0": UNSUPPORTED}), {}, NOW)

    assert () == plan.applies
    assert [
        {"pod": "small-0", "address": "10.0.0.0", "ready": True, "reuse": "Unsupported", "reason": "hybrid"}
    ] == (plan.status["engines"])
    assert ("app=vllm", ("False", "NoReuse")) == (plan.status["selector"], conditions(plan)["Ready"])


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_pod_that_has_ended_is_no_engine(phase: str) -> None:
    """A pod that a node has evicted stays for somebody to look at, and its successor serves."""
    evicted = {"metadata": {"name": "small-1"}, "status": {"phase": phase, "podIP": "10.0.0.1"}}
    plan = decide_pool(observed(ADOPTING, pods=[pod(0), evicted], said={"small-0": READY}), {}, NOW)

    assert (1, ("True", "EnginesReady")) == (plan.status["replicas"], conditions(plan)["Ready"])


def test_wrong_pool_changes_nothing_that_runs() -> None:
    """The fault is told with its path, and the rest of the status stays."""
    before = decide_pool(observed(THREE), {}, NOW).status
    wrong = PoolObserved(
        pool=None,
        faults=_faults(changed(THREE, "spec.engine.replicas", -1)),
        uid="uid",
        generation=2,
        budgets=BUDGETS,
    )
    plan = decide_pool(wrong, before, NOW)

    assert ((), before["epoch"], 2) == (plan.applies, plan.status["epoch"], plan.status["observedGeneration"])
    assert ("False", "Invalid") == conditions(plan)["Accepted"]
    assert "spec.engine.replicas: -1 is not allowed" in plan.status["conditions"][0]["message"]


def _faults(value: dict[str, Any]) -> tuple[Fault, ...]:
    with pytest.raises(PolicyError) as caught:
        parse_pool(value)
    return caught.value.faults


def test_only_pods_that_serve_are_asked() -> None:
    """Neither a pod that is not ready nor one that leaves is."""
    leaving = {**pod(2), "metadata": {"name": "small-2", "deletionTimestamp": "now"}}
    pods = [pod(0), pod(1, ready=False), leaving]

    assert {"small-0": "http://10.0.0.0:8000"} == pod_addresses(pods, 8000)


def test_a_change_goes_on_in_the_largest_pool() -> None:
    """Every engine is asked, those with the highest numbers, which change first, too."""
    many = changed(THREE, "spec.engine.replicas", 1024)
    pods = [pod(number, revision="new" if number >= 1000 else "old") for number in range(1024)]
    said = dict.fromkeys(pod_addresses(pods, 8000), READY)
    plan = decide_pool(observed(many, children=children(many, 1000), pods=pods, said=said), {}, NOW)

    assert 999 == partition_of(plan)
    assert ("True", "EnginesReady") == conditions(plan)["Ready"]


def test_status_of_the_largest_pool_is_small_and_in_the_schema() -> None:
    """64 engines with long reasons are cut to 16 KiB, and everything is a field of the schema."""
    many = changed(THREE, "spec.engine.replicas", 1024)
    pods = [pod(number) for number in range(1024)]
    said = {one["metadata"]["name"]: replace(UNSUPPORTED, reason="x" * 128) for one in pods}
    plan = decide_pool(observed(many, children=children(many, 3), pods=pods, said=said), {}, NOW)

    assert size_of(plan.status) <= STATUS_BYTES_MAX
    assert [] == SCHEMA.faults({**many, "status": plan.status})
