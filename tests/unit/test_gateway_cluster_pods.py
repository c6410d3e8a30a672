"""Which pods can serve, and where."""

from __future__ import annotations

from typing import Any

import pytest

from sternpost_gateway.cluster.pods import is_ready, pod_address


def pod(ready: str = "True", ip: str = "10.0.0.7", terminating: bool = False, **port: Any) -> dict[str, Any]:
    """Return a pod as the API server sends it."""
    return {
        "metadata": {"name": "p", **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if terminating else {})},
        "spec": {"containers": [{"name": "c", "ports": [port] if port else []}]},
        "status": {"podIP": ip, "conditions": [{"type": "Ready", "status": ready}]},
    }


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        pytest.param(pod(), True, id="ready"),
        pytest.param(pod("False"), False, id="probe fails"),
        pytest.param(pod("Unknown"), False, id="node is lost"),
        pytest.param(pod(terminating=True), False, id="ending, though its probe still passes"),
        pytest.param({"metadata": {}, "status": {}}, False, id="just made"),
        pytest.param({}, False, id="blank"),
        pytest.param({"status": {"conditions": "Ready"}, "metadata": None}, False, id="of another shape"),
    ],
)
def test_only_a_pod_that_passes_and_stays_is_ready(item: dict[str, Any], expected: bool) -> None:
    """Nothing but an explicit yes counts."""
    assert expected is is_ready(item)


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        pytest.param(pod(), "10.0.0.7:8000", id="default port"),
        pytest.param(pod(name="http", containerPort=9000), "10.0.0.7:9000", id="named port"),
        pytest.param(pod(name="metrics", containerPort=9000), "10.0.0.7:8000", id="another port"),
        pytest.param(pod(ip="fd00::7"), "[fd00::7]:8000", id="IPv6"),
        pytest.param(pod(ip=""), None, id="no address yet"),
        pytest.param({}, None, id="blank"),
    ],
)
def test_the_address_is_the_pods_and_the_named_port(item: dict[str, Any], expected: str | None) -> None:
    """A pod that has no address is nowhere."""
    assert expected == pod_address(item, "http", 8000)
