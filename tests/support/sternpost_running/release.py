"""A release of the chart, by real Helm, whose pods run as processes under their own service accounts."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import helm_python as helm
import httpx

from sternpost_running.chart_pods import ChartPods, ready_addresses
from sternpost_running.kubelet import FakeKubelet, Programs
from sternpost_running.kubernetes import Cluster

CHART: Final = Path(__file__).parents[3] / "charts" / "sternpost"
NAME: Final = "sp"
HEALTH_FLAG: Final = "--health-port="
COMPONENTS: Final = ("gateway", "operator")
VALUES: Final[Mapping[str, Any]] = {"gateway": {"replicas": 2, "drain": {"delaySeconds": 1, "seconds": 5}}}
"""Gateways that drain as fast as tests want to end; everything else is as the chart has it."""


@dataclass(frozen=True, slots=True)
class Release:
    """An installed release, in a namespace of its own name."""

    cluster: Cluster
    kubelet: FakeKubelet
    namespace: str
    helm: helm.Config = field(repr=False)
    client: httpx.Client = field(repr=False)
    _admin_token: str = field(repr=False)

    def gateways(self) -> Sequence[str]:
        """Return the base URLs of the gateways that are ready."""
        return ready_addresses(self.cluster, self.namespace, f"{NAME}-gateway")

    def pods(self, component: str) -> list[dict[str, Any]]:
        """Return the pods of `gateway` or `operator` that are not being deleted."""
        found = self.cluster.get(f"/api/v1/namespaces/{self.namespace}/pods")["items"]
        return [pod for pod in found if _is_of(pod, component) and "deletionTimestamp" not in pod["metadata"]]

    def kill(self, component: str) -> None:
        """End the programs of a component without a warning; nobody starts them again."""
        for pod in self.pods(component):
            self.kubelet.kill(pod["metadata"]["uid"])

    def restart(self, pod: Mapping[str, Any]) -> None:
        """End a pod's program without a warning and run it again, which takes no API server."""
        self.kubelet.restart(pod["metadata"]["uid"])

    def replace(self, component: str) -> None:
        """Delete a component's pods, and wait until there are others that run."""
        gone = {pod["metadata"]["uid"] for pod in self.pods(component)}
        selector = f"app.kubernetes.io/component={component}"
        self.cluster.kubectl("delete", "pod", "-n", self.namespace, "-l", selector, "--wait=false")
        self.cluster.wait(lambda: self._are_others(component, gone), f"another {component} runs")

    def is_alive(self, pod: Mapping[str, Any]) -> bool:
        """Tell whether a pod of the operator answers where the kubelet asks whether it lives."""
        words = self.kubelet.pods[pod["metadata"]["uid"]].words
        flag = next(word for word in words if word.startswith(HEALTH_FLAG))
        try:
            return self.client.get(f"http://127.0.0.1:{flag.removeprefix(HEALTH_FLAG)}/healthz").is_success
        except httpx.TransportError:
            return False

    def log(self, component: str) -> str:
        """Return what the programs of a component have logged."""
        names = [pod["metadata"]["name"] for pod in self.pods(component)]
        return "".join((self.cluster.folder / f"pod-{name}.log").read_text() for name in names)

    def details(self) -> list[dict[str, Any]]:
        """Return what each gateway says of itself."""
        return self.details_at(self.gateways())

    def details_at(self, urls: Sequence[str]) -> list[dict[str, Any]]:
        """Return what the gateways at some addresses say of themselves."""
        return [self.client.get(f"{url}/readyz?verbose").json() for url in urls]

    def levels(self, policy: str) -> list[str | None]:
        """Return the kill level of a policy at each gateway."""
        return self.levels_at(self.gateways(), policy)

    def levels_at(self, urls: Sequence[str], policy: str) -> list[str | None]:
        """Return the kill level of a policy at the gateways at some addresses."""
        headers, urls = self.admin_headers(), [f"{url}/sternpost/v1/kill" for url in urls]
        return [self.client.get(url, headers=headers).json()["policies"].get(policy) for url in urls]

    def admin_headers(self) -> dict[str, str]:
        """Return the headers of who may kill: the token of the chart's own secret."""
        return {"authorization": f"Bearer {self._admin_token}"}

    def wait_until_it_runs(self) -> None:
        """Wait until all pods of the newest revision are ready, and no others are left."""
        self.cluster.wait(lambda: all(map(self._is_complete, COMPONENTS)), f"{self.namespace} runs")

    def _are_others(self, component: str, gone: set[str]) -> bool:
        pods = {pod["metadata"]["uid"] for pod in self.pods(component)}
        return bool(pods) and not pods & gone and self._is_complete(component)

    def _is_complete(self, component: str) -> bool:
        path = f"/apis/apps/v1/namespaces/{self.namespace}/deployments/{NAME}-{component}"
        deployment = self.cluster.get(path)
        wanted, status = deployment["spec"]["replicas"], deployment.get("status", {})
        counts = (status.get(key, 0) for key in ("replicas", "updatedReplicas", "readyReplicas"))
        is_seen = status.get("observedGeneration", 0) >= deployment["metadata"]["generation"]
        return is_seen and all(count == wanted for count in counts)


def _token_of(cluster: Cluster, namespace: str) -> str:
    secret = cluster.get(f"/api/v1/namespaces/{namespace}/secrets/{NAME}-gateway")
    return base64.b64decode(secret["data"]["token"]).decode()


def _is_of(pod: Mapping[str, Any], component: str) -> bool:
    labels: Mapping[str, str] = pod["metadata"].get("labels", {})
    return labels.get("app.kubernetes.io/component") == component


@contextmanager
def running_release(
    cluster: Cluster,
    kubelet: FakeKubelet,
    folder: Path,
    namespace: str,
    chart: Path = CHART,
    engines: Programs | None = None,
) -> Iterator[Release]:
    """
    Install a chart into a new namespace, and take it away after the block.

    Its gateways are ready once there is an engine for them. `engines` says what runs for pods that are not
    the chart's; left out, what the kubelet runs for others.
    """
    pods = ChartPods(cluster, folder)

    def program(pod: Mapping[str, Any], address: str) -> Sequence[str] | None:
        is_chart = pod["metadata"].get("labels", {}).get("app.kubernetes.io/managed-by") == "Helm"
        return pods.program(pod, address) if is_chart else (engines or kubelet.programs)(pod, address)

    cluster.namespace(namespace)
    kubelet.by_namespace[namespace] = program
    connection = helm.Config(
        kubeconfig_path=cluster.kubeconfig(), namespace=namespace, kube_insecure_skip_tls_verify=True
    )
    with connection as config, httpx.Client(trust_env=False, timeout=10) as client:
        config.install(helm.Chart.load(chart), NAME, dict(VALUES))
        release = Release(cluster, kubelet, namespace, config, client, _token_of(cluster, namespace))
        try:
            yield release
        finally:
            with suppress(helm.HelmError):
                config.uninstall(NAME)
            cluster.kubectl("delete", "namespace", namespace, "--wait=false")
