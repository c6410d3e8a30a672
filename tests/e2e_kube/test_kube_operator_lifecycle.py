"""Operators that die, that are two, or that lack a right, against a real API server."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from sternpost_operator.permissions import policy_rules
from sternpost_running.box import running_box
from sternpost_running.custom_resources import Resources, is_ready
from sternpost_running.kubelet import FakeKubelet
from sternpost_running.kubernetes import Cluster
from sternpost_running.operator_process import running_operator

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300)]

HANG_SECONDS = 11.0
"""Longer than any single request may take, which is 10 s."""

RECOVERY_SECONDS_MAX = 90.0


def has_weight(weight: int) -> Callable[[Mapping[str, Any]], bool]:
    """Return whether a status has at least this weight."""
    return lambda status: status.get("weight", 0) >= weight


def test_killed_operator_goes_on_where_it_was(
    resources: Resources, cluster: Cluster, kubelet: FakeKubelet
) -> None:
    """Everything that it needs to know is in the objects."""
    resources.pool(replicas=1)
    resources.policy()
    with running_operator(cluster, name="first") as first:
        resources.wait_for("CachePolicy", "policy", has_weight(1), "it starts")
        resources.annotate("policy", "promote")
        resources.wait_for("CachePolicy", "policy", has_weight(5), "it goes on")
        first.kill()
    resources.annotate("policy", "promote:2")
    with running_operator(cluster, name="second"):
        status = resources.wait_for("CachePolicy", "policy", has_weight(10), "the second goes on")

    assert ["Start", "Promote", "Promote"] == [decision["action"] for decision in status["decisions"]]


def test_two_operators_decide_once(resources: Resources, cluster: Cluster, kubelet: FakeKubelet) -> None:
    """Each write names the version that it was decided from, so one of two equal decisions is written."""
    resources.pool(replicas=1)
    resources.policy()
    with running_operator(cluster, name="one"), running_operator(cluster, name="other"):
        resources.wait_for("CachePolicy", "policy", has_weight(1), "it starts")
        for weight in (5, 10, 25, 50):
            resources.annotate("policy", f"promote:{weight}")
            resources.wait_for("CachePolicy", "policy", has_weight(weight), f"{weight}%")
        status = resources.status("CachePolicy", "policy")

    assert ["Start", *["Promote"] * 4] == [decision["action"] for decision in status["decisions"]]
    assert [1, 5, 10, 25, 50] == [decision["weight"] for decision in status["decisions"]]


def test_rights_of_the_list_are_enough(resources: Resources, cluster: Cluster, kubelet: FakeKubelet) -> None:
    """With exactly these rights, and no other, everything works, and nothing is said to be missing."""
    cluster.grant("operator", policy_rules())
    with running_operator(cluster, name="exact", user="operator") as operator:
        resources.pool(replicas=1)
        resources.policy()
        resources.wait_for("EnginePool", "pool", is_ready, "the pool is ready")
        resources.wait_for("CachePolicy", "policy", lambda status: status.get("weight"), "the canary starts")
        text = operator.text()

        assert "Start" in resources.events("policy")
        assert "lacks the right" not in text and "may not" not in text, text
        assert 0 == operator.metric("sternpost_operator_missing_rights")


def test_missing_right_is_named(resources: Resources, cluster: Cluster, kubelet: FakeKubelet) -> None:
    """On the object, in the log and as a metric; with the right it goes on by itself."""
    rules = policy_rules()
    less = [{**rule, "verbs": [verb for verb in rule["verbs"] if verb != "patch"]} for rule in rules]
    cluster.grant("operator", less)
    with running_operator(cluster, name="less", user="operator") as operator:
        resources.pool(replicas=1)
        resources.cluster.wait(
            lambda: resources.condition("EnginePool", "pool", "Degraded")[1] == "MissingPermission",
            "the missing right is named",
        )
        message = resources.condition("EnginePool", "pool", "Degraded")[2]
        cluster.grant("operator", rules)
        resources.wait_for("EnginePool", "pool", is_ready, "the pool is ready", 90)
        text = operator.text()

    assert "the operator may not patch services" in message
    assert "the operator lacks the right to patch statefulsets.apps" in text


def test_operator_outlives_a_server_that_hangs(
    resources: Resources, cluster: Cluster, kubelet: FakeKubelet
) -> None:
    """Nothing answers for a while, over connections that stay: afterwards it takes up what is new."""
    with running_operator(cluster, name="patient") as operator:
        resources.pool(replicas=1)
        resources.wait_for("EnginePool", "pool", is_ready, "the pool is ready")
        with cluster.frozen():
            time.sleep(HANG_SECONDS)
        resources.policy()
        resources.wait_for("CachePolicy", "policy", has_weight(1), "the canary starts", RECOVERY_SECONDS_MAX)
        assert operator.process.poll() is None


@pytest.mark.slow
def test_operator_finds_out_what_a_dead_watch_kept_from_it(
    resources: Resources, cluster: Cluster, kubelet: FakeKubelet, tmp_path: Path
) -> None:
    """Packets are dropped, connections stay open: the next list, or the end of the silence, brings it."""
    with running_box(cluster.url) as box:
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(cluster.kubeconfig().read_text().replace(cluster.url, box.url))
        with running_operator(cluster, name="deaf", kubeconfig=kubeconfig):
            resources.pool(replicas=1)
            resources.policy("gone")
            resources.wait_for("CachePolicy", "gone", has_weight(1), "the canary starts")
            box.silence()
            cluster.kubectl("delete", "-n", resources.namespace, "cachepolicy", "gone")
            resources.policy("gone", killLevel="NoSuffixReads")
            resources.wait_for(
                "CachePolicy",
                "gone",
                lambda status: status.get("phase") == "Killed",
                "the news are found out",
                RECOVERY_SECONDS_MAX,
            )
