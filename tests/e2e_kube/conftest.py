"""One real control plane with one kubelet for all tests of this folder; each test has its own namespace."""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from sternpost_fakes.crd_schema import CRDS
from sternpost_running.custom_resources import Resources
from sternpost_running.kubelet import FakeKubelet, running_kubelet
from sternpost_running.kubernetes import BUILD, Cluster, find_binaries, running_cluster
from sternpost_running.operator_process import RunningOperator, running_operator

ENGINE_PORT = 8000
GATEWAY_PORT = 8080


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run a control plane that serves the custom resources; no module meets what another has left behind."""
    binaries = find_binaries(os.environ)
    if binaries is None:
        pytest.fail(f"the tests against an API server need its binaries: run {BUILD}")
    with running_cluster(binaries, tmp_path_factory.mktemp("kube")) as running:
        running.apply_crds(CRDS)
        yield running


@pytest.fixture(scope="session")
def gateway_pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder whose file `metrics` every gateway's pod serves."""
    return tmp_path_factory.mktemp("gateway")


@pytest.fixture(scope="module")
def kubelet(cluster: Cluster, gateway_pages: Path) -> Iterator[FakeKubelet]:
    """
    Run engines for pools' pods, pages of metrics for gateways', and something that sleeps for others.

    A pod with the variable SHARED_ENGINE gets no program: an engine of the test answers for it.
    """

    def program(pod: Mapping[str, Any], address: str) -> list[str] | None:
        labels = pod["metadata"].get("labels", {})
        if labels.get("app.kubernetes.io/component") == "gateway":
            listen = [str(GATEWAY_PORT), "--bind", address, "--directory", str(gateway_pages)]
            return [sys.executable, "-m", "http.server", *listen]
        variables = pod["spec"]["containers"][0].get("env", [])
        if any(variable["name"] == "SHARED_ENGINE" for variable in variables):
            return None
        if "sternpost.dev/pool" in labels:
            engine = [sys.executable, "-m", "sternpost_running.fake_engine", "--host", address]
            return [*engine, "--port", str(ENGINE_PORT)]
        return ["sleep", "600"]

    with running_kubelet(cluster, program) as running:
        yield running


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """Make a namespace that is named after the test."""
    name = re.sub("[^a-z0-9]+", "-", request.node.name.lower())[:50].strip("-")
    cluster.namespace(name)
    return name


@pytest.fixture
def resources(cluster: Cluster, namespace: str) -> Resources:
    """Return the custom resources of the test's namespace."""
    return Resources(cluster, namespace)


@pytest.fixture(scope="module")
def operator(cluster: Cluster, kubelet: FakeKubelet) -> Iterator[RunningOperator]:
    """Run one operator for all tests of a module."""
    with running_operator(cluster) as running:
        yield running
