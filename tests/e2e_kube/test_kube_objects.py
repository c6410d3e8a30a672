"""
Objects that no schema has looked at, as a cluster with an older or a damaged one lets through.

Nothing that is held is lost by them, nobody dies of them, and the object says what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from sternpost_fakes.crd_schema import CRDS
from sternpost_running.custom_resources import API, Resources
from sternpost_running.gateway import GatewayProcess, running_gateways
from sternpost_running.kubelet import FakeKubelet
from sternpost_running.kubernetes import Cluster, wait_for
from sternpost_running.operator_process import RunningOperator

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300)]

STATUS_BYTES_MAX = 16 << 10
ARRIVAL_SECONDS_MAX = 10.0
LEVEL = "NoSuffixReads"

DEEP: Any = {}
for _ in range(20):
    DEEP = {"match": DEEP}

BAD: dict[str, dict[str, Any]] = {
    "blank": {"spec": {}},
    "nothing": {},
    "null": {"spec": None},
    "text": {"spec": "off"},
    "wrong types": {"spec": {"match": [], "poolRef": 7, "killLevel": {}}},
    "deep": {"spec": DEEP},
    "huge": {"spec": {"match": {"models": ["m" * 1_000_000]}, "poolRef": {"name": "pool"}}},
    "many faults": {"spec": {f"field-{number}": number for number in range(500)}},
}
"""What replaces a good policy."""


@pytest.fixture(scope="module", autouse=True)
def loose_schema(cluster: Cluster) -> Iterator[None]:
    """Have the server take any policy, and afterwards none but good ones again."""
    crd = yaml.safe_load((CRDS / "cachepolicies.sternpost.dev.yaml").read_text())
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = anything
    cluster.apply(crd)
    try:
        yield
    finally:
        cluster.apply_crds(CRDS)


@pytest.fixture(scope="module")
def gateway(
    cluster: Cluster, loose_schema: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """Run a gateway."""
    flags = ("--kubernetes", "--kubeconfig", str(cluster.kubeconfig()))
    with running_gateways(tmp_path_factory.mktemp("gateway"), 1, *flags) as (running,):
        yield running


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_a_bad_object_costs_nothing_that_is_held(
    resources: Resources,
    kubelet: FakeKubelet,
    operator: RunningOperator,
    gateway: GatewayProcess,
    bad: dict[str, Any],
) -> None:
    """The gateway keeps the last good policy, the operator says what is wrong, and both go on."""
    full = f"{resources.namespace}/policy"
    resources.policy(killLevel=LEVEL)
    wait_for(lambda: gateway.level(full) == LEVEL, "the good policy counts", ARRIVAL_SECONDS_MAX)
    accepted = ("CachePolicy", "policy", "Accepted")
    resources.cluster.wait(lambda: resources.condition(*accepted)[0] == "True", "it is accepted")

    replace(resources, bad)
    resources.cluster.wait(
        lambda: resources.condition(*accepted)[:2] == ("False", "Invalid"), "it is refused"
    )
    wait_for(
        lambda: full in json.dumps(gateway.details()["faults"]), "the fault is told", ARRIVAL_SECONDS_MAX
    )

    assert LEVEL == gateway.level(full)
    assert "spec" in resources.condition(*accepted)[2]
    assert len(json.dumps(resources.status("CachePolicy", "policy"))) <= STATUS_BYTES_MAX
    resources.policy("other", killLevel=LEVEL)
    wait_for(
        lambda: gateway.level(f"{resources.namespace}/other") == LEVEL, "news arrive", ARRIVAL_SECONDS_MAX
    )
    assert (None, None) == (operator.process.poll(), gateway.process.poll())


def replace(resources: Resources, bad: dict[str, Any]) -> None:
    """Put a bad object in a good one's place; kubectl would not send all of them."""
    good = resources.get("CachePolicy", "policy")
    metadata = {key: good["metadata"][key] for key in ("name", "namespace", "resourceVersion")}
    value = {"apiVersion": good["apiVersion"], "kind": good["kind"], "metadata": metadata, **bad}
    path = f"{API}/namespaces/{resources.namespace}/cachepolicies/policy"
    response = resources.cluster.api.put(path, json=value)
    assert response.is_success, response.text
