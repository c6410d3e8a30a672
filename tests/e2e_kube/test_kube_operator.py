"""The operator against a real API server: objects as people apply them, and engines that run."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from sternpost_running.custom_resources import API, Resources, is_ready
from sternpost_running.fake_prometheus import running_prometheus
from sternpost_running.kubernetes import Cluster
from sternpost_running.operator_process import RunningOperator

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300)]

ORDER_SECONDS_MAX = 10.0
"""Within which an order is obeyed: a watch brings it, nobody waits for the next look."""


def test_pool_becomes_engines_that_serve(resources: Resources, operator: RunningOperator) -> None:
    """Applied by a person, the pool runs, its engines reuse tails, and its policy starts."""
    resources.policy()
    resources.pool()
    pool = resources.wait_for("EnginePool", "pool", is_ready, "the pool is ready")
    policy = resources.wait_for(
        "CachePolicy", "policy", lambda status: status.get("weight"), "the canary starts"
    )

    assert (2, 2, 0) == (pool["readyReplicas"], pool["updatedReplicas"], pool["epoch"])
    assert {"Ready"} == {engine["reuse"] for engine in pool["engines"]}
    assert (1, "Start") == (policy["weight"], policy["decisions"][0]["action"])
    assert {"Scaling", "EnginesReady"} <= set(resources.events("pool"))
    assert "Start" in resources.events("policy")
    shown = resources.cluster.kubectl("get", "cpol", "-n", resources.namespace).stdout
    assert ["NAME", "POOL", "PHASE", "WEIGHT", "KILL", "READY", "AGE"] == shown.split("\n")[0].split()


def test_pool_scales_as_kubectl_asks(resources: Resources, operator: RunningOperator) -> None:
    """The scale subresource is there, for people and autoscalers."""
    resources.pool(replicas=1)
    resources.wait_for("EnginePool", "pool", is_ready, "the pool is ready")
    done = resources.cluster.kubectl("scale", "-n", resources.namespace, "enginepool/pool", "--replicas=3")

    assert 0 == done.returncode, done.stderr
    resources.wait_for("EnginePool", "pool", lambda status: status["readyReplicas"] == 3, "three are ready")
    namespace = f"/namespaces/{resources.namespace}"
    scale = resources.cluster.get(f"{API}{namespace}/enginepools/pool/scale")
    pods = resources.cluster.get(
        f"/api/v1{namespace}/pods?labelSelector={quote(scale['status']['selector'])}"
    )
    assert (3, 3) == (scale["spec"]["replicas"], scale["status"]["replicas"])
    assert ["pool-0", "pool-1", "pool-2"] == sorted(pod["metadata"]["name"] for pod in pods["items"])


def test_a_rollout_does_what_a_person_asks(resources: Resources, operator: RunningOperator) -> None:
    """Each order by annotation is obeyed within seconds, recorded as a decision, and told by an event."""
    orders = (
        ("pause", "Paused", 1, 1),
        ("resume", "Progressing", 1, 1),
        ("promote", "Progressing", 5, 5),
        ("abort", "Aborted", 5, 0),
        ("restart", "Progressing", 5, 1),
    )
    with running_prometheus() as prometheus:
        analysis = {"prometheus": {"url": prometheus.url}}
        resources.pool(replicas=1)
        resources.policy(rollout={"steps": [1, 5, 100], "minDuration": "1h", "analysis": analysis})
        resources.wait_for("CachePolicy", "policy", lambda status: status.get("weight") == 1, "it starts")
        seen = []
        for order, *_ in orders:
            resources.annotate("policy", order)
            status = resources.wait_for("CachePolicy", "policy", has_obeyed(order), order, ORDER_SECONDS_MAX)
            seen.append((order, status["phase"], status["weight"], status["readWeight"]))
        resources.annotate("policy", "faster")
        resources.cluster.wait(lambda: "UnknownOrder" in resources.events("policy"), "it is not understood")

    assert [*orders] == seen
    actions = ["Start", "Pause", "Resume", "Promote", "Abort", "Restart"]
    assert actions == [decision["action"] for decision in status["decisions"]]
    assert {*actions} <= {*resources.events("policy")}


def has_obeyed(order: str) -> Callable[[Mapping[str, Any]], bool]:
    """Return whether a status has taken note of an order."""
    return lambda status: status["rollout"].get("command") == order


def test_a_canary_is_held_while_a_gateways_configuration_is_old(
    resources: Resources, operator: RunningOperator
) -> None:
    """Good figures do not count: the gateway may still do what the step before asked for."""
    with running_prometheus() as prometheus:
        prometheus.others = {"config_age": 31.0}
        analysis = {"prometheus": {"url": prometheus.url}}
        resources.pool(replicas=1)
        resources.policy(rollout={"steps": [1, 100], "minDuration": "1s", "analysis": analysis})
        status = resources.wait_for(
            "CachePolicy", "policy", lambda status: status.get("phase") == "Holding", "it is held"
        )

    assert (1, "Hold") == (status["weight"], status["lastAnalysis"]["verdict"])
    assert "a gateway's configuration is 31 s old" == status["lastAnalysis"]["reason"]


def test_other_model_reaches_one_pod_at_a_time(resources: Resources, operator: RunningOperator) -> None:
    """At no time is more than one of the engines away; the epoch grows; the last one comes, too."""
    resources.pool(replicas=3)
    resources.wait_for("EnginePool", "pool", is_ready, "the pool is ready")
    resources.pool(replicas=3, model="other")
    seen: list[tuple[int, int]] = []

    def is_done(status: Any) -> bool:
        seen.append((status["partition"], status["readyReplicas"]))
        return status["epoch"] == 1 and (status["updatedReplicas"], status["partition"]) == (3, 0)

    resources.wait_for("EnginePool", "pool", is_done, "all pods have the new model", 110)
    partitions = [partition for partition, _ in seen]
    pods = resources.cluster.get(f"/api/v1/namespaces/{resources.namespace}/pods")["items"]

    assert 2 <= min(ready for _, ready in seen)
    assert {0, 1, 2} <= set(partitions)
    assert ["other"] * 3 == [pod["spec"]["containers"][0]["args"][1] for pod in pods]
    assert "NewEpoch" in resources.events("pool")


REFUSED_BY_SERVER = {
    "enumeration": ("spec.killLevel", {"killLevel": "K1"}),
    "range": ("spec.rollout.minRequests", {"rollout": {"minRequests": -1}}),
    "missing": ("spec.match", {"match": None}),
    "huge": ("spec.match.models", {"match": {"models": [f"{number:0200}" for number in range(5_000)]}}),
}


@pytest.mark.parametrize(("path", "spec"), REFUSED_BY_SERVER.values(), ids=REFUSED_BY_SERVER.keys())
def test_server_refuses_what_the_schema_does(
    cluster: Cluster, namespace: str, path: str, spec: dict[str, Any]
) -> None:
    """The person who applies it reads which field is wrong."""
    value = {
        "apiVersion": "sternpost.dev/v1alpha1",
        "kind": "CachePolicy",
        "metadata": {"name": "bad", "namespace": namespace},
        "spec": {"match": {"models": ["m"]}, "poolRef": {"name": "pool"}, **spec},
    }
    done = cluster.kubectl("create", "--validate=false", "-f", "-", stdin=json.dumps(value))

    assert 0 != done.returncode
    assert path in done.stderr


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("cachepolicy.spec.rollout.steps", "Percent of sessions"),
        ("enginepool.spec.engine.replicas", "How many engines"),
        ("cachekillswitch.spec.level", "What is switched off"),
        ("cachepolicy.status.readWeight", "read"),
    ],
    ids=["policy", "pool", "switch", "status"],
)
def test_kubectl_explains_every_kind(cluster: Cluster, path: str, said: str) -> None:
    """Whoever writes an object reads what a field is for without leaving the terminal."""
    done = cluster.kubectl("explain", path)

    assert 0 == done.returncode, done.stderr
    assert said in " ".join(done.stdout.split()), done.stdout


def test_unknown_version_is_refused(cluster: Cluster, namespace: str) -> None:
    """There is one version, and the server says that it does not know another."""
    value = {"apiVersion": "sternpost.dev/v9", "kind": "CachePolicy", "metadata": {"name": "a"}, "spec": {}}
    done = cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(value))

    assert 'no matches for kind "CachePolicy" in version "sternpost.dev/v9"' in done.stderr


def test_fault_that_no_schema_sees_is_told_on_the_object(
    resources: Resources, operator: RunningOperator
) -> None:
    """A condition and an event name path, value and what is allowed; mending it is enough."""
    resources.pool(replicas=1)
    rule = {"name": "ticket", "pattern": "("}
    prompt = {"layout": "FixedTail", "tail": {"source": "LastSystemMessage"}, "volatile": [rule]}
    resources.policy(prompt=prompt)
    resources.wait_for("CachePolicy", "policy", lambda status: status.get("conditions"), "it is looked at")
    status, reason, message = resources.condition("CachePolicy", "policy", "Accepted")

    assert ("False", "Invalid") == (status, reason)
    assert "spec.prompt.volatile[0].pattern: '(' (missing )" in message
    assert "Invalid" in resources.events("policy")
    resources.policy()
    resources.wait_for("CachePolicy", "policy", is_ready, "the mended policy is ready")


def test_policies_in_each_others_way_are_settled_by_age(
    resources: Resources, operator: RunningOperator
) -> None:
    """The older one works on; the younger says so, and takes over when the older one goes."""
    match = {"models": [f"{resources.namespace}-shared"]}
    resources.policy("older", match=match)
    resources.wait_for("CachePolicy", "older", lambda status: status.get("conditions"), "it is looked at")
    resources.policy("younger", match=match)
    resources.wait_for("CachePolicy", "younger", lambda status: status.get("conditions"), "it is looked at")
    conflict = resources.condition("CachePolicy", "younger", "Accepted")
    resources.cluster.kubectl("delete", "-n", resources.namespace, "cachepolicy", "older")

    assert ("False", "Conflict") == conflict[:2]
    assert f"{resources.namespace}/older" in conflict[2]
    resources.cluster.wait(
        lambda: resources.condition("CachePolicy", "younger", "Accepted")[0] == "True",
        "the younger is accepted",
    )


def test_namespace_goes_without_help(resources: Resources, operator: RunningOperator) -> None:
    """No finalizer keeps it, and what the pool has rendered goes with the pool."""
    resources.pool()
    resources.policy()
    resources.wait_for("EnginePool", "pool", is_ready, "the pool is ready")
    resources.cluster.kubectl("delete", "namespace", resources.namespace, "--wait=false")

    resources.cluster.wait(
        lambda: resources.cluster.get(f"/api/v1/namespaces/{resources.namespace}") == {},
        "the namespace is gone",
    )


def test_rollout_follows_its_figures(resources: Resources, operator: RunningOperator) -> None:
    """Good figures bring it to everybody; replays that differ stop suffix reads within half a minute."""
    with running_prometheus() as prometheus:
        analysis = {"prometheus": {"url": prometheus.url}}
        resources.pool(replicas=1)
        resources.policy(rollout={"steps": [50, 100], "minDuration": "1s", "analysis": analysis})
        complete = resources.wait_for(
            "CachePolicy", "policy", lambda status: status.get("phase") == "Complete", "it is complete", 90
        )
        prometheus.others = {"config_age": 1.0, "shadow_samples": 500.0, "shadow_agreement": 0.5}
        aborted = resources.wait_for(
            "CachePolicy", "policy", lambda status: status["phase"] == "Aborted", "it is stopped", 30
        )

    assert (100, 100) == (complete["weight"], complete["readWeight"])
    figures = {figure["name"]: figure for figure in complete["decisions"][-1]["figures"]}
    assert {"name": "ttft_p95", "canary": 0.3, "control": 1} == figures["ttft_p95"]
    assert (100, 0, "Abort") == (aborted["weight"], aborted["readWeight"], aborted["decisions"][-1]["action"])
    assert "shadow agreement 0.500 is under 0.95" == aborted["decisions"][-1]["reason"]


def is_serving(resources: Resources, pod: str) -> bool:
    """Tell whether a pod is ready."""
    found = resources.cluster.get(f"/api/v1/namespaces/{resources.namespace}/pods/{pod}")
    conditions = {one["type"]: one["status"] for one in found["status"].get("conditions", ())}
    return conditions.get("Ready") == "True"


def test_gateways_are_asked(resources: Resources, operator: RunningOperator, gateway_pages: Path) -> None:
    """The switch's status follows the levels that they say, a policy's the versions that they have seen."""
    labels = {"app.kubernetes.io/name": "sternpost", "app.kubernetes.io/component": "gateway"}
    page = gateway_pages / "metrics"
    page.write_text('sternpost_gateway_kill_level{policy=""} 0\n')
    container = {
        "name": "gateway",
        "image": "gateway",
        "readinessProbe": {"httpGet": {"path": "/metrics", "port": 8080}},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "gateway-0", "namespace": resources.namespace, "labels": labels},
        "spec": {"containers": [container]},
    }
    switch = {
        "apiVersion": "sternpost.dev/v1alpha1",
        "kind": "CacheKillSwitch",
        "metadata": {"name": resources.namespace},
        "spec": {"level": "NoSuffixReads", "selector": {"namespaces": ["nobody"]}},
    }
    seen = {"tail": [{"version": "v3", "contentId": "ab" * 32}]}
    templates = gateway_pages / "sternpost" / "v1" / "templates"
    templates.parent.mkdir(parents=True)
    templates.write_text(
        json.dumps({"policies": [{"policy": f"{resources.namespace}/policy", "versions": seen}]})
    )
    resources.policy()
    resources.cluster.apply(pod)
    resources.cluster.wait(lambda: is_serving(resources, "gateway-0"), "it runs")
    resources.cluster.apply({**switch, "spec": {"level": "NoSuffixReads"}})
    at = f"/apis/sternpost.dev/v1alpha1/cachekillswitches/{resources.namespace}"

    def counted() -> tuple[int, int]:
        status = resources.cluster.get(at).get("status", {})
        return status.get("gateways", 0), status.get("obeying", 0)

    try:
        resources.cluster.wait(lambda: counted() == (1, 0), "one gateway does not obey")
        page.write_text('sternpost_gateway_kill_level{policy=""} 1\n')
        resources.cluster.wait(lambda: counted() == (1, 1), "it obeys")
        resources.wait_for("CachePolicy", "policy", lambda status: status.get("segments"), "versions", 90)
    finally:
        resources.cluster.kubectl("delete", "cachekillswitch", resources.namespace)
        resources.cluster.kubectl("delete", "-n", resources.namespace, "pod", "gateway-0", "--wait=false")

    segments = resources.status("CachePolicy", "policy")["segments"]
    assert [{"segment": "tail", "version": "v3", "contentId": "ab" * 8}] == segments
