"""The chart on a real API server, by real Helm: installed, upgraded, rolled back and taken away."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python as helm
import pytest
import yaml

from sternpost_fakes.chart_values import COMBINATIONS
from sternpost_fakes.crd_schema import CRDS
from sternpost_running.kubernetes import Cluster

pytestmark = pytest.mark.kube

CHART = Path(__file__).parents[2] / "charts" / "sternpost"
RELEASE = "sp"

UNSTEADY = ("events", "leases", "componentstatuses")
"""Kinds that the control plane itself writes all the time."""

UNKNOWN_GROUPS = ("monitoring.coreos.com", "gateway.networking.k8s.io")
"""Kinds of other projects, which this API server does not know."""


@pytest.fixture
def config(cluster: Cluster, namespace: str) -> Iterator[helm.Config]:
    """Connect Helm to the cluster."""
    with helm.Config(
        kubeconfig_path=cluster.kubeconfig(), namespace=namespace, kube_insecure_skip_tls_verify=True
    ) as connected:
        yield connected


def labelled(cluster: Cluster, namespace: str) -> list[str]:
    """Return what of a release is left, cluster-scoped or in its namespace."""
    kinds = "deployments,services,secrets,serviceaccounts,networkpolicies,clusterroles,clusterrolebindings"
    selector = f"app.kubernetes.io/instance={RELEASE}"
    done = cluster.kubectl("get", kinds, "-n", namespace, "-l", selector, "-o", "name")
    return done.stdout.split()


def secret(cluster: Cluster, namespace: str) -> dict[str, bytes]:
    """Return the secret that the chart made."""
    found = cluster.get(f"/api/v1/namespaces/{namespace}/secrets/{RELEASE}-gateway")
    return {key: base64.b64decode(value) for key, value in found.get("data", {}).items()}


@pytest.fixture(scope="module")
def other_namespaces(cluster: Cluster) -> None:
    """Have the namespaces that some values name."""
    cluster.namespace("agents")


@pytest.mark.parametrize("values", COMBINATIONS.values(), ids=COMBINATIONS.keys())
def test_the_server_accepts_every_object(
    cluster: Cluster, namespace: str, other_namespaces: None, values: dict[str, Any]
) -> None:
    """A dry run on the server finds no fault with any object of a kind that it knows."""
    rendered = helm.Chart.load(CHART).render(values, name=RELEASE, namespace=namespace)
    texts = [text for path, text in rendered.items() if path.endswith(".yaml")]
    objects = [item for text in texts for item in yaml.safe_load_all(text) if item]
    known = [item for item in objects if is_known(cluster, item)]
    for where in {item["metadata"].get("namespace", namespace) for item in known}:
        there = [item for item in known if item["metadata"].get("namespace", namespace) == where]
        flags = ("apply", "--dry-run=server", "--validate=false", "-n", where, "-f", "-")
        done = cluster.kubectl(*flags, stdin=yaml.safe_dump_all(there))
        assert 0 == done.returncode, done.stderr
        assert len(there) == done.stdout.count("(server dry run)"), done.stdout


def is_known(cluster: Cluster, item: dict[str, Any]) -> bool:
    """Tell whether the server has the kind of an object."""
    if not cluster.has_cel and item["kind"] in ("PodDisruptionBudget", "HorizontalPodAutoscaler"):
        # Helm renders for a newer server where it is not connected to one; installing is tested below.
        return False
    return item["apiVersion"].split("/")[0] not in UNKNOWN_GROUPS


def everything(cluster: Cluster, namespace: str) -> set[str]:
    """Return kind and name of all objects of a namespace and of the cluster."""
    groups = cluster.get("/apis")["groups"]
    bases = ["/api/v1", *(f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups)]
    return {
        f"{kind['kind']}/{item['metadata']['name']}"
        for base in bases
        for kind in cluster.get(base)["resources"]
        if "list" in kind.get("verbs", ()) and kind["name"] not in UNSTEADY
        for item in cluster.get(_collection(base, kind, namespace))["items"]
    }


def _collection(base: str, kind: dict[str, Any], namespace: str) -> str:
    inside = f"/namespaces/{namespace}" if kind["namespaced"] else ""
    return f"{base}{inside}/{kind['name']}"


def test_an_uninstall_leaves_nothing(cluster: Cluster, namespace: str, config: helm.Config) -> None:
    """Of no kind that the server has, with everything switched on that a chart can make."""
    values = COMBINATIONS["everything at once"]
    before = everything(cluster, namespace)
    config.install(helm.Chart.load(CHART), RELEASE, values)
    installed = everything(cluster, namespace) - before
    config.uninstall(RELEASE)

    kinds = {name.split("/")[0] for name in installed}
    assert {"ClusterRole", "ConfigMap", "Deployment", "Ingress", "NetworkPolicy", "Secret"} <= kinds
    cluster.wait(lambda: everything(cluster, namespace) <= before, "nothing of the release is left")


def test_install_upgrade_rollback_uninstall(cluster: Cluster, namespace: str, config: helm.Config) -> None:
    """Secrets and live objects survive an upgrade and a rollback; nothing is left at the end."""
    policy = {
        "apiVersion": "sternpost.dev/v1alpha1",
        "kind": "CachePolicy",
        "metadata": {"name": "support", "namespace": namespace},
        "spec": {"match": {"models": ["m"]}, "poolRef": {"name": "p"}},
    }
    path = f"/apis/sternpost.dev/v1alpha1/namespaces/{namespace}/cachepolicies/support"
    chart = helm.Chart.load(CHART)
    config.install(chart, RELEASE, {})
    made = secret(cluster, namespace)
    cluster.apply(policy)
    uid = cluster.get(path)["metadata"]["uid"]

    config.upgrade(chart, RELEASE, {"gateway": {"replicas": 3}, "networkPolicy": {"enabled": True}})
    upgraded = cluster.get(f"/apis/apps/v1/namespaces/{namespace}/deployments/{RELEASE}-gateway")
    config.rollback(RELEASE, version=1)
    rolled_back = cluster.get(f"/apis/apps/v1/namespaces/{namespace}/deployments/{RELEASE}-gateway")

    assert {"token", "salt"} == set(made) and made == secret(cluster, namespace)
    assert (3, 2) == (upgraded["spec"]["replicas"], rolled_back["spec"]["replicas"])
    assert uid == cluster.get(path)["metadata"]["uid"]
    config.uninstall(RELEASE)
    cluster.wait(lambda: labelled(cluster, namespace) == [], "nothing of the release is left")
    assert uid == cluster.get(path)["metadata"]["uid"]


def test_two_releases_stand_side_by_side(cluster: Cluster, namespace: str, config: helm.Config) -> None:
    """Names of cluster-scoped objects differ by namespace and release."""
    chart = helm.Chart.load(CHART)
    config.install(chart, "one", {"operator": {"enabled": False}})
    config.install(chart, "two", {"operator": {"enabled": False}})

    assert ["one", "two"] == sorted(item["name"] for item in config.list())
    config.uninstall("one")
    config.uninstall("two")


def test_deleting_the_schemas_takes_every_object(cluster: Cluster, namespace: str) -> None:
    """The last step of the guide: no object is left, and the server forgets that there were such kinds."""
    made = {
        "apiVersion": "sternpost.dev/v1alpha1",
        "kind": "CachePolicy",
        "metadata": {"name": "support", "namespace": namespace},
        "spec": {"match": {"models": [namespace]}, "poolRef": {"name": "p"}},
    }
    cluster.apply(made)
    done = cluster.kubectl("delete", "-f", str(CRDS))
    try:
        assert 0 == done.returncode, done.stderr
        cluster.wait(lambda: cluster.get("/apis/sternpost.dev/v1alpha1") == {}, "the kinds are gone")
    finally:
        cluster.apply_crds(CRDS)

    assert [] == cluster.get("/apis/sternpost.dev/v1alpha1/cachepolicies")["items"]
