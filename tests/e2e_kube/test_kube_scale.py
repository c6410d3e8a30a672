"""What an operator costs with 200 policies and 50 pools that nothing happens to."""

import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from sternpost_running.custom_resources import API, Resources, is_ready
from sternpost_running.kubernetes import Cluster, die_with_parent, program_environment
from sternpost_running.operator_process import RunningOperator

pytestmark = [pytest.mark.kube, pytest.mark.slow, pytest.mark.timeout(600)]

POLICIES = 200
POOLS = 50
SETTLE_SECONDS = 300.0
MEASURE_SECONDS = 90.0
"""Longer than the minute between two full lists, so that one is always part of it."""

CALLS_PER_SECOND_MAX = 2.0
RECONCILE_SECONDS = "1.0"
RESIDENT_BYTES_MAX = 250 << 20


@pytest.fixture
def engines() -> Iterator[None]:
    """Answer for every pod at once: all loopback addresses lead to one listener on all addresses."""
    command = [sys.executable, "-m", "sternpost_running.fake_engine", "--host", "0.0.0.0", "--port", "8000"]
    process = subprocess.Popen(command, env=program_environment(), preexec_fn=die_with_parent)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def make(cluster: Cluster, plural: str, namespace: str, name: str, kind: str, spec: dict[str, Any]) -> None:
    """Make an object without kubectl, which takes half a second for each."""
    value = {
        "apiVersion": "sternpost.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }
    cluster.api.post(f"{API}/namespaces/{namespace}/{plural}", json=value).raise_for_status()


def test_steady_state_costs_little(
    resources: Resources, cluster: Cluster, operator: RunningOperator, engines: None
) -> None:
    """At most two requests a second, looks within a second, and a quarter of a gigabyte."""
    namespace = resources.namespace
    env = [{"name": "SHARED_ENGINE", "value": "yes"}]
    for number in range(POOLS):
        engine = {"model": "m", "image": "engine", "replicas": 1, "env": env}
        make(cluster, "enginepools", namespace, f"pool-{number}", "EnginePool", {"engine": engine})
    for number in range(POLICIES):
        spec = {
            "match": {"models": [f"scale-{number}"]},
            "poolRef": {"name": f"pool-{number % POOLS}"},
            "prompt": {"layout": "FixedTail", "tail": {"source": "LastSystemMessage"}},
            "suffixCache": {},
        }
        make(cluster, "cachepolicies", namespace, f"policy-{number}", "CachePolicy", spec)

    def all_ready() -> bool:
        found = [
            value.get("status", {})
            for plural in ("enginepools", "cachepolicies")
            for value in cluster.get(f"{API}/namespaces/{namespace}/{plural}")["items"]
        ]
        return len(found) == POOLS + POLICIES and all(map(is_ready, found))

    cluster.wait(all_ready, "everything is ready", SETTLE_SECONDS)
    calls = operator.metric("sternpost_operator_api_calls_total")
    time.sleep(MEASURE_SECONDS)
    rate = (operator.metric("sternpost_operator_api_calls_total") - calls) / MEASURE_SECONDS
    count = operator.metric("sternpost_operator_reconcile_seconds_count")
    quick = operator.metric("sternpost_operator_reconcile_seconds_bucket", le=RECONCILE_SECONDS)
    print(f"{rate:.2f} calls/s, {quick / count:.1%} of {count:.0f} looks within {RECONCILE_SECONDS} s,")
    print(f"{operator.resident_bytes() >> 20} MiB")

    assert rate <= CALLS_PER_SECOND_MAX
    assert quick >= 0.95 * count
    assert operator.resident_bytes() <= RESIDENT_BYTES_MAX
