"""The control plane of these tests is a real one, and its kubelet does what tests rely on."""

import pytest

from sternpost_running.kubelet import FakeKubelet
from sternpost_running.kubernetes import Cluster

pytestmark = pytest.mark.kube

LABELS = {"app": "sleepers"}
STATEFUL_SET = {
    "apiVersion": "apps/v1",
    "kind": "StatefulSet",
    "metadata": {"name": "sleepers"},
    "spec": {
        "replicas": 2,
        "serviceName": "sleepers",
        "selector": {"matchLabels": LABELS},
        "template": {
            "metadata": {"labels": LABELS},
            "spec": {"containers": [{"name": "sleeper", "image": "sleeper"}]},
        },
    },
}


def test_stateful_set_gets_pods_that_run(cluster: Cluster, kubelet: FakeKubelet, namespace: str) -> None:
    """The controller manager makes the pods in order, each has an address, and its program runs."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    cluster.apply({**STATEFUL_SET, "metadata": {"name": "sleepers", "namespace": namespace}})
    stateful = f"/apis/apps/v1/namespaces/{namespace}/statefulsets/sleepers"
    cluster.wait(lambda: cluster.get(stateful)["status"].get("readyReplicas") == 2, "two pods are ready")
    pods = cluster.get(path)["items"]
    programs = [kubelet.pods[pod["metadata"]["uid"]].process for pod in pods]
    cluster.kubectl("delete", "-n", namespace, "statefulset", "sleepers")
    cluster.wait(lambda: cluster.get(path)["items"] == [], "no pod is left")

    assert ["sleepers-0", "sleepers-1"] == sorted(pod["metadata"]["name"] for pod in pods)
    assert 2 == len({pod["status"]["podIP"] for pod in pods})
    assert all(program is not None and program.poll() is not None for program in programs)


def test_user_without_a_role_may_nothing(cluster: Cluster) -> None:
    """Rights are checked, so that a test of an exact role means something."""
    done = cluster.kubectl("get", "cachepolicies", "-A", user="stranger")

    assert 'cannot list resource "cachepolicies"' in done.stderr


def test_unknown_status_is_not_kept(cluster: Cluster, namespace: str) -> None:
    """What the schema does not name is dropped, so that a status outside of it is noticed."""
    policy = {
        "apiVersion": "sternpost.dev/v1alpha1",
        "kind": "CachePolicy",
        "metadata": {"name": "a", "namespace": namespace},
        "spec": {"match": {"models": ["m"]}, "poolRef": {"name": "p"}},
    }
    cluster.apply(policy)
    path = f"/apis/sternpost.dev/v1alpha1/namespaces/{namespace}/cachepolicies/a"
    merge = {"content-type": "application/merge-patch+json"}
    status = {"weight": 5, "waight": 6}
    cluster.api.patch(f"{path}/status", json={"status": status}, headers=merge).raise_for_status()

    assert {"weight": 5} == cluster.get(path)["status"]
