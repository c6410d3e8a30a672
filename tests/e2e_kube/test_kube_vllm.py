"""The real vLLM in the pods of an EnginePool, by exactly the command that the operator renders for them."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from sternpost_engine.command_engine import CPU_ARGUMENTS
from sternpost_engine.model_fetch import default_directory, is_model
from sternpost_running.chat_load import Asked, ask
from sternpost_running.custom_resources import Resources, is_ready
from sternpost_running.kubelet import FakeKubelet
from sternpost_running.kubernetes import Cluster, wait_for
from sternpost_running.release import Release, running_release

pytestmark = [pytest.mark.kube, pytest.mark.engine, pytest.mark.timeout(600)]

NAMESPACE = "vllm"
MODEL = "small"
START_SECONDS_MAX = 300.0
BUILD_SECONDS_MAX = 120.0
CPU = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
"""What a machine without a GPU needs; the owner of a pool writes it into `engine.env`."""


@pytest.fixture
def model_directory() -> Path:
    """Return the folder of the fetched model."""
    directory = default_directory(os.environ)
    if not is_model(directory):
        pytest.fail("the tests against vLLM need the small model: run `sternpost model fetch`")
    return directory


def engine_program(pod: Mapping[str, Any], address: str) -> list[str]:
    """Return a pod's own command, at the pod's own address."""
    container = pod["spec"]["containers"][0]
    interpreter, *command = container["command"]
    assert interpreter == "python3", "the image's interpreter is this one"
    words = [address if word == "0.0.0.0" else word for word in container["args"]]
    return [sys.executable, *command, *words]


@pytest.fixture
def release(
    cluster: Cluster, kubelet: FakeKubelet, model_directory: Path, tmp_path: Path
) -> Iterator[Release]:
    """Install the chart, with a pool of one engine."""
    with running_release(cluster, kubelet, tmp_path, NAMESPACE, engines=engine_program) as running:
        resources = Resources(cluster, NAMESPACE)
        env = [{"name": name, "value": value} for name, value in CPU.items()]
        arguments = [*CPU_ARGUMENTS]
        resources.pool(model=str(model_directory), servedModelName=MODEL, replicas=1, env=env, args=arguments)
        resources.wait_for("EnginePool", "pool", is_ready, "the engine reuses tails", START_SECONDS_MAX)
        running.wait_until_it_runs()
        yield running


def test_a_tail_is_reused_by_an_engine_of_the_cluster(release: Release) -> None:
    """What kubectl applies is enough: the tail is built, read, and read no more under a kill."""
    resources = Resources(release.cluster, NAMESPACE)
    rollout = {"steps": [100], "minDuration": "1s", "minRequests": 0, "minSessions": 0}
    tenancy = {"tenantFrom": {"header": "x-tenant-id"}}
    # Calibration over many middles takes minutes on a CPU, and is tested with the engine.
    policy: dict[str, Any] = {
        "match": {"models": [MODEL]},
        "rollout": rollout,
        "tenancy": tenancy,
        "suffixCache": {"correction": "None"},
    }
    resources.policy(**policy)
    resources.wait_for(
        "CachePolicy", "policy", lambda status: status.get("readWeight") == 100, "it is for all"
    )
    (engine,) = resources.status("EnginePool", "pool")["engines"]
    url = release.gateways()[0]
    asked = (ask_anew(url, number) for number in itertools.count())
    wait_for(lambda: next(asked).reason == "hit", "the tail is built and read", BUILD_SECONDS_MAX)
    hit = next(asked)
    resources.policy(**policy, killLevel="NoSuffixReads")
    wait_for(lambda: set(release.levels(f"{NAMESPACE}/policy")) == {"NoSuffixReads"}, "both gateways obey")
    killed = next(asked)

    assert "Ready" == engine["reuse"]
    assert ("hit", "off") == (hit.reason, killed.reason)
    assert 0 == killed.report["suffix_tokens"] < hit.report["suffix_tokens"]
    assert hit.report["computed_tokens"] < hit.report["suffix_tokens"] / 4


def ask_anew(url: str, number: int) -> Asked:
    """Ask what nobody has asked before: of a prompt that it has seen, vLLM has the whole prefix."""
    return ask(url, MODEL, question=f"{number} sailors ask: where to?", max_tokens=1)
