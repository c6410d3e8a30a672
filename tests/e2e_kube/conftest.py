"""One real control plane for all tests of this folder; each test has a namespace of its own."""

import os
import re
from collections.abc import Iterator

import pytest

from sternpost_fakes.crd_schema import CRDS
from sternpost_running.kubernetes import BUILD, Cluster, find_binaries, running_cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run a control plane that serves the custom resources."""
    binaries = find_binaries(os.environ)
    if binaries is None:
        pytest.fail(f"the tests against an API server need its binaries: run {BUILD}")
    with running_cluster(binaries, tmp_path_factory.mktemp("kube")) as running:
        running.apply_crds(CRDS)
        yield running


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """Make a namespace that is named after the test."""
    name = re.sub("[^a-z0-9]+", "-", request.node.name.lower())[:50].strip("-")
    cluster.namespace(name)
    return name
