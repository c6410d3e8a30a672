"""From the release before to this one and back, by Helm, while people chat: nothing that lives is lost."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python as helm
import pytest
import yaml

from sternpost_fakes.crd_schema import CRDS
from sternpost_running.chat_load import Stream, running_load
from sternpost_running.custom_resources import Resources, is_ready
from sternpost_running.kubelet import FakeKubelet
from sternpost_running.kubernetes import Cluster
from sternpost_running.release import CHART, NAME, Release, running_release

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300)]

NAMESPACE = "upgrade"
MODEL = "m"
BEFORE = "0.0.9"
NEW_FIELD = "warm"
"""A field of CachePolicy that the release before did not have."""

PEOPLE = (Stream(MODEL, ["one", "two"], 0.1), Stream(MODEL, ["three"], 0.1))


@pytest.fixture(scope="module")
def chart_before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the chart of the release before: another version, and so other images."""
    folder = tmp_path_factory.mktemp("before") / "sternpost"
    shutil.copytree(CHART, folder)
    described = yaml.safe_load((folder / "Chart.yaml").read_text())
    (folder / "Chart.yaml").write_text(yaml.safe_dump({**described, "version": BEFORE, "appVersion": BEFORE}))
    return folder


@pytest.fixture
def crds_before(cluster: Cluster, tmp_path: Path) -> Iterator[None]:
    """Have the schemas of the release before, and those of this one in the end."""
    for file in CRDS.glob("*.yaml"):
        crd = yaml.safe_load(file.read_text())
        schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        schema["properties"]["spec"]["properties"].pop(NEW_FIELD, None)
        (tmp_path / file.name).write_text(yaml.safe_dump(crd))
    cluster.apply_crds(tmp_path)
    try:
        yield
    finally:
        cluster.apply_crds(CRDS)


@pytest.fixture
def release(
    cluster: Cluster, kubelet: FakeKubelet, crds_before: None, chart_before: Path, tmp_path: Path
) -> Iterator[Release]:
    """Install the release before, with an engine and a policy."""
    with running_release(cluster, kubelet, tmp_path, NAMESPACE, chart_before) as running:
        resources = Resources(cluster, NAMESPACE)
        resources.pool(replicas=1)
        resources.policy(match={"models": [MODEL]})
        resources.wait_for("EnginePool", "pool", is_ready, "the pool is ready")
        resources.wait_for("CachePolicy", "policy", lambda status: status.get("weight"), "the canary starts")
        running.wait_until_it_runs()
        yield running


def images(release: Release) -> set[str]:
    """Return the images that run."""
    pods = [*release.pods("gateway"), *release.pods("operator")]
    return {pod["spec"]["containers"][0]["image"] for pod in pods}


def lasting(release: Release) -> dict[str, Any]:
    """Return what of the live objects must not change: who they are, and how far the rollout has come."""
    resources = Resources(release.cluster, NAMESPACE)
    policy, pool = resources.get("CachePolicy", "policy"), resources.get("EnginePool", "pool")
    decided = [(one["action"], one["weight"]) for one in policy["status"]["decisions"]]
    pods = release.cluster.get(f"/api/v1/namespaces/{NAMESPACE}/pods/pool-0")
    return {
        "uids": [value["metadata"]["uid"] for value in (policy, pool, pods)],
        "decided": decided,
        "weight": policy["status"]["weight"],
    }


def test_upgrade_and_rollback_keep_what_lives(release: Release) -> None:
    """Objects, rollout, engines and secrets stay, and no chat fails on either way."""
    resources = Resources(release.cluster, NAMESPACE)
    before, old = lasting(release), images(release)
    assert NEW_FIELD not in resources.get("CachePolicy", "policy")["spec"]

    with running_load(release.gateways, *PEOPLE) as load:
        release.cluster.wait(lambda: load.answered[MODEL] >= 10, "people chat")
        release.cluster.apply_crds(CRDS)
        release.helm.upgrade(helm.Chart.load(CHART), NAME, reuse_values=True)
        release.wait_until_it_runs()
        upgraded, new = lasting(release), images(release)
        resources.policy(match={"models": [MODEL]}, warm=True)
        release.helm.rollback(NAME, version=1)
        release.wait_until_it_runs()
        seen = load.answered[MODEL]
        release.cluster.wait(lambda: load.answered[MODEL] >= seen + 10, "people go on")

    assert [] == load.failures
    assert before == upgraded == lasting(release)
    assert old == images(release) and all(image.endswith(f":{BEFORE}") for image in old)
    assert 2 == len(new) and not old & new
    # Helm takes no schema back, so what was written with the newer one is still there.
    assert resources.get("CachePolicy", "policy")["spec"][NEW_FIELD] is True
